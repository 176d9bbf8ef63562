#!/usr/bin/env bash
# tessera-lab simulate: its flags, and what it says of wrong ones.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"

wrong_flags_are_refused_by_name() {
    local flag
    for flag in --engines=0 --per-daemon=x --redis=4 --redis=0x1G --redis=4x1K --kv=32 --kv=0x64 --kv=1x3 \
        --route=random --as=words --rate=-1 --copies=0 --common=3 --lose-at=1 --index-bytes=5 --index-bytes=a,b \
        --lose-redis=1 --host-size=many; do
        lab simulate --limit=5 "$flag"
        exits 2 && complains "${flag%%=*}" || return
    done
}

a_trace_that_is_none_is_named() {
    lab simulate "$tmp/none"
    exits 1 && complains "$tmp/none"
}

the_rate_of_an_engine_decides_how_many_copies_there_are() {
    needs_python || return
    # 10 requests in 5 s; 40 engines with 0.5 a second ask 100 in that time.
    for ((i = 1; i <= 10; i++)); do echo "{\"chunks\":[[$i,10]],\"timestamp\":$((i * 500))}"; done >"$tmp/trace"
    lab simulate --json --index-bytes=1,1 --engines=40 --rate=0.5 "$tmp/trace"
    exits 0 && is "$(json "x['copies'], x['requests'], x['seconds']")" '(10, 100, 5.0)' || return
    # Without timestamps it is one request a second.
    for ((i = 1; i <= 10; i++)); do echo "{\"chunks\":[[$i,10]]}"; done >"$tmp/trace"
    lab simulate --json --index-bytes=1,1 --engines=40 --rate=0.5 "$tmp/trace"
    exits 0 && is "$(json "x['copies'], x['seconds']")" '(20, 10.0)'
}

the_index_is_measured_in_a_real_cache() {
    needs_python || return
    lab simulate --json --engines=2 --copies=1 --limit=5
    exits 0 && is "$(json "100 < x['index']['cold_entry_bytes'] < x['index']['host_entry_bytes'] < 20000")" True
}

run wrong_flags_are_refused_by_name
run a_trace_that_is_none_is_named
run the_rate_of_an_engine_decides_how_many_copies_there_are
run the_index_is_measured_in_a_real_cache
test_end
