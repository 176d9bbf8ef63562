#!/usr/bin/env bash
# One question by every method, on a random model: what recomputes everything says what the prefill
# says, and what reuses documents does not.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/../cli/ask_kit.sh"

question() {
    printf '{"set":"s","id":"%s","documents":["%s","%s"],"question":"why","answers":["abc"]%s}\n' "$1" \
        "$(letters 300 a)" "$(letters 300 b)" "${2:-}"
}

answers() {
    lab answers --model="$model" --threads=1 --prompts="$tmp/q.jsonl" --csv="$tmp/rows.csv" "$@"
}

# Column $2 of the row of method $1.
cell() { awk -F, -v m="$1" -v c="$2" 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i } $4 == m { print $at[c] }' "$tmp/rows.csv"; }

recomputing_everything_gives_the_prefills_answer() {
    ask_init llama || return
    question 1 >"$tmp/q.jsonl"
    answers --methods=reuse,cacheblend,tessera@0,tessera@1
    exits 0 || return
    local all
    all=$(cat "$tmp/rows.csv")
    is "$(cell tessera@1 same_tokens) $(cell tessera@1 same_words) $(cell tessera@1 says_same) $(cell tessera@1 kl)" '1 1 1 0' || fail "$all" || return
    is "$(cell tessera@1 answer)" "$(cell prefill answer)" || fail "$all" || return
    # Nothing is recomputed: the KL is that of plain reuse, and not 0.
    is "$(cell tessera@0 kl_answer)" "$(cell reuse kl_answer)" || fail "$all" || return
    [ "$(cell reuse kl)" != 0 ] && is "$(cell reuse recomputed)" 0 || fail "$all" || return
    # Of about 300 tokens that are not exact.
    local n
    n=$(cell cacheblend recomputed)
    [ "$n" -gt 30 ] && [ "$n" -lt 60 ] || fail "$all" || return
    is "$(cell prefill computed)" "$(cell prefill tokens)" || fail "$all"
}

# The same prompt and settings as ask: as many tokens recomputed, and the same logits but for rounding.
the_shipped_method_is_what_ask_does() {
    ask_init llama || return
    needs_python || return
    printf '{"set":"s","id":"1","documents":["%s","%s"],"question":"why"}\n' \
        "a.md\\n$(letters 400 a)" "b.txt\\n$(letters 400 b)" >"$tmp/q.jsonl"
    answers --methods=tessera --tokens=8
    exits 0 || return
    t ingest --model="$model" --threads=1 "$tmp/docs"
    exits 0 || return
    ask --docs="$tmp/docs" --max=1 --json --compare 'why'
    exits 0 || return
    is "$(cell tessera tokens) $(cell tessera recomputed)" "$(count prompt) $(count recomputed)" || return
    is "$(json "abs(x['kl'] / $(cell tessera kl) - 1) < 0.01")" True
}

a_plain_answer_ends_with_its_line() {
    ask_init llama || return
    question 1 ',"plain":true,"system":"some text"' >"$tmp/q.jsonl"
    answers --methods=tessera@1
    exits 0 || return
    is "$(cell tessera@1 same_tokens)" 1
}

a_question_that_is_too_long_is_left_out() {
    ask_init llama || return
    { question 1 && printf '{"set":"s","id":"2","documents":["%s"],"question":"why"}\n' "$(letters 3000 a)"; } >"$tmp/q.jsonl"
    answers --methods=reuse
    exits 0 && complains 's 2: left out: ' || return
    is "$(wc -l <"$tmp/rows.csv")" 3
}

in_a_free_order_one_document_leads_for_all_methods() {
    ask_init llama || return
    printf '{"set":"s","id":"1","documents":["%s","%s","%s"],"question":"why","answers":["abc"]}\n' \
        "$(letters 300 a)" "$(letters 300 b)" "$(letters 300 c)" >"$tmp/q.jsonl"
    # Behind a primer no document is exact where it is.
    printf 'version: 1\ncontext: primer\nprimer: "the old town"\nratio: 0.1\n' >"$tmp/primed.yaml"
    answers --order=free --methods=reuse,tessera@0,tessera@1 --profile="$tmp/primed.yaml"
    exits 0 || return
    local all n
    all=$(cat "$tmp/rows.csv")
    is "$(cell tessera@1 same_tokens) $(cell tessera@1 kl)" '1 0' || fail "$all" || return
    n=$(cell tessera@0 recomputed)
    [ "$n" -gt 250 ] && [ "$n" -lt 380 ] || fail "$all" || return
    is "$(cell reuse recomputed)" 0 || fail "$all" || return
    answers --order=any
    exits 2
}

