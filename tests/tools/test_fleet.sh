#!/usr/bin/env bash
# tools/fleet: three nodes in network namespaces that share a server find more than three separate
# caches of the same memory in all; simulated caches find what real ones do.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"

# Questions about few of many documents, some of them much more often than others.
make_trace() {
    awk 'BEGIN {
        seed = 7
        for (q = 0; q < 500; q++) {
            line = "";
            split("", seen)
            for (n = 0; n < 5;) {
                seed = (seed * 1103515245 + 12345) % 2147483648
                u = seed / 2147483648
                doc = int(u * u * 800)
                if (doc in seen) continue
                seen[doc] = 1
                line = line (n++ ? "," : "") "[" doc "," 150 + doc % 300 "]"
            }
            print "{\"chunks\":[" line "]}"
        }
    }'
}

sharing_a_server_finds_more_than_separate_caches() {
    local out status
    make_trace >"$tmp/trace.jsonl"
    out=$(SIZE=10M SIMULATE=1 tools/fleet --json "$tmp/trace.jsonl" 2>&1)
    status=$?
    if [ "$status" -eq 77 ]; then
        skip "${out##*fleet: }"
        return
    fi
    [ "$status" -eq 0 ] || fail "ended with $status: $out" || return
    echo "    $out"
    [[ $out == *'"nodes":3'*'"separate":'*'"shared":'*'"read_bytes":'*'"simulated":'* ]] || fail "said: $out" || return
    # Separate caches do not depend on anybody's speed; what a server has evicted by then does.
    awk -F'"separate":' '{split($2, real, ","); split($3, simulated, ",")
        exit !(simulated[1] > 0.9 * real[1] && simulated[1] < 1.1 * real[1])}' <<<"${out##*$'\n'}" ||
        fail "simulated separate caches find something else: $out" || return
    ! ip netns list | grep -q tsr-fleet || fail "namespaces are left: $(ip netns list)"
}

without_a_trace_it_says_how() {
    local out
    out=$(tools/fleet 2>&1) && fail "ended well" && return
    [[ $out == *'tools/fleet [--json] TRACE'* ]] || fail "said: $out"
}

run sharing_a_server_finds_more_than_separate_caches
run without_a_trace_it_says_how
test_end
