#!/usr/bin/env bash
# What tessera-lab bench measures with: it must notice a device that moves wrong bytes. The device of
# tests/device/plugin_least.c is the least that works; plugin_wrong.c moves nothing.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"
plugins=$PWD/$B/tests/device
[[ $B == /* ]] && plugins=$B/tests/device
case $san in *address*) export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} ;; esac

a_device_of_somebody_else_can_be_measured() {
    LD_LIBRARY_PATH=$plugins lab bench copy --size=1M --device=least
    exits 0 || return
    grep -qE '^least +load ' <<<"$out" || fail "$out"
}

wrong_bytes_end_the_bench() {
    LD_LIBRARY_PATH=$plugins lab bench copy --size=1M --device=wrong
    exits 1 && complains 'wrong bytes'
}

sizes_are_rounded_to_whole_cells() {
    needs_python || return
    lab bench copy --size=9000001 --device=cpu --json
    exits 0 && is "$(json 'len(x["rows"])')" 5
}

run a_device_of_somebody_else_can_be_measured
run wrong_bytes_end_the_bench
run sizes_are_rounded_to_whole_cells
test_end
