#!/usr/bin/env bash
# tessera-lab bench blend.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/../cli/ask_kit.sh"

every_length_has_three_ways_and_their_parts() {
    ask_init llama || return
    lab bench blend --model="$model" --threads=1 --tokens=512,700 --document=100 --rounds=2
    exits 0 || return
    says 'times in ms' || return
    [ "$(grep -cE '^ *(512|700)  (prefill|r = 0|r = 0.05)( +-?[0-9.]+){9}$' <<<"$out")" -eq 6 ] || fail "$out"
}

parts_add_up_to_the_whole() {
    needs_python || return
    ask_init qwen2 || return
    lab bench blend --model="$model" --threads=1 --tokens=600 --document=100 --rounds=1 --ratio=0.2 --json
    exits 0 || return
    is "$(json '[r["way"] for r in x["rows"]]')" "['prefill', 'r = 0', 'r = 0.2']" || return
    is "$(json 'all(-1e-4 < r["rest_s"] < r["total_s"] for r in x["rows"])')" True || return
    # Only a share that is recomputed has a question's pass.
    is "$(json '[r["query_s"] > 0 for r in x["rows"]]')" '[False, False, True]' || return
    is "$(json 'all(r["blend_s"] > 0 and r["judge_s"] > 0 for r in x["rows"])')" True
}

flags_that_make_no_sense_are_refused() {
    lab bench blend --tokens=12
    exits 2 && complains '--tokens=12: up to 8 numbers from 512' || return
    lab bench blend --ratio=7
    exits 2 && complains '--ratio=7' || return
    lab bench blend --model="$tmp/none.gguf"
    exits 1
}

run every_length_has_three_ways_and_their_parts
run parts_add_up_to_the_whole
run flags_that_make_no_sense_are_refused
test_end
