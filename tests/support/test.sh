#!/usr/bin/env bash
# test.sh - the same framework as test.h for tests that drive programs: source it, write functions
# whose names are promises, `run` each, end with `test_end`. A function fails when it returns not 0
# (`fail "why"` says why) and is skipped when it returns 77 (`skip "why"`). Every function runs in
# a subshell of its own with an empty folder in $tmp, and from the top of the tree.
set -u
# Characters beyond ASCII mean the same wherever the tests run.
export LC_ALL=C.UTF-8
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
B=${B:-build}
# What this build was made with, as arguments for make ("CC=gcc" ...), and the compiler with the
# sanitizer that a program must have to be linked with its library.
mapfile -t built_with <"$B/flags" || exit 1
CC=$(sed -n 's/^CC=//p' "$B/flags")
san=$(sed -n 's/^SAN=\(..*\)/-fsanitize=\1/p' "$B/flags")
export B CC san built_with
n_passed=0 n_failed=0 n_skipped=0
tmp_all=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp_all"' EXIT

fail() {
    echo "    $*"
    return 1
}

skip() {
    echo "    skipped: $*"
    return 77
}

# For scripts that start servers: skipped as a whole in a sandbox that refuses shared memory.
needs_shared_memory() {
    command -v python3 >/dev/null || return 0
    python3 -c 'import os; os.close(os.memfd_create("sandbox"))' 2>/dev/null && return
    skip 'shared memory (memfd) is refused here'
    echo '# 0 passed 0 failed 1 skipped'
    exit 77
}

run() {
    local status
    tmp=$tmp_all/$1
    mkdir -p "$tmp"
    ("$1")
    status=$?
    case $status in
    0) n_passed=$((n_passed + 1)) && echo "  ok      $1" ;;
    77) n_skipped=$((n_skipped + 1)) && echo "  skipped $1" ;;
    *) n_failed=$((n_failed + 1)) && echo "  FAILED  $1" ;;
    esac
    rm -rf "$tmp"
}

test_end() {
    echo "# $n_passed passed $n_failed failed $n_skipped skipped"
    [ "$n_failed" -eq 0 ] || exit 1
    [ "$n_passed" -gt 0 ] || exit 77
    exit 0
}
