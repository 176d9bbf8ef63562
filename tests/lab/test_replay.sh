#!/usr/bin/env bash
# One replay: what moves through the tiers is counted, and no disk of the user's is touched.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"

bytes_moved_are_those_of_the_tokens() {
    needs_python || return
    printf '%s\n' '{"chunks":[[1,100],[2,70]]}' '{"chunks":[[2,70],[1,100]]}' >"$tmp/trace"
    lab replay --host-size=1M --json "$tmp/trace"
    exits 0 || return
    is "$(json 'x["runs"][0]["host_write_bytes"]')" $((170 * 64)) || return
    is "$(json 'x["runs"][0]["host_read_bytes"]')" $((170 * 64)) || return
    is "$(json 'x["runs"][0]["disk_write_bytes"] + x["runs"][0]["disk_read_bytes"]')" 0
}

a_disk_finds_what_host_memory_lost() {
    needs_python || return
    lab replay --host-size=1M,64M --disk-size=64M --disk-path="$tmp" --disk-direct=false --json
    exits 0 && is_silent || return
    is "$(json 'x["disk_size"] >> 20')" 64 || return
    is "$(json 'x["runs"][0]["tokens_reused"] == x["runs"][1]["tokens_reused"]')" True || return
    is "$(json 'x["runs"][0]["tokens_from_disk"] > 0 == x["runs"][1]["tokens_from_disk"]')" True ||
        return
    is "$(json 'x["runs"][0]["disk_read_bytes"] > 0')" True || return
    is "$(json 'x["runs"][0]["disk_write_bytes"] == x["runs"][0]["host_write_bytes"]')" True
}

the_directory_of_the_disk_is_removed() {
    TMPDIR=$tmp lab replay --host-size=1M --disk-size=64M --disk-direct=false --limit=50
    exits 0 && says 'disk written' || return
    is "$(find "$tmp" -name 'tessera-*')" '' || return
    # Also when the user has seen enough.
    seq 500000 | sed 's/.*/{"chunks":[[&,200]]}/' >"$tmp/trace"
    TMPDIR=$tmp "$lab" replay --host-size=1M --disk-size=64M --disk-direct=false \
        "$tmp/trace" >"$tmp/out" 2>&1 &
    local i
    for ((i = 0; i < 300; i++)); do
        [ -n "$(find "$tmp" -name '*.seg')" ] && break
        sleep 0.1
    done
    kill "$!"
    wait "$!"
    grep -q 'interrupted' "$tmp/out" || fail "$(cat "$tmp/out")" || return
    is "$(find "$tmp" -name 'tessera-*')" ''
}

the_store_of_the_user_is_left_alone() {
    mkdir "$tmp/store"
    # A server that is not there would be an error, or at least a wait.
    TESSERA_DISK_PATH=$tmp/store TESSERA_DISK2_PATH=$tmp/store TESSERA_TIERS=disk,redis \
        TESSERA_REDIS_ADDRESS=127.0.0.1:1 lab replay --host-size=1M --limit=50
    exits 0 && is_silent && is "$(ls "$tmp/store")" ''
}

a_store_that_is_kept_has_what_was_stored() {
    needs_python || return
    echo '{"chunks":[[1,100],[2,70]]}' >"$tmp/trace"
    lab replay --host-size=1M --disk-size=64M --keep="$tmp/store" "$tmp/trace"
    exits 0 || return
    t ls --json "$tmp/store"
    exits 0 && is "$(json 'len(x["entries"])')" 2 || return
    lab replay --host-size=1M,2M --disk-size=64M --keep="$tmp/store"
    exits 2 && complains '--keep' || return
    lab replay --host-size=1M --keep="$tmp/store"
    exits 2 && complains '--keep'
}

a_directory_that_cannot_be_made_is_named() {
    TMPDIR=$tmp/none lab replay --host-size=1M --disk-size=64M
    exits 1 && complains "$tmp/none/tessera-replay-"
}

run bytes_moved_are_those_of_the_tokens
run a_disk_finds_what_host_memory_lost
run the_directory_of_the_disk_is_removed
run the_store_of_the_user_is_left_alone
run a_store_that_is_kept_has_what_was_stored
run a_directory_that_cannot_be_made_is_named
test_end
