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

# One entry for all: behind the primer, not behind a system prompt.
behind_a_primer_documents_are_known_to_every_system_prompt() {
    ask_init llama || return
    needs_python || return
    printf 'context: primer\nprimer: "%s\\n\\n"\n' "$(letters 60 c)" >"$tmp/p.yaml"
    printf 'context: primer\nprimer: "%s\\n\\n"\n' "$(letters 60 d)" >"$tmp/q.yaml"
    ingest --profile="$tmp/p.yaml" "$tmp/docs"
    exits 0 || return
    ask --json --profile="$tmp/p.yaml" --system='Be brief.' --docs="$tmp/docs" 'why'
    exits 0 || return
    [ "$(count new)" -lt 200 ] && [ "$(count reused)" -gt 500 ] || fail "$out" || return
    # Another primer is another text.
    ask --json --no-store --profile="$tmp/q.yaml" --system='Be brief.' --docs="$tmp/docs" 'why'
    exits 0 || return
    [ "$(count reused)" -eq 0 ] || fail "$out" || return
    ingest --json --profile="$tmp/q.yaml" "$tmp/docs"
    [ "$(json 'x["stored"] > 700')" = True ] || fail "$out" || return
    t ls "$TESSERA_DEPS_DIR/store"
    exits 0 || return
    # Three alone: two primers and the system prompt of ingest. The rest after one text or another.
    [ "$(grep -c ' segment  *-  ' <<<"$out")" -ge 3 ] || fail "$out" || return
    is "$(awk '$3 == "segment" && $4 != "-" { print $4 }' <<<"$out" | sort -u | wc -l)" 2
}

one_document_is_said_to_be_one() {
    ask_init llama || return
    ingest "$tmp/docs/a.md"
    exits 0 && says '1 document, '
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
run behind_a_primer_documents_are_known_to_every_system_prompt
run one_document_is_said_to_be_one
run nothing_to_ingest_is_an_error
test_end
