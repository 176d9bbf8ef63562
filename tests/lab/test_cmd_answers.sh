#!/usr/bin/env bash
# tessera-lab answers.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/../cli/ask_kit.sh"

questions() {
    for id in "$@"; do
        printf '{"id":"%s","documents":["%s","%s"],"question":"why %s","answers":["x"]}\n' "$id" \
            "$(letters 200 a)" "$(letters 200 b)" "$id"
    done >"$tmp/q.jsonl"
}

answers() {
    lab answers --model="$model" --threads=1 --tokens=4 --prompts="$tmp/q.jsonl" --methods=reuse "$@"
}

# The ids of a table.
ids() { cut -d, -f3 "$1" | tail -n +2 | uniq | tr '\n' ' '; }

a_run_goes_on_where_the_table_ends() {
    ask_init llama || return
    questions 1 2
    answers --csv="$tmp/a.csv"
    exits 0 || return
    local before
    before=$(cat "$tmp/a.csv")
    questions 1 2 3
    answers --csv="$tmp/a.csv"
    exits 0 || return
    [[ $(cat "$tmp/a.csv") == "$before"$'\n'*,prompts,3,prefill,*,prompts,3,reuse,* ]] || fail "$(cat "$tmp/a.csv")" || return
    # Another method: only its rows are added.
    answers --csv="$tmp/a.csv" --methods=reuse,tessera@0
    exits 0 || return
    is "$(grep -c ,prefill, "$tmp/a.csv") $(grep -c ,tessera@0, "$tmp/a.csv")" '3 3' || return
    # Nothing to do: the model is not needed.
    lab answers --prompts="$tmp/q.jsonl" --methods=reuse --csv="$tmp/a.csv" --model=/nowhere
    exits 0 && says 'prompts  reuse'
}

shards_and_halves_are_parts_of_the_whole() {
    ask_init llama || return
    questions 1 2 3 4 5 6
    answers --csv="$tmp/1.csv" --shard=1/2 --limit=5 && exits 0 || return
    answers --csv="$tmp/2.csv" --shard=2/2 --limit=5 && exits 0 || return
    is "$(ids "$tmp/1.csv")$(ids "$tmp/2.csv")" '1 3 5 2 4 ' || return
    answers --csv="$tmp/3.csv" --half=tune
    answers --csv="$tmp/4.csv" --half=test
    [ -n "$(ids "$tmp/3.csv")" ] && [ -n "$(ids "$tmp/4.csv")" ] || return
    is "$(sort -u <(ids "$tmp/3.csv" | tr ' ' '\n') <(ids "$tmp/4.csv" | tr ' ' '\n') | tr -d '\n')" 123456
}

the_store_of_the_user_is_left_alone() {
    ask_init llama || return
    questions 1
    answers --methods=tessera
    exits 0 && [ ! -e "$tmp/deps/store" ]
}

wrong_flags_and_files_are_named() {
    lab answers
    exits 2 && complains '--prompts=FILE or --summary is needed' || return
    lab answers --prompts=x --half=third
    exits 2 && complains '--half=third: must be tune, test or all' || return
    lab answers --prompts=x --shard=3/2
    exits 2 && complains '--shard=3/2: must be I/N' || return
    lab answers --prompts=x --methods=magic
    exits 2 && complains '--methods: magic: must be prefill, reuse' || return
    lab answers --summary
    exits 2 && complains '--summary needs tables' || return
    lab answers --prompts="$tmp/none"
    exits 1 && complains 'none: No such file'
}

run a_run_goes_on_where_the_table_ends
run shards_and_halves_are_parts_of_the_whole
run the_store_of_the_user_is_left_alone
run wrong_flags_and_files_are_named
test_end
