#!/usr/bin/env bash
# store_kit.sh - a store directory for the tests of the commands that work on one: $store, filled by a short
# replay.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "${BASH_SOURCE[0]}")/tessera.sh"

fill_store() {
    store=$tmp/store
    "$lab" replay --disk-size=256M --keep="$store" --limit=12 >/dev/null || fail 'no store'
}

n_entries() {
    t ls --json "$store"
    json 'len(x["entries"])'
}

# Turns over one byte of a segment, 4000 bytes from its end: in the last entry's KV.
damage() {
    local file size at byte
    file=$(find "$store" -name '*.seg' | head -n 1)
    size=$(stat -c %s "$file")
    at=$((size - 4000))
    byte=$(od -An -tu1 -j "$at" -N 1 "$file")
    printf '%b' "\\x$(printf %02x $((255 - byte)))" |
        dd of="$file" bs=1 seek="$at" conv=notrunc status=none
}
