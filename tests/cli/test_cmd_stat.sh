#!/usr/bin/env bash
# tessera stat.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"

table_shows_what_is_not_zero() {
    t stat --host_size=4M
    exits 0 && is_silent || return
    [[ $(head -n 1 <<<"$out") == metric*value*meaning ]] || fail "heading: $out" || return
    grep -qE '^host_bytes +4\.0 MiB +Host memory' <<<"$out" || fail "host_bytes: $out" || return
    [[ $out != *$'\nlookups '* ]] || fail "zeros: $out"
}

all_shows_zeros_too() {
    t stat --host_size=4M --all
    exits 0 || return
    grep -qE '^lookups +0 +Lookups$' <<<"$out" || fail "lookups: $out" || return
    grep -qE '^lookup_seconds +0 ns +Duration of a lookup \(mean\)$' <<<"$out" || fail "$out"
}

json_is_one_object_that_python_reads() {
    needs_python || return
    t stat --host_size=4M --json
    exits 0 || return
    [ "$(json 'x["lookups"]')" = 0 ] || fail "$out" || return
    [ "$(json 'x["host_bytes"]')" = 4194304 ] || fail "$out" || return
    [ "$(json 'x["lookup_ns"]["count"]')" = 0 ] || fail "$out"
}

prometheus_has_help_type_and_value() {
    t stat --host_size=4M --prometheus
    exits 0 && says '# TYPE tessera_lookups_total counter
tessera_lookups_total 0' && says '# TYPE tessera_lookup_seconds histogram' || return
    # Every line is a comment of the two kinds or a sample.
    ! grep -vE '^# (HELP|TYPE) tessera_[a-z0-9_]+ .+$|^tessera_[a-z0-9_]+(\{[a-z]+="[^"]*"\})? [0-9.]+$' \
        <<<"$out" || fail 'lines of no known form'
}

two_formats_at_once_are_refused() {
    t stat --json --prometheus
    exits 2 && complains 'not both'
}

a_cache_that_cannot_be_opened_is_a_failure() {
    # 16 TiB reserve nothing, but their index would.
    (
        ulimit -v 4000000 2>/dev/null || exit 77
        t stat --host_size=16T
        exits 1 && complains ''
    )
    local result=$?
    [ "$result" -ne 77 ] || skip 'no limit can be set'
    return "$result"
}

run table_shows_what_is_not_zero
run all_shows_zeros_too
run json_is_one_object_that_python_reads
run prometheus_has_help_type_and_value
run two_formats_at_once_are_refused
grep -q '^SAN=.' "$B/flags" || run a_cache_that_cannot_be_opened_is_a_failure
test_end
