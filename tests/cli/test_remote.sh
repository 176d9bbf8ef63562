#!/usr/bin/env bash
# --connect: finding a server, and being told why there is none.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"
needs_shared_memory

tesserad=${tessera}d

start() {
    socket=$tmp/run/sock
    "$tesserad" --host_size=4M --http_listen=off --server_socket="$socket" "$@" 2>"$tmp/log" &
    server=$!
    local i
    for ((i = 0; i < 200; i++)); do
        "$tessera" stat --connect="$socket" >/dev/null 2>&1 && return 0
        sleep 0.05
    done
    fail "tesserad does not start: $(cat "$tmp/log")"
}

stop() {
    kill "$server" && wait "$server"
}

without_a_server_every_command_says_so() {
    local command
    echo '{"prompt":[1,2,3]}' >"$tmp/prompt"
    for command in stat ls clear warm flush 'evict 1M' "pin $tmp/prompt" "inspect $tmp/prompt"; do
        # shellcheck disable=SC2086  # a command and its argument
        t $command --connect="$tmp/nobody"
        exits 1 && complains "no server answers at $tmp/nobody" || return
        is "$out" '' || return
    done
}

the_socket_is_the_flags_the_options_or_the_users() {
    start || return
    t ls --connect="$socket"
    exits 0 && says '0 entries' || return
    t ls --connect --server_socket="$socket"
    exits 0 && says '0 entries' || return
    TESSERA_SERVER_SOCKET=$socket t ls --connect
    exits 0 && says '0 entries' || return
    stop
    mkdir -m 700 "$tmp/xdg"
    XDG_RUNTIME_DIR=$tmp/xdg t ls --connect
    exits 1 && complains "$tmp/xdg/"
}

a_server_that_does_not_want_us_says_why() {
    start || return
    t ls --connect="$socket" --server_token=nobodys
    exits 1 && complains "unknown token" || return
    t stat --connect="$socket" --server_token=nobodys
    exits 1 && complains "unknown token" || return
    stop
}

a_directory_and_a_server_at_once_are_refused() {
    t ls --connect="$tmp/sock" "$tmp"
    exits 2 && complains 'unexpected argument' || return
    t inspect --connect="$tmp/sock" --store="$tmp" prompt
    exits 2 && complains 'not both'
}

# What was on disk before is there, and can be cleared, before any engine has come.
after_a_restart_the_disk_is_listed_and_cleared() {
    needs_python || return
    "$lab" replay --disk-size=256M --keep="$tmp/store" --limit=12 >/dev/null || fail 'no store' || return
    local on_disk space
    t ls --json "$tmp/store"
    on_disk=$(json 'len(x["entries"])')
    start --disk_path="$tmp/store" || return
    t ls --json --connect="$socket"
    exits 0 && is "$(json 'len(x["entries"])')" "$on_disk" || return
    is "$(json 'all(e["tiers"] == [1] for e in x["entries"])')" True || return
    space=$(json 'x["entries"][0]["space"]')
    echo '{"prompt":[1,2,3]}' >"$tmp/prompt"
    t pin --connect="$socket" --space="$space" "$tmp/prompt"
    exits 1 && complains 'no engine has opened this space' || return
    t clear --connect="$socket" --space="$space"
    exits 0 && says 'entries cleared' || return
    t ls --connect="$socket"
    says '0 entries' || return
    stop
    t ls --json "$tmp/store"
    is "$(json 'len(x["entries"])')" 0
}

run without_a_server_every_command_says_so
run the_socket_is_the_flags_the_options_or_the_users
run a_server_that_does_not_want_us_says_why
run a_directory_and_a_server_at_once_are_refused
run after_a_restart_the_disk_is_listed_and_cleared
test_end
