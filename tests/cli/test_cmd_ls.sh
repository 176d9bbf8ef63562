#!/usr/bin/env bash
# tessera ls.
# shellcheck source=tests/cli/store_kit.sh
. "$(dirname "$0")/store_kit.sh"

a_table_ends_with_the_sum() {
    fill_store || return
    t ls "$store"
    exits 0 && is_silent || return
    [[ $(head -n 1 <<<"$out") == key*space*kind*tokens* ]] || fail "heading: $out" || return
    [[ $(tail -n 1 <<<"$out") == *' entries, '*' tokens, '* ]] || fail "sum: $out"
}

json_has_every_entry_and_its_order() {
    needs_python || return
    fill_store || return
    t ls --json --order=eviction "$store"
    exits 0 || return
    [ "$(json '[e["eviction_order"] for e in x["entries"]] == list(range(len(x["entries"])))')" = True ] ||
        fail "order: ${out:0:300}" || return
    [ "$(json 'all(len(e["key"]) == 32 and e["tokens"] > 0 for e in x["entries"])')" = True ] || fail "$out"
}

sizes_descend_with_order_size() {
    needs_python || return
    fill_store || return
    t ls --json --order=size "$store"
    [ "$(json 'sorted([e["bytes"] for e in x["entries"]], reverse=True) == [e["bytes"] for e in x["entries"]]')" = True ] ||
        fail "$out"
}

another_order_is_refused() {
    t ls --order=age "$tmp"
    exits 2 && complains 'age'
}

run a_table_ends_with_the_sum
run json_has_every_entry_and_its_order
run sizes_descend_with_order_size
run another_order_is_refused
test_end
