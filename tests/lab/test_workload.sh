#!/usr/bin/env bash
# The built-in trace.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"

it_is_the_same_on_every_machine() {
    lab replay --host-size=64M
    exits 0 || return
    [ "$(tail -n 1 <<<"$out" | awk '{print $4, $5}')" = '900 1761764' ] || fail "$out"
}

segments_find_more_than_prefixes() {
    local as_prefix as_trace
    needs_python || return
    lab replay --host-size=64M --json
    as_trace=$(json 'int(100 * x["runs"][0]["hit_rate"])')
    lab replay --host-size=64M --json --as=prefix
    as_prefix=$(json 'int(100 * x["runs"][0]["hit_rate"])')
    [ "$as_trace" -ge 60 ] || fail "hit rate $as_trace %" || return
    [ "$as_trace" -ge $((as_prefix + 20)) ] || fail "$as_trace % against $as_prefix %"
}

run it_is_the_same_on_every_machine
run segments_find_more_than_prefixes
test_end
