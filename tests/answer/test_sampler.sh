#!/usr/bin/env bash
# How tessera ask chooses tokens.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/../cli/ask_kit.sh"

without_a_temperature_answers_repeat() {
    ask_init llama || return
    ask 'why'
    exits 0 || return
    local first=$out
    ask --seed=7 'why'
    is "$out" "$first"
}

a_seed_gives_an_answer_again_and_another_seed_another_one() {
    ask_init llama || return
    ask --temperature=2 --seed=1 'why'
    exits 0 || return
    local first=$out
    ask --temperature=2 --seed=1 'why'
    is "$out" "$first" || return
    ask --temperature=2 --seed=2 'why'
    [ "$out" != "$first" ] || fail 'the same answer for another seed'
}

a_narrow_top_p_is_the_likeliest_token() {
    ask_init llama || return
    ask 'why'
    local first=$out
    ask --temperature=1 --top-p=0 --seed=3 'why'
    is "$out" "$first"
}

numbers_out_of_range_are_refused() {
    ask_init llama || return
    ask --temperature=-1 'why'
    exits 2 && complains '--temperature=-1: not a number from 0 to 100' || return
    ask --top-p=x 'why'
    exits 2 && complains '--top-p=x'
}

run without_a_temperature_answers_repeat
run a_seed_gives_an_answer_again_and_another_seed_another_one
run a_narrow_top_p_is_the_likeliest_token
run numbers_out_of_range_are_refused
test_end
