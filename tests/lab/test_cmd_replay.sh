#!/usr/bin/env bash
# tessera-lab replay: the cache behind it must find what was stored, and count it.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"

# Column k (heading: 1) of the last line, without the unit of the host size.
cell() { tail -n 1 <<<"$out" | awk -v k="$1" '{print $(k + 1)}'; }
requests() { cell 3; }
asked() { cell 4; }
reused() { cell 5; }

segments_are_found_wherever_they_stand() {
    printf '%s\n' '{"chunks":[[1,100],[2,70],[3,65]]}' '{"chunks":[[3,65],[9,10],[1,100]]}' \
        >"$tmp/trace"
    lab replay --host-size=1M "$tmp/trace"
    exits 0 && is_silent && is "$(requests)" 2 && is "$(asked)" 410 && is "$(reused)" 165 || return
    says '40.2 %'
}

prefixes_are_found_up_to_the_first_change() {
    printf '%s\n' '{"hash_ids":[1,2,3],"input_length":1536}' \
        '{"hash_ids":[1,2,4],"input_length":1100}' '{"hash_ids":[5,2,3],"input_length":1536}' \
        >"$tmp/trace"
    lab replay --host-size=1M --chunk_size=512 "$tmp/trace"
    exits 0 && is "$(asked)" 4172 && is "$(reused)" 1024
}

a_partial_last_block_is_found_where_it_is_kept() {
    printf '%s\n' '{"hash_ids":[1,2],"input_length":600}' '{"hash_ids":[1,2],"input_length":600}' \
        >"$tmp/trace"
    lab replay --host-size=1M --chunk_size=512 "$tmp/trace"
    exits 0 && is "$(reused)" 512 || return
    lab replay --host-size=1M --chunk_size=512 --save_partial=true "$tmp/trace"
    exits 0 && is "$(reused)" 600
}

as_prefix_finds_only_equal_beginnings() {
    printf '%s\n' '{"chunks":[[1,64],[2,64]]}' '{"chunks":[[1,64],[3,64]]}' \
        '{"chunks":[[2,64],[1,64]]}' >"$tmp/trace"
    lab replay --host-size=1M --chunk_size=64 "$tmp/trace"
    exits 0 && is "$(reused)" 192 || return
    lab replay --host-size=1M --chunk_size=64 --as=prefix "$tmp/trace"
    exits 0 && is "$(reused)" 64
}

what_does_not_fit_is_evicted_and_more_memory_finds_more() {
    needs_python || return
    lab replay --host-size=1M,2M,64M --json
    exits 0 || return
    is "$(json 'len(x["runs"])')" 3 || return
    is "$(json 'x["runs"][0]["evictions"] > x["runs"][1]["evictions"] > 0')" True || return
    is "$(json 'x["runs"][2]["evictions"]')" 0 || return
    is "$(json 'sorted(r["hit_rate"] for r in x["runs"]) == [r["hit_rate"] for r in x["runs"]]')" \
        True || return
    is "$(json 'x["runs"][0]["hit_rate"] < x["runs"][2]["hit_rate"]')" True || return
    # Stored is what was not reused, give or take last blocks that are not full.
    is "$(json 'all(r["host_write_bytes"] <= 64 * (r["tokens_asked"] - r["tokens_reused"])
        for r in x["runs"])')" True
}

without_a_size_the_option_holds() {
    TESSERA_HOST_SIZE=3M lab replay --limit=3
    exits 0 && [[ $(tail -n 1 <<<"$out") == *'3.0 MiB '* ]] && is "$(requests)" 3
}

a_frozen_cache_refuses_and_the_replay_goes_on() {
    echo '{"chunks":[[1,100],[2,70]]}' >"$tmp/trace"
    lab replay --host-size=1M --frozen=true "$tmp/trace"
    exits 0 && is "$(reused)" 0 && is "$(tail -n 1 <<<"$out" | awk '{print $NF}')" 2
}

every_size_is_tried_with_every_policy() {
    needs_python || return
    lab replay --host_size=1M,2M --policy=lru,adaptive --json
    exits 0 || return
    is "$(json '[(r["host_size"] >> 20, r["policy"]) for r in x["runs"]]')" \
        "[(1, 'lru'), (1, 'adaptive'), (2, 'lru'), (2, 'adaptive')]" || return
    # On this trace, half of it documents, recency alone is not best.
    is "$(json 'x["runs"][0]["hit_rate"] < x["runs"][1]["hit_rate"]')" True
}

the_same_replay_gives_the_same_table() {
    lab replay --host-size=1M --policy=lru,s3fifo,adaptive
    exits 0 || return
    local first=$out
    lab replay --host-size=1M --policy=lru,s3fifo,adaptive
    is "$out" "$first"
}

bad_flags_are_usage_errors() {
    lab replay --host-size=1M,
    exits 2 && complains '--host-size' || return
    lab replay --host-size=lots
    exits 2 && complains 'host_size' || return
    lab replay --host-size=1K
    exits 2 && complains 'host_size' || return
    lab replay --policy=lru,best
    exits 2 && complains '--policy: policy: "best" is not one of lru, s3fifo, adaptive' || return
    lab replay --disk-size=1M
    exits 2 && complains '--disk-size: disk_size' || return
    lab replay --as=sometimes
    exits 2 && complains 'must be trace or prefix' || return
    lab replay --limit=0
    exits 2 && complains '--limit' || return
    lab replay --limit=3x
    exits 2 && complains '--limit'
}

the_demo_without_a_model_runs() {
    out=$(tools/demo-replay "$lab" 2>"$tmp/err")
    status=$? err=$(cat "$tmp/err")
    exits 0 && is_silent && says 'hit rate' || return
    is "$(grep -c 'MiB  *adaptive  *900 ' <<<"$out")" 10
}

run segments_are_found_wherever_they_stand
run prefixes_are_found_up_to_the_first_change
run a_partial_last_block_is_found_where_it_is_kept
run as_prefix_finds_only_equal_beginnings
run what_does_not_fit_is_evicted_and_more_memory_finds_more
run without_a_size_the_option_holds
run a_frozen_cache_refuses_and_the_replay_goes_on
run every_size_is_tried_with_every_policy
run the_same_replay_gives_the_same_table
run bad_flags_are_usage_errors
run the_demo_without_a_model_runs
test_end
