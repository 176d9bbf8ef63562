#!/usr/bin/env bash
# tessera-lab calibrate.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/../cli/ask_kit.sh"

one_question() {
    printf '{"id":"%s","documents":["%s","%s"],"question":"why"}\n' "$1" "$(letters 300 a)" "$(letters 300 b)"
}

it_writes_a_profile_that_ask_finds() {
    ask_init llama || return
    one_question 1 >"$tmp/q.jsonl"
    lab calibrate --model="$model" --threads=1 --prompts="$tmp/q.jsonl" --ratios=0,0.05 --biases=0,-0.3 \
        --contexts=same --selectors=query,none --layers=0-0.5,0.5-1
    exits 0 || return
    [[ $out == *'query     0-0.5 '*'query     0.5-1 '* ]] || fail "$out" || return
    [[ $out == *'speed-up'*'selector query, context same, ratio 0.05, bias '* ]] || fail "$out" || return
    ask --stats --docs="$tmp/docs" 'why'
    exits 0 || return
    [[ $err == *'profile      measured; selector query, ratio 0.050'* ]] || fail "$err"
}

a_run_goes_on_where_the_table_ends() {
    ask_init llama || return
    one_question 1 >"$tmp/q.jsonl"
    local flags=(--model="$model" --threads=1 --prompts="$tmp/q.jsonl" --csv="$tmp/rows.csv" --out="$tmp/p.yaml"
        --ratios=0.05 --biases=0 --contexts=pure --selectors=link --disk_enabled=false)
    lab calibrate "${flags[@]}"
    exits 0 || return
    local before
    before=$(cat "$tmp/rows.csv")
    one_question 2 >>"$tmp/q.jsonl"
    lab calibrate "${flags[@]}"
    exits 0 || return
    [[ $(cat "$tmp/rows.csv") == "$before"$'\n'prompts,2,full,* ]] || fail "$(cut -c1-60 "$tmp/rows.csv")"
}

wrong_flags_and_files_are_named() {
    lab calibrate
    exits 2 && complains '--prompts=FILE is needed' || return
    echo '{"id":"1","docs":[]}' >"$tmp/q.jsonl"
    lab calibrate --prompts="$tmp/q.jsonl"
    exits 1 && complains 'q.jsonl:1: unknown member docs' || return
    lab calibrate --prompts="$tmp/q.jsonl" --ratios=2
    exits 2 && complains '--ratios=2: up to 16 numbers from 0 to 1' || return
    lab calibrate --prompts="$tmp/q.jsonl" --rounds=0.2,0.1
    exits 2 && complains '--rounds=0.2,0.1: up to 8 ratios' || return
    lab calibrate --prompts="$tmp/q.jsonl" --rounds=0.1,0.2 --ratio=0.2
    exits 2 && complains '--ratio=0.2, but the first of --rounds is 0.1' || return
    lab calibrate --prompts="$tmp/q.jsonl" --layers=0.5-0.2
    exits 2 && complains '--layers=0.5-0.2: up to 16 of FROM-TO' || return
    lab calibrate --prompts="$tmp/q.jsonl" --selectors=query --ratios=0
    exits 2 && complains 'no settings to measure'
}

# The file of questions is broken: nothing was read, let alone measured.
a_ratio_that_is_not_measured_is_refused_first() {
    echo broken >"$tmp/q.jsonl"
    lab calibrate --prompts="$tmp/q.jsonl" --ratios=0,0.15
    exits 2 && complains 'no setting has ratio 0.05: add it to --ratios' || return
    lab calibrate --prompts="$tmp/q.jsonl" --ratios=0,0.15 --ratio=0.2
    exits 2 && complains 'has ratio 0.2' || return
    lab calibrate --prompts="$tmp/q.jsonl" --ratio=0 --selectors=query
    exits 2 && complains 'has ratio 0' || return
    lab calibrate --prompts="$tmp/q.jsonl" --ratios=0,0.15 --ratio=0.15
    exits 1 && complains 'q.jsonl:1'
}

run it_writes_a_profile_that_ask_finds
run a_run_goes_on_where_the_table_ends
run a_ratio_that_is_not_measured_is_refused_first
run wrong_flags_and_files_are_named
test_end
