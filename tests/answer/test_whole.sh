#!/usr/bin/env bash
# Folders that are small enough to be in a prompt whole, in every program.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/../cli/ask_kit.sh"

# Half of the context of 2048 tokens; a letter is about one.
a_folder_of_half_the_context_is_whole_and_a_larger_one_is_not() {
    ask_init llama || return
    needs_python || return
    ask --json --docs="$tmp/docs" 'why'
    exits 0 || return
    is "$(json '"passages" in x')" False || return
    [ "$(count prompt)" -gt 800 ] || fail "$out" || return
    { echo 'The ferry sails at six.' && letters 300 c; } >"$tmp/docs/harbor.txt"
    ask --json --docs="$tmp/docs" 'When does the ferry sail?'
    exits 0 || return
    is "$(json '[p["document"] for p in x["passages"]]')" "['harbor.txt']"
}

# Nobody counts the tokens of what has far more bytes.
a_large_folder_is_not_counted() {
    ask_init llama || return
    needs_python || return
    { echo 'The ferry sails at six.' && letters 300 c; } >"$tmp/docs/harbor.txt"
    letters 20000 d >"$tmp/docs/long.txt"
    ask --json --docs="$tmp/docs" 'When does the ferry sail?'
    exits 0 || return
    is "$(json '[p["document"] for p in x["passages"]]')" "['harbor.txt']"
}

run a_folder_of_half_the_context_is_whole_and_a_larger_one_is_not
run a_large_folder_is_not_counted
test_end
