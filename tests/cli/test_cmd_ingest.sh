#!/usr/bin/env bash
# tessera ingest.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/ask_kit.sh"

ingest() { t ingest --model="$model" --threads=1 "$@"; }

what_was_ingested_is_known_to_the_first_question() {
    ask_init llama || return
    needs_python || return
    ingest "$tmp/docs"
    exits 0 && says '2 documents, ' || return
    ask --json --docs="$tmp/docs" 'why'
    exits 0 || return
    [ "$(count filled)" -eq 0 ] || fail "$out"
}

what_is_there_already_is_not_computed_again() {
    ask_init llama || return
    needs_python || return
    ingest --json "$tmp/docs/a.md"
    exits 0 || return
    [ "$(json 'x["stored"] > 400')" = True ] || fail "$out" || return
    ingest --json "$tmp/docs"
    [ "$(json '300 < x["stored"] < 500')" = True ] || fail "$out" || return
    ingest --json "$tmp/docs"
    is "$(json 'x["stored"]')" 0
}

another_system_prompt_or_model_makes_it_unknown() {
    ask_init llama || return
    needs_python || return
    ingest "$tmp/docs"
    "$B/tests/model/make_gguf" "$model" qwen2
    ingest --json "$tmp/docs"
    [ "$(json 'x["stored"] > 800')" = True ] || fail "$out"
}

short_documents_are_stored_behind_a_primer() {
    ask_init llama || return
    needs_python || return
    printf 'version: 1\ncontext: primer\nprimer: The mill by the river is old.\n' >"$tmp/p.yaml"
    letters 60 c >"$tmp/c.txt"
    ingest --json --profile="$tmp/p.yaml" "$tmp/c.txt"
    exits 0 || return
    # The system prompt is stored once and alone, and one document serves any.
    ingest --json --profile="$tmp/p.yaml" --system=other "$tmp/c.txt"
    [ "$(json 'x["stored"] < 60')" = True ] || fail "$out" || return
    letters 60 d >"$tmp/d.txt"
    ingest --json --profile="$tmp/p.yaml" --system=other "$tmp/d.txt"
    [ "$(json '30 < x["stored"] < 90')" = True ] || fail "$out"
}

nothing_to_ingest_is_an_error() {
    ask_init llama || return
    ingest && exits 2 && complains 'missing argument' || return
    mkdir "$tmp/bare"
    ingest "$tmp/bare"
    exits 1 && complains 'no documents found'
}

run what_was_ingested_is_known_to_the_first_question
run what_is_there_already_is_not_computed_again
run another_system_prompt_or_model_makes_it_unknown
run short_documents_are_stored_behind_a_primer
run nothing_to_ingest_is_an_error
test_end
