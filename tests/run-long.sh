#!/usr/bin/env bash
# The slow tier (make check-long): every fuzzer of $B/fuzz for FUZZ_S seconds (60), then all tests
# with TESSERA_TEST_LONG=1, which lets them do more rounds. A fuzzer begins with its committed corpus
# tests/fuzz/corpus/<name>; what it finds new is kept in $B/fuzz/corpus/<name>, and an input that
# breaks something is left in $B/fuzz as <name>-crash-... for `$B/fuzz/<name> FILE`.
#
#   tests/run-long.sh        both
#   tests/run-long.sh fuzz   the fuzzers alone
#   TEST_JOBS=2              how many at once
set -u
cd "$(dirname "$0")/.." || exit 1
export B=${B:-build}
seconds=${FUZZ_S:-60}
failed=0

# One write for what is said, for others print at the same time.
fuzz_one() {
    local name=$1 seconds=$2 found seeds=() log
    found=$B/fuzz/corpus/${name#fuzz_} log=$B/fuzz/$name.log
    [ -d "tests/fuzz/corpus/${name#fuzz_}" ] && seeds=("tests/fuzz/corpus/${name#fuzz_}")
    mkdir -p "$found"
    # -timeout: one input that takes 10 s is a hang; a broken input makes the exit status not 0.
    if timeout -k 10 $((seconds + 120)) "$B/fuzz/$name" -max_total_time="$seconds" -timeout=10 \
        -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$B/fuzz/$name-" \
        "$found" "${seeds[@]}" >"$log" 2>&1; then
        printf '%-40s %s runs in %s s\n' "fuzz/$name" \
            "$(awk '/stat::number_of_executed_units/ {print $2}' "$log")" "$seconds"
    else
        printf '%s\n' "FAILED  fuzz/$name"$'\n'"$(tail -60 "$log")"
        return 1
    fi
}
export -f fuzz_one

# Those that were built: without hiredis, libcurl or expat some are not.
fuzzers() {
    local source name
    for source in tests/fuzz/fuzz_*.c; do
        name=$(basename "$source" .c)
        if [ -x "$B/fuzz/$name" ]; then echo "$name"; else echo "fuzz/$name: not built" >&2; fi
    done
}
[ -d "$B/fuzz" ] || { echo "no fuzzers in $B/fuzz: make fuzz" >&2; exit 1; }
fuzzers | xargs -r -P "${TEST_JOBS:-2}" -I '{}' bash -c "fuzz_one {} $seconds" || failed=1

if [ "${1-}" != fuzz ]; then
    TESSERA_TEST_LONG=1 TEST_LIMIT_S=${TEST_LIMIT_S:-1800} tests/run.sh || failed=$((failed + 1))
fi
[ "$failed" -eq 0 ]
