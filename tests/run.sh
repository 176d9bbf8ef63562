#!/usr/bin/env bash
# Runs every test: the programs below $B/tests whose source is still in tests/, and the scripts
# tests/*/test_*.sh, or those of both whose name (base/test_mem, abi/test_install) matches the glob
# given. Each has a time limit. A test ends with "# N passed N failed N skipped" (test.h, test.sh),
# failures print their whole output, and the last line is "N passed, N failed" on its own.
set -u
cd "$(dirname "$0")/.." || exit 1
export B=${B:-build}
# Tests ask for absurd sizes and expect an error, not the end, also from a sanitizer's allocator.
export ASAN_OPTIONS=allocator_may_return_null=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}
export TSAN_OPTIONS=allocator_may_return_null=1${TSAN_OPTIONS:+:$TSAN_OPTIONS}
pattern=${1:-*}
limit=${TEST_LIMIT_S:-300}
passed=0 failed=0 skipped=0
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

list() {
    find tests -mindepth 2 -maxdepth 2 \( -name 'test_*.c' -o -name 'test_*.sh' \) | sort
}

while IFS= read -r source; do
    name=${source#tests/} name=${name%.*}
    # shellcheck disable=SC2053  # the pattern is meant as a glob
    [[ $name == $pattern ]] || continue
    program=$source
    [[ $source == *.c ]] && program=$B/tests/$name
    start=$SECONDS
    timeout -k 5 "$limit" "$program" >"$log" 2>&1 </dev/null
    status=$?
    took=$((SECONDS - start))
    read -r p f s < <(awk '/^# [0-9]+ passed/ {p=$2; f=$4; s=$6} END {print p+0, f+0, s+0}' "$log")
    if [ "$status" -ne 0 ] && [ "$status" -ne 77 ] && [ "$f" -eq 0 ]; then
        f=1 # crashed, timed out or a sanitizer spoke: no summary line, or an untrue one
        [ "$status" -eq 124 ] && echo "    stopped after $limit s (TEST_LIMIT_S)" >>"$log"
        echo "    exit status $status" >>"$log"
    elif [ $((p + f + s)) -eq 0 ]; then
        f=1 # a test that says nothing has tested nothing
        echo "    no line '# N passed N failed N skipped'" >>"$log"
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" -gt 0 ]; then
        echo "FAILED  $name"
        cat "$log"
    else
        printf '%-40s %4d passed%s%s\n' "$name" "$p" "$([ "$s" -gt 0 ] && echo ", $s skipped")" \
            "$([ "$took" -ge 5 ] && echo ", $took s")"
        grep -E '^ +skipped: ' "$log"
    fi
done < <(list)

if [ $((passed + failed + skipped)) -eq 0 ]; then
    echo "no test matched '$pattern'" >&2
    exit 1
fi
[ "$skipped" -gt 0 ] && echo "$skipped skipped"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
