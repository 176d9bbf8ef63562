#!/usr/bin/env bash
# What the commands on a store directory have in common.
# shellcheck source=tests/cli/store_kit.sh
. "$(dirname "$0")/store_kit.sh"

a_directory_that_is_not_there_is_an_error() {
    t ls "$tmp/nothing"
    exits 1 && complains "$tmp/nothing"
}

a_store_in_use_is_read_but_not_changed() {
    fill_store || return
    exec 9<>"$store/lock"
    # The lock is one of open file descriptions: only who holds it may write.
    python3 - "$store/lock" "$tmp/held" <<'P' &
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX)
except OSError:
    pass
open(sys.argv[2], "w").close()
time.sleep(120)
P
    local holder=$! tries=0
    while [ ! -e "$tmp/held" ] && [ $((tries += 1)) -le 300 ]; do sleep 0.1; done
    local read_fine=yes
    t ls "$store"
    { exits 0 && says 'entries'; } || read_fine=no
    t clear "$store"
    kill "$holder"
    exits 1 && complains '' && is "$read_fine" yes
}

files_are_for_their_owner_alone() {
    fill_store || return
    [ -z "$(find "$store" -type f ! -perm 600)" ] || fail "$(ls -l "$store")"
}

run a_directory_that_is_not_there_is_an_error
run a_store_in_use_is_read_but_not_changed
run files_are_for_their_owner_alone
test_end
