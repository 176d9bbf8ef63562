#!/usr/bin/env bash
# tessera evict, clear, compact and warm.
# shellcheck source=tests/cli/store_kit.sh
. "$(dirname "$0")/store_kit.sh"

evict_drops_as_much_as_asked_in_eviction_order() {
    needs_python || return
    fill_store || return
    local first before
    t ls --json --order=eviction "$store"
    first=$(json 'x["entries"][0]["key"]')
    before=$(json 'len(x["entries"])')
    t evict "$store" 1
    exits 0 && says '1 entries evicted' || return
    t ls --json "$store"
    [ "$(json 'len(x["entries"])')" -eq $((before - 1)) ] || fail "$out" || return
    [[ $out != *$first* ]] || fail "$first is still there"
}

clear_empties_a_store_for_good() {
    needs_python || return
    fill_store || return
    t clear "$store"
    exits 0 && says 'cleared' || return
    [ "$(n_entries)" -eq 0 ] || fail "$out"
}

clear_of_a_space_leaves_the_others() {
    needs_python || return
    fill_store || return
    local before
    before=$(n_entries)
    t clear --space=00000000 "$store"
    exits 0 && says '0 entries cleared' || return
    [ "$(n_entries)" -eq "$before" ] || fail "$out" || return
    t clear --space=nothex "$store"
    exits 2
}

compact_never_grows_the_files_and_keeps_what_lives() {
    needs_python || return
    fill_store || return
    local left
    t evict "$store" 700K
    left=$(n_entries)
    t compact --json "$store"
    exits 0 || return
    [ "$(json 'x["after"] <= x["before"]')" = True ] || fail "$out" || return
    [ "$(n_entries)" -eq "$left" ] || fail "$left entries before, $(n_entries) after" || return
    t verify "$store"
    exits 0 && says ' 0 bad'
}

# A fifth of the store is too little for a flush to tidy up by itself; compact gives it back.
compact_gives_back_what_is_dead() {
    needs_python || return
    fill_store || return
    local bytes left
    bytes=$(($(du -sB1 "$store" | cut -f1) / 5))
    t evict "$store" "$bytes"
    left=$(n_entries)
    t compact --json "$store"
    exits 0 || return
    [ "$(json "x['before'] - x['after'] > $bytes // 2")" = True ] || fail "$bytes dead: $out" || return
    [ "$(n_entries)" -eq "$left" ] || fail "$left entries before, $(n_entries) after" || return
    t verify "$store"
    exits 0 && says ' 0 bad'
}

warm_reads_every_file() {
    fill_store || return
    t warm "$store"
    exits 0 && says 'in the page cache'
}

a_size_that_is_none_is_refused() {
    t evict "$tmp" many
    exits 2 && complains 'many'
}

run evict_drops_as_much_as_asked_in_eviction_order
run clear_empties_a_store_for_good
run clear_of_a_space_leaves_the_others
run compact_never_grows_the_files_and_keeps_what_lives
run compact_gives_back_what_is_dead
run warm_reads_every_file
run a_size_that_is_none_is_refused
test_end
