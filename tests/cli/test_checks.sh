#!/usr/bin/env bash
# The checks of memory and disk in tessera doctor.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"

# The verdict of one check is this one.
verdict() { grep -qE "^$1 +$2 " <<<"$out" || fail "$2 is not $1: $out"; }

more_memory_than_there_is_fails_with_a_number_to_use() {
    t doctor --host_size=16T
    exits 1 && verdict fail 'host memory' && says 'set host_size below' || return
    t doctor --host_size=1M
    exits 0 && verdict ok 'host memory'
}

a_small_limit_of_locked_memory_is_a_warning() {
    (
        ulimit -S -l 64 2>/dev/null || exit 77
        t doctor --host_size=1M
        exits 0 && verdict warn 'locked memory'
    )
    local result=$?
    [ "$result" -ne 77 ] || skip 'no limit can be set'
    return "$result"
}

what_a_device_locks_is_said() {
    t doctor --host_size=1M --device=cuda
    says 'host_size 1.0 MiB is page-locked' && says 'for device cuda, and stays resident' || return
    t doctor --host_size=1M --device=cpu
    exits 0 && says 'host_size 1.0 MiB would be page-locked' || return
    t doctor --host_size=1M --device=cuda --owner=daemon
    says 'would be page-locked' || return
    t doctor --host_size=16T --device=cuda
    verdict warn 'locked memory' && says 'less than is available'
}

without_a_disk_tier_nothing_is_asked_of_disks() {
    t doctor --host_size=1M
    verdict ok 'disk path' && verdict ok 'disk space' && verdict ok O_DIRECT || return
    t doctor --host_size=1M --disk_path=/nonexistent --disk_enabled=false
    exits 0 && verdict ok 'disk path'
}

a_private_directory_is_ok_and_a_public_one_a_warning() {
    mkdir -m 700 "$tmp/private"
    mkdir -m 755 "$tmp/public"
    t doctor --host_size=1M --disk_path="$tmp/private" --disk_size=64M
    exits 0 && verdict ok 'disk path' && verdict ok 'disk space' || return
    [ -z "$(ls -A "$tmp/private")" ] || fail "files were left: $(ls -A "$tmp/private")" || return
    t doctor --host_size=1M --disk_path="$tmp/public"
    exits 0 && verdict warn 'disk path' && says 'chmod 700'
}

a_directory_that_can_be_made_is_ok() {
    t doctor --host_size=1M --disk_path="$tmp/new"
    exits 0 && verdict ok 'disk path' && says 'will be created' || return
    [ ! -e "$tmp/new" ] || fail 'it was made'
}

paths_that_cannot_work_fail() {
    touch "$tmp/file"
    t doctor --host_size=1M --disk_path="$tmp/file"
    exits 1 && verdict fail 'disk path' && says 'not a directory' || return
    t doctor --host_size=1M --disk_path="$tmp/no/such/place"
    exits 1 && verdict fail 'disk path'
}

more_disk_than_there_is_is_a_warning() {
    mkdir -m 700 "$tmp/d"
    t doctor --host_size=1M --disk_path="$tmp/d" --disk_size=1024T
    exits 0 && verdict warn 'disk space'
}

direct_io_is_tried_only_where_wanted() {
    mkdir -m 700 "$tmp/d"
    t doctor --host_size=1M --disk_path="$tmp/d" --disk_direct=false
    verdict ok O_DIRECT && says 'off (disk_direct is false)' || return
    t doctor --host_size=1M --disk_path="$tmp/d"
    exits 0 && grep -qE '^(ok +O_DIRECT +works|warn +O_DIRECT +refused)' <<<"$out"
}

the_second_disk_tier_is_looked_at_too() {
    mkdir -m 700 "$tmp/first" "$tmp/second"
    t doctor --host_size=1M --disk_path="$tmp/first" --disk_size=64M
    exits 0 && ! grep -q disk2 <<<"$out" || fail "one that is not there: $out" || return
    t doctor --host_size=1M --disk_path="$tmp/first" --disk_size=64M --disk2_path="$tmp/second" \
        --disk2_size=1024T
    exits 0 && verdict ok 'disk2 path' && verdict warn 'disk2 space' && says 'lower disk2_size' ||
        return
    grep -qE '^(ok|warn) +disk2 O_DIRECT ' <<<"$out" || fail "$out" || return
    [ -z "$(ls -A "$tmp/second")" ] || fail "files were left: $(ls -A "$tmp/second")" || return
    touch "$tmp/file"
    t doctor --host_size=1M --disk_path="$tmp/first" --disk2_path="$tmp/file"
    exits 1 && verdict ok 'disk path' && verdict fail 'disk2 path' && says 'set disk2_path to'
}

run more_memory_than_there_is_fails_with_a_number_to_use
run a_small_limit_of_locked_memory_is_a_warning
run what_a_device_locks_is_said
run without_a_disk_tier_nothing_is_asked_of_disks
run a_private_directory_is_ok_and_a_public_one_a_warning
run a_directory_that_can_be_made_is_ok
run paths_that_cannot_work_fail
run more_disk_than_there_is_is_a_warning
run direct_io_is_tried_only_where_wanted
run the_second_disk_tier_is_looked_at_too
test_end
