#!/usr/bin/env bash
# tessera verify.
# shellcheck source=tests/cli/store_kit.sh
. "$(dirname "$0")/store_kit.sh"

a_good_store_has_nothing_bad() {
    fill_store || return
    t verify "$store"
    exits 0 && says ' 0 bad'
}

a_bad_cell_is_named_by_layer_and_tokens() {
    fill_store || return
    damage
    t verify "$store"
    exits 1 && says ': layer 0, ' && says ' 1 bad' || return
    needs_python || return
    t verify --json "$store"
    exits 1 || return
    [ "$(json 'x["bad_entries"], len(x["bad"]), x["bad"][0]["layer"]')" = '(1, 1, 0)' ] || fail "$out"
}

repair_drops_it_and_the_next_verify_is_clean() {
    needs_python || return
    fill_store || return
    local before
    before=$(n_entries)
    damage
    t verify --repair "$store"
    exits 0 && says 'dropped' || return
    t verify "$store"
    exits 0 || return
    [ "$(n_entries)" -eq $((before - 1)) ] || fail "$before entries before, $(n_entries) after"
}

run a_good_store_has_nothing_bad
run a_bad_cell_is_named_by_layer_and_tokens
run repair_drops_it_and_the_next_verify_is_clean
test_end
