#!/usr/bin/env bash
# The simulator as a whole: small fleets whose results are known by hand, and one cache beside a real one.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"

# KV of 64 bytes a token, as `tessera-lab replay` has, and no measuring of the index.
simulate() {
    lab simulate --json --kv=1x32 --host_page_size=4K --host-size=1M --index-bytes=1,1 --copies=1 --common=2 "$@"
}
# Tokens reused from a tier.
from() { json "x['tiers']['$1']['tokens']"; }
same_four() { printf '{"chunks":[[7,100]]}\n%.0s' 1 2 3 4 >"$tmp/trace"; }

one_engine_finds_a_prefix_up_to_the_first_change() {
    needs_python || return
    printf '%s\n' '{"hash_ids":[1,2,3],"input_length":1536}' \
        '{"hash_ids":[1,2,4],"input_length":1100}' '{"hash_ids":[5,2,3],"input_length":1536}' \
        >"$tmp/trace"
    simulate --engines=1 --chunk_size=512 "$tmp/trace"
    exits 0 && is "$(json "x['tokens_asked'], x['tokens_reused']")" '(4172, 1024)' || return
    simulate --engines=1 --chunk_size=256 "$tmp/trace"
    exits 0 && is "$(json "x['tokens_reused']")" 1024 || return
    # Blocks of 384 tokens cut across those of the trace: 1100 tokens have two that are the same.
    simulate --engines=1 --chunk_size=384 "$tmp/trace"
    exits 0 && is "$(json "x['tokens_reused']")" 768
}

engines_share_what_a_server_has() {
    needs_python || return
    same_four
    simulate --engines=2 "$tmp/trace"
    exits 0 && is "$(from host)" 200 || return
    simulate --engines=2 --redis=1x1M "$tmp/trace"
    exits 0 && is "$(from host)" 200 && is "$(from redis)" 100 || return
    is "$(json "x['tiers']['redis']['read_bytes'], x['tiers']['redis']['write_bytes']")" '(6400, 6400)' || return
    simulate --engines=2 --s3 "$tmp/trace"
    exits 0 && is "$(from s3)" 100 && is "$(json "x['index']['s3_entries']")" 1
}

engines_of_one_tesserad_have_one_cache() {
    needs_python || return
    same_four
    simulate --engines=4 --per-daemon=2 "$tmp/trace"
    exits 0 && is "$(json "x['caches']")" 2 && is "$(from host)" 200 || return
    simulate --engines=4 --per-daemon=4 "$tmp/trace"
    exits 0 && is "$(json "x['caches']")" 1 && is "$(from host)" 300
}

a_disk_keeps_what_memory_cannot() {
    needs_python || return
    # Each fills all of host memory.
    printf '%s\n' '{"chunks":[[1,16384]]}' '{"chunks":[[2,16384]]}' '{"chunks":[[1,16384]]}' >"$tmp/trace"
    simulate --engines=1 "$tmp/trace"
    exits 0 && is "$(json "x['tokens_reused'], x['evictions']")" '(0, 2)' || return
    simulate --engines=1 --disk-size=64M "$tmp/trace"
    exits 0 && is "$(from disk)" 16384
}

lost_engines_and_nodes_are_replaced_by_empty_ones() {
    needs_python || return
    same_four
    simulate --engines=2 --lose-engines=1 "$tmp/trace"
    exits 0 && is "$(from host)" 100 || return
    simulate --engines=4 --redis=1x1M "$tmp/trace"
    exits 0 && is "$(from redis)" 300 || return
    simulate --engines=4 --redis=1x1M --lose-redis=1 "$tmp/trace"
    exits 0 && is "$(from redis)" 200 && is "$(json "'loss' in x")" True
}

the_loss_is_seen_before_and_after() {
    needs_python || return
    # 100 requests for one text: all hit but the first one and the first one after the loss, which is the
    # whole of one window of two requests minus one.
    for ((i = 0; i < 100; i++)); do echo '{"chunks":[[1,50]]}'; done >"$tmp/trace"
    simulate --engines=1 --lose-engines=1 --duration=1000 "$tmp/trace"
    exits 0 && is "$(json "x['loss']['before'], x['loss']['after'], x['loss']['recovered_s']")" '(1.0, 0.5, 20.0)'
}

copies_share_only_what_is_common() {
    needs_python || return
    echo '{"chunks":[[1,100],[2,10]]}' >"$tmp/trace"
    simulate --engines=1 --copies=4 --common=2 "$tmp/trace"
    exits 0 && is "$(json "x['requests'], x['tokens_reused']")" '(4, 0)' || return
    simulate --engines=1 --copies=4 --common=0 "$tmp/trace"
    exits 0 && is "$(json "x['tokens_reused']")" 330 || return
    printf '%s\n' '{"chunks":[[1,100],[2,10]]}' '{"chunks":[[1,100],[3,10]]}' >"$tmp/trace"
    simulate --engines=1 --copies=2 --common=1 "$tmp/trace"
    exits 0 && is "$(json "x['tokens_reused']")" 300
}

routing_by_prefix_keeps_a_chat_on_one_engine() {
    needs_python || return
    for ((i = 0; i < 4; i++)); do
        printf '%s\n' '{"hash_ids":[1],"input_length":512}' '{"hash_ids":[2],"input_length":512}'
    done >"$tmp/trace"
    simulate --engines=4 "$tmp/trace"
    exits 0 && is "$(json "x['tokens_reused']")" $((4 * 512)) || return
    simulate --engines=4 --route=prefix "$tmp/trace"
    exits 0 && is "$(json "x['tokens_reused']")" $((6 * 512))
}

a_seed_gives_the_same_fleet_every_time() {
    local first
    local args=(--engines=20 --copies=5 --common=0.01 --redis=2x1M --limit=200)
    simulate "${args[@]}" --seed=3
    exits 0 || return
    first=$out
    simulate "${args[@]}" --seed=3
    is "$out" "$first" || return
    simulate "${args[@]}" --seed=4
    [ "$out" != "$first" ] || fail "another seed gives the same result"
}

one_cache_finds_what_a_real_one_finds() {
    needs_python || return
    local size real
    for size in 1M 4M; do
        lab replay --json --host-size="$size"
        exits 0 || return
        real=$(json "x['runs'][0]['tokens_reused']")
        simulate --engines=1 --host-size="$size"
        echo "    $size: $real tokens in a real cache, $(json "x['tokens_reused']") simulated"
        is "$(json "abs(x['tokens_reused'] - $real) < 0.1 * $real")" True || return
    done
}

run one_engine_finds_a_prefix_up_to_the_first_change
run engines_share_what_a_server_has
run engines_of_one_tesserad_have_one_cache
run a_disk_keeps_what_memory_cannot
run lost_engines_and_nodes_are_replaced_by_empty_ones
run the_loss_is_seen_before_and_after
run copies_share_only_what_is_common
run routing_by_prefix_keeps_a_chat_on_one_engine
run a_seed_gives_the_same_fleet_every_time
run one_cache_finds_what_a_real_one_finds
test_end
