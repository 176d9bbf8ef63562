#!/usr/bin/env bash
# tessera doctor as a whole; its checks of memory and disk have test_checks.sh.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"

every_line_has_a_verdict_and_the_last_one_counts() {
    local n
    t doctor --host_size=1M
    exits 0 && is_silent || return
    n=$(grep -cE '^(ok|warn) +[A-Za-z_ ]+[^ ]' <<<"$out")
    [ "$n" -ge 10 ] || fail "only $n lines: $out" || return
    ! grep -vE '^(ok|warn) |^      -> .|^[0-9]+ ok, [0-9]+ warn, 0 fail$' <<<"$out" ||
        fail 'lines of no known form' || return
    [ "$(grep -cE '^warn' <<<"$out")" = "$(tail -n 1 <<<"$out" | awk '{print $3}')" ] ||
        fail "warnings are miscounted: $out"
}

a_warning_says_what_to_do() {
    t doctor --host_size=1M --io_threads=64
    exits 0 || return
    [ "$(getconf _NPROCESSORS_ONLN)" -lt 64 ] || skip 'too many cores' || return
    grep -A 1 -E '^warn +cores .*io_threads is 64' <<<"$out" | grep -q 'set io_threads to at most' ||
        fail "$out"
}

a_failure_is_exit_status_1() {
    t doctor --host_size=16T
    exits 1 && says ' 1 fail'
}

json_has_the_same_verdicts() {
    needs_python || return
    t doctor --host_size=1M --json
    exits 0 || return
    [ "$(json 'x["fail"]')" = 0 ] || fail "$out" || return
    [ "$(json 'len(x["checks"]) == x["ok"] + x["warn"]')" = True ] || fail "$out" || return
    [ "$(json 'all(c["status"] == "ok" or c["advice"] for c in x["checks"])')" = True ] ||
        fail "a warning without advice: $out" || return
    t doctor --host_size=16T --json
    exits 1 && is "$(json 'x["fail"]')" 1
}

run every_line_has_a_verdict_and_the_last_one_counts
run a_warning_says_what_to_do
run a_failure_is_exit_status_1
run json_has_the_same_verdicts
test_end
