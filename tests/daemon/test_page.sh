#!/usr/bin/env bash
# tesserad's page in a browser: what it shows, by keyboard, dark and light, narrow and wide, with a
# clean console, and what it does when the server is gone.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"
needs_shared_memory

has_browser() { command -v chromium chromium-browser google-chrome >/dev/null; }
look() { timeout 100 python3 tests/daemon/page_check.py "$@" 2>"$tmp/err" || fail "$(tail -3 "$tmp/err")"; }

it_shows_what_the_server_says() {
    has_browser || { skip "no chromium here"; return; }
    look made-up
}

it_asks_for_a_token_where_one_is_needed() {
    has_browser || { skip "no chromium here"; return; }
    look token
}

it_goes_on_when_the_server_is_gone() {
    has_browser || { skip "no chromium here"; return; }
    "$B/bin/tesserad" --host_size=4M --server_socket="$tmp/run/sock" --log_level=info \
        --http_listen=127.0.0.1:0 2>"$tmp/log" &
    local server=$! port='' i
    for ((i = 0; i < 200 && ${#port} == 0; i++)); do
        port=$(sed -n 's/.*page and metrics at .*:\([0-9]*\)$/\1/p' "$tmp/log")
        sleep 0.05
    done
    look real "http://127.0.0.1:$port/" "$server"
    local status=$?
    kill -9 "$server" 2>/dev/null
    wait "$server" 2>/dev/null
    return "$status"
}

run it_shows_what_the_server_says
run it_asks_for_a_token_where_one_is_needed
run it_goes_on_when_the_server_is_gone
test_end
