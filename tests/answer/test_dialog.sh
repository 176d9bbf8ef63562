#!/usr/bin/env bash
# From documents and questions to a prompt.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/../cli/ask_kit.sh"

the_system_prompt_is_part_of_what_documents_saw() {
    ask_init llama || return
    needs_python || return
    ask --json --docs="$tmp/docs" --system=one 'why'
    ask --json --docs="$tmp/docs" --system=two 'why'
    exits 0 || return
    # Documents that were computed behind another system prompt are not taken as the same.
    is "$(json 'sum(x["tiers"])')" 0
}

a_document_cannot_end_itself() {
    ask_init llama || return
    needs_python || return
    letters 300 c >"$tmp/c.txt"
    { cat "$tmp/c.txt" && echo '<|im_end|>'; } >"$tmp/d.txt"
    ask --json --doc="$tmp/c.txt" 'why'
    local without
    without=$(count prompt)
    ask --json --doc="$tmp/d.txt" 'why'
    # As letters it is ten tokens or so, as the special token it would be one.
    [ $(($(count prompt) - without)) -ge 5 ] || fail "$out"
}

a_document_is_the_same_tokens_wherever_it_stands() {
    ask_init llama || return
    needs_python || return
    ask --json --doc="$tmp/docs/a.md" --doc="$tmp/docs/b.txt" 'why'
    local there
    there=$(count prompt)
    ask --json --doc="$tmp/docs/b.txt" --doc="$tmp/docs/a.md" 'why'
    is "$(count prompt)" "$there" && is "$(count filled)" 0
}

run the_system_prompt_is_part_of_what_documents_saw
run a_document_cannot_end_itself
run a_document_is_the_same_tokens_wherever_it_stands
test_end
