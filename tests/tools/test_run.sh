#!/usr/bin/env bash
# tests/run.sh: what failed may run once more, alone, and is named; what is a fault whenever it happens
# may not. What there is no time for is named, too.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"

# A tree whose only test does what $1 says the first time, and what $2 says the second time.
tree() {
    mkdir -p "$tmp/tests/x"
    cp tests/run.sh "$tmp/tests/run.sh"
    {
        echo '#!/usr/bin/env bash'
        echo "if [ -e '$tmp/ran' ]; then $2; else touch '$tmp/ran'; $1; fi"
    } >"$tmp/tests/x/test_it.sh"
    chmod +x "$tmp/tests/x/test_it.sh"
}
passes='echo "# 1 passed 0 failed 0 skipped"'
fails='echo "# 0 passed 1 failed 0 skipped"; exit 1'

tests_run() {
    out=$(TEST_AGAIN=${1:-2} TEST_UNSTEADY=$tmp/unsteady "$tmp/tests/run.sh" 2>&1)
    status=$?
}
# Ended with this status and this last line.
ended() {
    [ "$status $(tail -n1 <<<"$out")" = "$1 $2" ] || fail "status $status: $out"
}

a_test_that_passes_alone_is_named() {
    tree "$fails" "$passes"
    tests_run
    ended 0 '1 passed, 0 failed' || return
    [[ $out == *'FAILED  x/test_it'*'UNSTEADY x/test_it'* ]] || fail "$out" || return
    [ "$(cat "$tmp/unsteady")" = x/test_it ]
}

a_test_that_fails_twice_has_failed() {
    tree "$fails" "$fails"
    tests_run
    ended 1 '0 passed, 1 failed' || return
    [ ! -e "$tmp/unsteady" ]
}

nothing_runs_again_unless_it_is_asked_for() {
    tree "$fails" "$passes"
    tests_run 0
    ended 1 '0 passed, 1 failed'
}

what_a_sanitizer_has_seen_is_not_tried_again() {
    tree "echo 'WARNING: ThreadSanitizer: data race'; exit 66" "$passes"
    tests_run
    ended 1 '0 passed, 1 failed'
}

a_crash_is_not_tried_again() {
    # shellcheck disable=SC2016  # of the test
    tree 'kill -SEGV $$' "$passes"
    tests_run
    ended 1 '0 passed, 1 failed'
}

many_failures_are_no_matter_of_luck() {
    tree "$fails" "$passes"
    cp "$tmp/tests/x/test_it.sh" "$tmp/tests/x/test_other.sh"
    sed -i "s,$tmp/ran,$tmp/ran-other,g" "$tmp/tests/x/test_other.sh"
    tests_run 1
    ended 1 '0 passed, 2 failed'
}

no_test_begins_when_the_time_is_over() {
    tree "sleep 1.1; $passes" "$passes"
    cp "$tmp/tests/x/test_it.sh" "$tmp/tests/x/test_other.sh"
    local TEST_JOBS=1 TEST_UNTIL=$((EPOCHSECONDS + 1)) TEST_LEFT_OUT=$tmp/left-out
    export TEST_JOBS TEST_UNTIL TEST_LEFT_OUT
    tests_run
    ended 0 '1 passed, 0 failed' || return
    [[ $out == *'1 tests left out: the time is over'* ]] || fail "$out" || return
    [ "$(cat "$tmp/left-out")" = x/test_other ]
}

run a_test_that_passes_alone_is_named
run a_test_that_fails_twice_has_failed
run nothing_runs_again_unless_it_is_asked_for
run what_a_sanitizer_has_seen_is_not_tried_again
run a_crash_is_not_tried_again
run many_failures_are_no_matter_of_luck
run no_test_begins_when_the_time_is_over
test_end
