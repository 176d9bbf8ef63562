#!/usr/bin/env bash
# The model and the store that tessera ask finds by itself.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/ask_kit.sh"

the_model_of_the_environment_is_used() {
    ask_init llama || return
    TESSERA_MODEL=$model t ask --threads=1 --max=4 'why'
    exits 0 || return
    TESSERA_MODEL=$tmp/none.gguf t ask --threads=1 'why'
    exits 1 && complains 'none.gguf: No such file'
}

the_store_is_in_the_cache_folder_unless_named() {
    ask_init llama || return
    ask --doc="$tmp/docs/a.md" 'why'
    [ -d "$tmp/deps/store" ] || fail 'no store' || return
    ask --disk_path="$tmp/elsewhere" --doc="$tmp/docs/a.md" 'why'
    exits 0 || return
    [ -d "$tmp/elsewhere" ] || fail 'no store where it was wanted'
}

converted_weights_are_another_model_to_the_store() {
    ask_init llama || return
    needs_python || return
    ask --json --docs="$tmp/docs" 'why'
    ask --json --docs="$tmp/docs" --weights=q8_0 'why'
    exits 0 || return
    [ "$(count filled)" -gt 800 ] || fail "$out"
}

a_profile_that_cannot_be_read_is_an_error() {
    ask_init llama || return
    echo 'ratio: many' >"$tmp/p.yaml"
    ask --profile="$tmp/p.yaml" 'why'
    exits 1 && complains 'p.yaml'
}

run the_model_of_the_environment_is_used
run the_store_is_in_the_cache_folder_unless_named
run converted_weights_are_another_model_to_the_store
run a_profile_that_cannot_be_read_is_an_error
test_end
