#!/usr/bin/env bash
# tools/bench-check: names the case that became worse, and lets noise and better ones pass. The benches are
# scripts that print what the test says.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"
command -v python3 >/dev/null || { skip 'no python3'; test_end; exit; }

setup() {
    rm -rf "$tmp/bench" "$tmp/history" "$tmp"/*.json
    mkdir -p "$tmp/bench"
    for bench in lookup index host copy policy; do
        cat >"$tmp/bench/bench_$bench" <<END
#!/bin/sh
cat "$tmp/$bench.json" 2>/dev/null || echo '{"bench":"bench_$bench","case":"other","value":1,"unit":"ns","baseline":1,"ratio":1}'
END
        chmod +x "$tmp/bench/bench_$bench"
    done
    cat >"$tmp/ratios" <<'END'
# a comment
bench_lookup | split | 2.0 | 0.25 | less
bench_copy | scatter | 0.9 | 0.25 | more
END
}

# Values of the two cases; their baseline is 100.
results() {
    echo '{"bench":"bench_lookup","case":"split","value":'"$1"',"unit":"ns","baseline":100,"ratio":0}' >"$tmp/lookup.json"
    echo '{"bench":"bench_copy","case":"scatter","value":'"$2"',"unit":"GB/s","baseline":100,"ratio":0}' >"$tmp/copy.json"
}
check() {
    out=$(B=$tmp RATIOS=$tmp/ratios HISTORY=$tmp/history tools/bench-check "$@" 2>&1)
    status=$?
}

what_is_within_the_spread_passes() {
    setup
    results 249 68
    check --runs=1
    [ "$status" -eq 0 ] || fail "status $status: $out" || return
    results 10 500 # much better
    check --runs=1
    [ "$status" -eq 0 ] || fail "status $status: $out"
}

what_is_worse_is_named() {
    setup
    results 251 90
    check --runs=1
    [[ $status == 1 && $out == *'bench-check: bench_lookup: split: worse than allowed'* ]] || fail "$status: $out" || return
    [[ $out != *'scatter: worse'* ]] || fail "$out" || return
    results 200 67
    check --runs=1
    [[ $status == 1 && $out == *'bench-check: bench_copy: scatter: worse than allowed'* ]] || fail "$status: $out"
}

a_case_that_is_gone_is_worse() {
    setup
    results 200 90
    echo '{"bench":"bench_lookup","case":"renamed","value":1,"unit":"ns","baseline":1,"ratio":1}' >"$tmp/lookup.json"
    check --runs=1
    [[ $status == 1 && $out == *'bench_lookup: split'*'was not run'* ]] || fail "$status: $out"
}

every_case_is_said_as_it_is_run() {
    setup
    results 210 60
    check --runs=2
    [ "$(grep -cE '^run [12] of 2 bench_lookup: split +2.1  recorded 2, allowed at most 2.5$' <<<"$out")" -eq 2 ] || fail "$out" || return
    [ "$(grep -cE '^run [12] of 2 bench_copy: scatter +0.6  recorded 0.9, allowed at least 0.675  WORSE$' <<<"$out")" -eq 2 ] ||
        fail "$out" || return
    grep -qE '^run 1 of 2 bench_index: other +1  not recorded$' <<<"$out" || fail "$out"
}

# Each run of the bench takes the next of three values.
the_median_of_the_runs_counts() {
    setup
    results 0 90
    printf '%s\n' 900 220 210 >"$tmp/values"
    cat >"$tmp/bench/bench_lookup" <<END
#!/bin/sh
echo '{"bench":"bench_lookup","case":"split","value":'"\$(head -n 1 $tmp/values)"',"unit":"ns","baseline":100,"ratio":0}'
sed -i 1d $tmp/values
END
    check --runs=3
    [ "$status" -eq 0 ] || fail "status $status: $out" || return
    [[ $(grep '^bench_lookup: split' <<<"$out") == *' 2.2' ]] || fail "$out"
}

the_clock_is_the_processors() {
    setup
    # shellcheck disable=SC2016  # the bench expands
    printf '#!/bin/sh\necho "$@" >%s/flags\n' "$tmp" >"$tmp/bench/bench_lookup"
    check --runs=1 --only=lookup
    grep -q -- '--json --cpu' "$tmp/flags" || fail "$(cat "$tmp/flags")"
}

without_recorded_ratios_it_says_what_to_run() {
    setup
    results 200 90
    rm "$tmp/ratios"
    check --runs=1
    [[ $status == 2 && $out == *'nothing is recorded'*'--record'* ]] || fail "$status: $out" || return
    check --runs=1 --record
    [ "$status" -eq 0 ] || fail "status $status: $out" || return
    grep -qx 'bench_lookup | split | 2 | 0.25 | less' "$tmp/ratios" || fail "$(cat "$tmp/ratios")"
}

the_table_shows_the_runs_before() {
    setup
    results 210 90
    check --runs=1
    results 220 90
    check --runs=2
    [[ $(grep '^bench_lookup: split' <<<"$out") == *2.1*2.2* ]] || fail "$out" || return
    [ "$(wc -l <"$tmp/history")" -eq 2 ] || fail "$(cat "$tmp/history")"
}

record_writes_what_was_measured() {
    setup
    results 300 80
    check --runs=1 --record
    [ "$status" -eq 0 ] || fail "status $status: $out" || return
    [ "$(grep -cx -e '# a comment' -e 'bench_lookup | split | 3 | 0.25 | less' -e 'bench_copy | scatter | 0.8 | 0.25 | more' \
        "$tmp/ratios")" -eq 3 ] || fail "$(cat "$tmp/ratios")" || return
    ! grep -q other "$tmp/ratios" || fail "new cases: $(cat "$tmp/ratios")" || return
    results 600 80
    check --runs=1 --record --only=copy
    grep -qx 'bench_lookup | split | 3 | 0.25 | less' "$tmp/ratios" || fail "another bench: $(cat "$tmp/ratios")"
}

mistakes_end_with_2() {
    setup
    check --wrong
    [ "$status" -eq 2 ] || fail "status $status" || return
    echo 'bench_lookup | split' >>"$tmp/ratios"
    results 200 90
    check --runs=1
    [[ $status == 2 && $out == *'not a line of five fields'* ]] || fail "$status: $out" || return
    setup
    printf '#!/bin/sh\necho no >&2\nexit 1\n' >"$tmp/bench/bench_index"
    check --runs=1
    [[ $status == 2 && $out == *'bench_index failed: no'* ]] || fail "$status: $out"
}

run what_is_within_the_spread_passes
run what_is_worse_is_named
run a_case_that_is_gone_is_worse
run every_case_is_said_as_it_is_run
run the_median_of_the_runs_counts
run the_clock_is_the_processors
run without_recorded_ratios_it_says_what_to_run
run the_table_shows_the_runs_before
run record_writes_what_was_measured
run mistakes_end_with_2
test_end
