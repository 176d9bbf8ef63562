#!/usr/bin/env bash
# Runs every test: the programs below $B/tests whose source is still in tests/, and the scripts
# tests/*/test_*.sh, or those of both whose name (base/test_mem, abi/test_install) matches the glob
# given. A test ends with "# N passed N failed N skipped" (test.h, test.sh); failures print their
# whole output; the last line is "N passed, N failed" on its own.
#
#   tests/run.sh [glob]      B=build           what to test
#                            TEST_JOBS=2       how many at once
#                            TEST_LIMIT_S=300  when one is stopped
#                            TEST_AGAIN=0      so many tests that failed may run once more, alone, when
#                                              the others have ended; see run_again
#                            TEST_UNSTEADY=    file to which the names of those are added that passed then
#                            TEST_UNTIL=       second since 1970 from which on no test begins: the others are
#                                              left out, counted in the last lines, and
#                            TEST_LEFT_OUT=    file to which their names are added
set -u
cd "$(dirname "$0")/.." || exit 1
export B=${B:-build}
pattern=${1:-*}
# Tests ask for absurd sizes and expect an error, not the end, also from a sanitizer's allocator.
export ASAN_OPTIONS=allocator_may_return_null=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}
export TSAN_OPTIONS=allocator_may_return_null=1${TSAN_OPTIONS:+:$TSAN_OPTIONS}
# On Arm the address sanitizer's search for leaks takes seconds of processor time in every process
# (its allocator walks all of a 48-bit space): there it is kept for the rooms that own memory for
# others, and left out for the rest and for tests that start many programs.
dear_leaks=''
[ "$(uname -m)" = aarch64 ] && dear_leaks=1
export dear_leaks results
results=$(mktemp -d) || exit 1
trap 'rm -rf "$results"' EXIT

# Runs the test of one source file, prints its line or its whole output, and leaves its counts.
run_one() {
    local source=$1 name program log start took status p f s limit=${TEST_LIMIT_S:-300}
    name=${source#tests/} name=${name%.*}
    log=$results/${name//\//.} program=$source start=$SECONDS
    if [ "$EPOCHSECONDS" -ge "${TEST_UNTIL:-$((EPOCHSECONDS + 1))}" ]; then
        echo "$name" >>"$results/left_out"
        return
    fi
    [[ $source == *.c ]] && program=$B/tests/$name
    if [[ $dear_leaks && $source != tests/@(blend|cache|connector|daemon|deliver|served|tier)/*.c ]]; then
        local -x ASAN_OPTIONS=detect_leaks=0:$ASAN_OPTIONS
    fi
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
    echo "$p $f $s" >"$log.counts"
    # In one write, for others print at the same time.
    if [ "$f" -gt 0 ]; then
        echo "$source $status" >"$log.failed"
        printf '%s\n' "FAILED  $name"$'\n'"$(cat "$log")"
    else
        [ "$s" -gt 0 ] && s=", $s skipped" || s=''
        [ "$took" -ge 5 ] && s="$s, $took s"
        printf '%-40s %4d passed%s\n' "$name" "$p" \
            "$s$(grep -E '^ +skipped: ' "$log" | sort -u | sed '1s/^/\n/')"
    fi
}
export -f run_one

find tests -mindepth 2 -maxdepth 2 \( -name 'test_*.c' -o -name 'test_*.sh' \) | sort |
    while IFS= read -r source; do
        name=${source#tests/}
        # shellcheck disable=SC2053  # the pattern is meant as a glob
        [[ ${name%.*} == $pattern ]] && echo "$source"
    done | xargs -r -P "${TEST_JOBS:-2}" -I '{}' bash -c 'run_one {}'

# A machine that others use may be too slow for a test, and such a test may pass when it runs alone. It
# is named as unsteady, with what it printed the first time, because it needs to be mended all the same.
# What a sanitizer has seen and what has crashed is a fault, however seldom it happens: never tried again.
run_again() {
    local source status log again=()
    for log in "$results"/*.failed; do
        [ -e "$log" ] || return 0
        read -r source status <"$log"
        [ "$status" -ge 128 ] && return
        grep -qE 'Sanitizer|runtime error:' "${log%.failed}" && return
        again+=("$source")
    done
    [ "${#again[@]}" -le "${TEST_AGAIN:-0}" ] || return
    for source in "${again[@]}"; do
        log=${source#tests/} log=${log%.*}
        echo "AGAIN   $log"
        rm -f "$results/${log//\//.}.failed"
        run_one "$source"
        [ -e "$results/${log//\//.}.failed" ] && continue
        echo "UNSTEADY $log: failed, and passed alone"
        [ -z "${TEST_UNSTEADY:-}" ] || echo "$log" >>"$TEST_UNSTEADY"
    done
}
[ "${TEST_AGAIN:-0}" -eq 0 ] || run_again

read -r passed failed skipped < <(find "$results" -name '*.counts' -exec cat {} + |
    awk '{p += $1; f += $2; s += $3} END {print p + 0, f + 0, s + 0}')
if [ $((passed + failed + skipped)) -eq 0 ] && [ ! -e "$results/left_out" ]; then
    echo "no test matched '$pattern'" >&2
    exit 1
fi
[ "$skipped" -gt 0 ] && echo "$skipped skipped"
if [ -e "$results/left_out" ]; then
    echo "$(wc -l <"$results/left_out") tests left out: the time is over"
    [ -z "${TEST_LEFT_OUT:-}" ] || cat "$results/left_out" >>"$TEST_LEFT_OUT"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