# One round and a draft, although the gate would stop the prompt before it, and after it.
rounds_are_measured_whatever_the_gate_says() {
    ask_init llama || return
    printf '{"set":"s","id":"1","documents":["%s","%s","%s"],"question":"why","answers":["abc"]}\n' \
        "$(letters 300 a)" "$(letters 300 b)" "$(letters 300 c)" >"$tmp/q.jsonl"
    printf '%s\n' 'version: 1' 'context: primer' 'primer: "the old town"' 'rounds: [0.5]' 'draft: 4' 'draft_floor: 1' \
        'gate_limit: 1' 'gate: {constant: -9}' 'lead: {rounds: [0.6]}' >"$tmp/strict.yaml"
    answers --order=free --methods=tessera,rounds@0.1,rounds@0.3 --profile="$tmp/strict.yaml"
    exits 0 || return
    local all few many
    all=$(cat "$tmp/rows.csv")
    is "$(cell tessera rounds) $(cell tessera sure) $(cell prefill draft)" '0 1 nan' || fail "$all" || return
    is "$(cell rounds@0.1 rounds) $(cell rounds@0.1 reasons) $(cell rounds@0.1 chunks)" '1 0 2' || fail "$all" || return
    # Two documents are blended; the one that leads is computed too.
    few=$(cell rounds@0.1 recomputed) many=$(cell rounds@0.3 recomputed)
    [ "$few" -gt 310 ] && [ "$many" -gt $((few + 80)) ] && [ "$many" -lt $((few + 160)) ] || fail "$all" || return
    # The draft is the same, what it is compared with is not.
    is "$(cell rounds@0.1 draft)" "$(cell rounds@0.3 draft)" || fail "$all" || return
    local c
    for c in moved changed mass fresh entropy top margin chunk_tokens agree worst doubt low draft; do
        [[ $(cell rounds@0.1 "$c") =~ ^-?[0-9.e-]+$ ]] || fail "$c: $all" || return
    done
    [ "$(cell rounds@0.1 fresh)" != "$(cell rounds@0.3 fresh)" ] || fail "$all" || return
    answers --methods=rounds@0.1 --profile="$tmp/strict.yaml" --csv="$tmp/o.csv" --blend_recompute_ratios=0.2
    exits 1 && complains 'rounds@0.1: rounds need selector query'
}

# Of this profile no trial pays, whatever the times are: it recomputes as much as it saves.
a_trial_is_weighed_with_the_times_of_the_run() {
    ask_init llama || return
    question 1 >"$tmp/q.jsonl"
    printf '%s\n' 'version: 1' 'context: primer' 'primer: "the old town"' 'rounds: [0.5]' 'draft: 4' 'draft_passes: 1' \
        'gate_limit: 0.5' 'gate_accepts: 0.5' 'gate: {constant: 9}' >"$tmp/dear.yaml"
    mkdir -p "$tmp/times"
    TMPDIR=$tmp/times answers --methods=tessera --profile="$tmp/dear.yaml" --weigh
    exits 0 || return
    local all
    all=$(cat "$tmp/rows.csv")
    is "$(cell tessera recomputed) $(($(cell tessera reasons) & 512)) $(cell tessera kl)" '0 512 0' || fail "$all" || return
    is "$(ls "$tmp/times")$([ -e "$tmp/deps/store" ] && echo store)" '' || return
    # Neither a ratio nor a method of others is weighed.
    answers --methods=tessera,tessera@0.1,rounds@0.1,cacheblend --profile="$tmp/dear.yaml" --csv="$tmp/weighed.csv" --weigh
    exits 0 || return
    is "$(awk -F, 'NR > 1 && $19 >= 512 { printf "%s ", $4 }' "$tmp/weighed.csv")" 'tessera ' || fail "$(cat "$tmp/weighed.csv")" || return
    # Without it the same prompt is tried.
    answers --methods=tessera --profile="$tmp/dear.yaml" --csv="$tmp/tried.csv"
    exits 0 || return
    is "$(awk -F, '$4 == "tessera" { print $18, $19 }' "$tmp/tried.csv")" '1 0' || fail "$(cat "$tmp/tried.csv")"
}

run recomputing_everything_gives_the_prefills_answer
run in_a_free_order_one_document_leads_for_all_methods
run rounds_are_measured_whatever_the_gate_says
run a_trial_is_weighed_with_the_times_of_the_run
run the_shipped_method_is_what_ask_does
run a_plain_answer_ends_with_its_line
run a_question_that_is_too_long_is_left_out
test_end
