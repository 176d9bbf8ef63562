#!/usr/bin/env bash
# The bar of long commands: on a terminal, and only there.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"

# Long enough for the bar to appear.
long_trace() { seq 20000 | sed 's/.*/{"chunks":[[&,300],[1,50]]}/' >"$tmp/trace"; }

# Runs it with a terminal as stderr and stdout; what it wrote is in $out.
on_a_terminal() {
    command -v script >/dev/null || skip 'no script to make a terminal with' || return
    out=$(TERM=$1 script -qec "$lab replay --host-size=1M $tmp/trace" /dev/null </dev/null)
}

a_terminal_sees_a_bar_that_is_gone_at_the_end() {
    long_trace
    on_a_terminal xterm || return
    [[ $out =~ \[\#*\.*\]\ +[0-9]+\ %\ \ 1M,\ adaptive\ \(1\ of\ 1\) ]] || fail "no bar: ${out:0:300}" ||
        return
    local end=${out##*]}
    [[ $end == *$'\r\033[K'*'hit rate'* ]] || fail "the bar is still there: ${end:0:300}"
}

a_terminal_that_cannot_has_none() {
    long_trace
    on_a_terminal dumb || return
    [[ $out != *'%  1M'* ]] || fail "${out:0:300}"
}

a_pipe_sees_none() {
    long_trace
    lab replay --host-size=1M "$tmp/trace"
    exits 0 && is_silent
}

run a_terminal_sees_a_bar_that_is_gone_at_the_end
run a_terminal_that_cannot_has_none
run a_pipe_sees_none
test_end
