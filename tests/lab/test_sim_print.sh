#!/usr/bin/env bash
# What a simulation prints: the tiers there are, the limits, and JSON that says the same.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"

args=(--engines=10 --copies=2 --limit=100 "--index-bytes=1000,100")

tables_name_the_tiers_that_there_are() {
    lab simulate "${args[@]}"
    exits 0 && is_silent && says '10 engines, 10 caches, 2 copies' && says 'host ' || return
    [[ $out != *redis* && $out != *s3* ]] || fail "tiers that are not there: $out" || return
    lab simulate "${args[@]}" --redis=2x1G --s3 --disk-size=1G --lose-redis=1
    exits 0 && says 'disk ' && says 's3 ' && says 'busiest redis node' && says 'lost 0 engines and 1 redis nodes' &&
        says 'what breaks first' && says 'index: 1000 bytes'
}

json_says_the_same() {
    needs_python || return
    lab simulate "${args[@]}" --redis=2x1G --lose-engines=2
    local rate
    rate=$(grep -oE '^hit rate [0-9.]+' <<<"$out" | grep -oE '[0-9.]+')
    lab simulate "${args[@]}" --redis=2x1G --lose-engines=2 --json
    exits 0 && is "$(json "'%.1f' % (100 * x['hit_rate'])")" "$rate" || return
    is "$(json "abs(sum(t['hit_rate'] for t in x['tiers'].values()) - x['hit_rate']) < 1e-5")" True || return
    is "$(json "sorted(x['tiers']), len(x['windows']), len(x['limits'])")" "(['host', 'redis'], 50, 6)" || return
    is "$(json "x['loss']['engines']")" 2
}

run tables_name_the_tiers_that_there_are
run json_says_the_same
test_end
