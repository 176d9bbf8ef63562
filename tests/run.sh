#!/usr/bin/env bash
# Runs every test program below $B/tests (or those matching a glob), each with a time limit, and ends
# with "N passed, N failed" on a line of its own. Failures print their whole output.
set -u
B=${B:-build}
pattern=${1:-*}
[ -n "$pattern" ] || pattern='*'
limit=${TEST_LIMIT_S:-300}
passed=0 failed=0 skipped=0
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

while IFS= read -r program; do
    name=${program#"$B"/tests/}
    # shellcheck disable=SC2053  # the pattern is meant as a glob
    [[ $name == $pattern ]] || continue
    timeout -k 5 "$limit" "$program" >"$log" 2>&1
    status=$?
    read -r p f s < <(awk '/^# [0-9]+ passed/ {p=$2; f=$4; s=$6} END {print p+0, f+0, s+0}' "$log")
    if [ "$status" -ne 0 ] && [ "$status" -ne 77 ] && [ "$f" -eq 0 ]; then
        f=1 # crashed, timed out or a sanitizer spoke: no summary line, or an untrue one
        echo "    exit status $status" >>"$log"
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" -gt 0 ]; then
        echo "FAILED  $name"
        cat "$log"
    else
        printf '%-40s %4d passed%s\n' "$name" "$p" "$([ "$s" -gt 0 ] && echo ", $s skipped")"
        grep -E '^ +skipped: ' "$log"
    fi
done < <(find "$B/tests" -type f -name 'test_*' -perm -u+x | sort)

if [ "$passed" -eq 0 ] && [ "$failed" -eq 0 ]; then
    echo "no test matched '$pattern'" >&2
    exit 1
fi
[ "$skipped" -gt 0 ] && echo "$skipped skipped"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
