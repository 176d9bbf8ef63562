#!/usr/bin/env bash
# Answers, token by token.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/ask_kit.sh"

# The models of these tests are random: taking the most likely token, this one ends in a loop.
long() { t ask --model="$model" --threads=1 --max=500 "$@" 'why'; }

an_answer_that_repeats_itself_ends_before_that() {
    ask_init qwen3 || return
    needs_python || return
    long --json --no-repeat-stop
    exits 0 || return
    local all
    all=$(json 'x["answer"]')
    is "$(json 'x["ended"]')" length || return
    long --json
    exits 0 || return
    is "$(json 'x["ended"]')" repeat || return
    local short
    short=$(json 'x["answer"]')
    [ ${#short} -lt ${#all} ] && [ "${all:0:${#short}}" = "$short" ] || fail "$short" || return
    long
    [[ $err == *'; ended where it repeats itself'* ]] || fail "$err" || return
    # No more than that was shown as it came.
    [ ${#out} -le $((${#short} + 1)) ] || fail "$out"
}

an_answer_that_is_too_long_says_so() {
    ask_init llama || return
    ask 'why'
    [[ $err == *'; ended after 8 tokens'* ]] || fail "$err"
}

a_dialog_goes_on_after_a_repetition() {
    ask_init qwen3 || return
    needs_python || return
    printf 'why\nhow\n' >"$tmp/questions"
    t ask --model="$model" --threads=1 --max=300 --json --chat="$tmp/questions"
    exits 0 || return
    is "$(wc -l <<<"$out")" 2 || return
    out=$(head -n1 <<<"$out")
    is "$(json 'x["ended"]')" repeat
}

# The gate's draft begins the answer: the same answer, by fewer steps.
a_draft_begins_the_answer() {
    ask_init llama || return
    needs_python || return
    local n plain
    for n in 0 5 16; do
        cat >"$tmp/profile.yaml" <<END
version: 1
rounds: [0.2]
draft: $n
gate: {constant: 5}
END
        t ingest --model="$model" --threads=1 "$tmp/docs"
        ask --json --no-repeat-stop --profile="$tmp/profile.yaml" --docs="$tmp/docs" 'why'
        exits 0 || return
        is "$(json 'x["rounds"]')" 1 || return
        [ "$n" != 0 ] || plain=$(json 'x["answer"]')
        is "$(json 'x["answer"]')" "$plain" || return
        is "$(count answer)" 8 || return
        rm -rf "$TESSERA_DEPS_DIR/store"
    done
}

run an_answer_that_repeats_itself_ends_before_that
run an_answer_that_is_too_long_says_so
run a_dialog_goes_on_after_a_repetition
run a_draft_begins_the_answer
test_end
