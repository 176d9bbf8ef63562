#!/usr/bin/env bash
# What of a folder goes into a prompt: all of a small one, passages of a large one.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/ask_kit.sh"

# A folder of 60 documents of 400 letters, two of which are about ferries.
large_folder() {
    ask_init llama "${1:-4096}" || return
    needs_python || return
    local i
    for i in {1..60}; do letters 400 "$(printf %s abcdefghij | cut -c $((i % 10 + 1)))" >"$tmp/docs/$i.txt"; done
    { echo 'The ferry sails at six.' && letters 300 c; } >"$tmp/docs/harbor.txt"
    { echo 'No ferry on Sundays.' && letters 300 d; } >"$tmp/docs/week.txt"
}

a_small_folder_is_read_whole() {
    ask_init llama || return
    needs_python || return
    ask --json --docs="$tmp/docs" 'why'
    exits 0 || return
    [ "$(count prompt)" -gt 800 ] || fail "$out" || return
    is "$(json '"passages" in x')" False
}

of_a_large_folder_the_passages_of_the_question_are_read() {
    large_folder || return
    ask --json --docs="$tmp/docs" 'When does the ferry sail?'
    exits 0 || return
    is "$(json 'sorted(p["document"] for p in x["passages"])')" "['harbor.txt', 'week.txt']" || return
    [ "$(json 'x["passages"][0]["text"].startswith("The ferry sails at six.")')" = True ] || fail "$out" || return
    [ "$(count prompt)" -lt 1200 ] || fail "$out" || return
    ask --docs="$tmp/docs" 'When does the ferry sail?'
    exits 0 || return
    [[ $err == *'from 2 of 64 passages: harbor.txt, week.txt'* ]] || fail "$err"
}

the_number_of_passages_has_a_limit() {
    large_folder || return
    ask --json --docs="$tmp/docs" --passages=1 'When does the ferry sail?'
    exits 0 || return
    is "$(json 'len(x["passages"])')" 1 || return
    ask --docs="$tmp/docs" --passages=0 'ferry'
    exits 2
}

passages_are_known_the_second_time() {
    large_folder || return
    ask --json --docs="$tmp/docs" 'When does the ferry sail?'
    exits 0 || return
    ask --json --docs="$tmp/docs" 'Which ferry?'
    exits 0 || return
    is "$(json 'x["first"]')" False || return
    is "$(count filled)" 0
}

what_is_ingested_is_known_by_the_passage() {
    large_folder || return
    t ingest --model="$model" --threads=1 --json "$tmp/docs"
    exits 0 || return
    ask --json --docs="$tmp/docs" 'When does the ferry sail?'
    exits 0 || return
    is "$(json 'x["first"]')" False || return
    is "$(count filled)" 0
}

a_question_about_nothing_is_refused() {
    large_folder || return
    ask --docs="$tmp/docs" 'Xylophones?'
    exits 1 && complains 'none of the 64 documents has a word of the question'
}

a_folder_that_fits_can_be_read_whole_all_the_same() {
    ask_init llama 4096 && needs_python || return
    local i
    for i in c d e f; do letters 400 "$i" >"$tmp/docs/$i.txt"; done
    echo 'The ferry sails at six.' >"$tmp/docs/harbor.txt"
    ask --json --docs="$tmp/docs" 'ferry'
    exits 0 && is "$(json '"passages" in x')" True || return
    ask --json --docs="$tmp/docs" --all --no-store 'ferry'
    exits 0 && is "$(json '"passages" in x')" False || return
    [ "$(count prompt)" -gt 2000 ] || fail "$out"
}

passages_that_do_not_fit_are_left_out() {
    large_folder 700 || return
    ask --json --docs="$tmp/docs" 'When does the ferry sail?'
    exits 0 || return
    is "$(json 'len(x["passages"])')" 1 || return
    is "$(json 'x["passages"][0]["document"]')" harbor.txt
}

later_questions_bring_their_own_passages() {
    large_folder || return
    printf 'When does the ferry sail?\nWhat about Sundays?\n' >"$tmp/questions"
    { echo 'Mondays are for xylophones.' && letters 200 e; } >"$tmp/docs/music.txt"
    echo 'Who plays xylophones?' >>"$tmp/questions"
    t ask --model="$model" --threads=1 --max=8 --json --docs="$tmp/docs" --chat="$tmp/questions"
    exits 0 || return
    out=$(sed -n 2p <<<"$out")$'\n'$(sed -n 3p <<<"$out")
    local all=$out
    out=$(head -n1 <<<"$all")
    is "$(json 'x["passages"]')" '[]' || return
    out=$(tail -n1 <<<"$all")
    is "$(json '[p["document"] for p in x["passages"]]')" "['music.txt']"
}

# Three known documents of 400 letters, each computed behind a primer, so that none is exact where it is.
three_documents() {
    ask_init llama 4096 || return
    needs_python || return
    letters 400 c >"$tmp/docs/c.txt"
    printf 'version: 1\ncontext: primer\nprimer: "the old town"\nratio: 0.1\n' >"$tmp/primed.yaml"
    t ingest --model="$model" --threads=1 --profile="$tmp/primed.yaml" "$tmp/docs"
    exits 0
}

ask_three() { ask --json --no-store --profile="$tmp/primed.yaml" "$@" 'why'; }

the_order_of_a_folder_is_free() {
    three_documents || return
    ask_three --ratio=0 --docs="$tmp/docs" --order=given
    exits 0 && is "$(count recomputed)" 0 || return
    # The document that leads is computed, and the others are reused.
    ask_three --ratio=0 --docs="$tmp/docs"
    exits 0 || return
    [ "$(count recomputed)" -gt 350 ] && [ "$(count recomputed)" -lt 480 ] || fail "$out" || return
    [ "$(count reused)" -gt 700 ] || fail "$out"
}

the_order_of_named_files_is_the_given_one() {
    three_documents || return
    local named=(--doc="$tmp/docs/a.md" --doc="$tmp/docs/b.txt" --doc="$tmp/docs/c.txt")
    ask_three --ratio=0 "${named[@]}"
    exits 0 && is "$(count recomputed)" 0 || return
    ask_three --ratio=0 "${named[@]}" --order=free
    exits 0 && [ "$(count recomputed)" -gt 350 ] || fail "$out" || return
    ask_three "${named[@]}" --order=any
    exits 2 && complains '--order=any: must be free or given'
}

# What is said of the answer holds for the prompt in its new order.
in_a_free_order_everything_recomputed_is_a_full_read() {
    three_documents || return
    ask_three --compare --ratio=1 --docs="$tmp/docs"
    exits 0 && is "$(json 'x["answer"] == x["full_answer"]')" True
}

run a_small_folder_is_read_whole
run the_order_of_a_folder_is_free
run the_order_of_named_files_is_the_given_one
run in_a_free_order_everything_recomputed_is_a_full_read
run of_a_large_folder_the_passages_of_the_question_are_read
run the_number_of_passages_has_a_limit
run passages_are_known_the_second_time
run what_is_ingested_is_known_by_the_passage
run a_question_about_nothing_is_refused
run a_folder_that_fits_can_be_read_whole_all_the_same
run passages_that_do_not_fit_are_left_out
run later_questions_bring_their_own_passages
test_end
