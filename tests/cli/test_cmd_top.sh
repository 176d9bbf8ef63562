#!/usr/bin/env bash
# `tessera top`: a real server watched in a real terminal, over its socket and over HTTP.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"
needs_shared_memory

tesserad=${tessera}d
unset XDG_RUNTIME_DIR NOTIFY_SOCKET LISTEN_PID LISTEN_FDS TERM
kv=(--model=m --dtype=f16 --layers=1 --heads=1 --dim=8)

# A server at $socket and, over HTTP, at $url.
start() {
    socket=$tmp/run/sock
    : >"$tmp/log"
    "$tesserad" --host_size=4M --server_socket="$socket" --http_listen=127.0.0.1:0 --log_level=info "$@" 2>"$tmp/log" &
    server=$!
    trap 'kill $server 2>/dev/null' EXIT # of this test's subshell, when it fails midway
    local i
    for ((i = 0; i < 1200; i++)); do
        if grep -q 'serves .* tenant' "$tmp/log"; then
            url=http://127.0.0.1:$(sed -n 's/.*page and metrics at .*:\([0-9]*\)$/\1/p' "$tmp/log")
            return 0
        fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    fail "tesserad does not start: $(cat "$tmp/log")"
}
stop() { kill "$server" && wait "$server"; }

# 128 tokens that are looked up, stored and found; flags say for whom.
traffic() {
    echo "{\"prompt\":[$(seq -s, 1 128)]}" >"$tmp/prompt"
    head -c 4096 /dev/zero >"$tmp/kv" # K and V of 128 tokens, 8 dims, 2 bytes
    t kv lookup "${kv[@]}" --connect="$socket" "$@" "$tmp/prompt" && exits 0 || return
    t kv store "${kv[@]}" --connect="$socket" "$@" "$tmp/prompt" "$tmp/kv" && exits 0 || return
    t kv lookup "${kv[@]}" --connect="$socket" "$@" "$tmp/prompt" && exits 0
}

once_prints_one_report_over_the_socket_and_over_http() {
    start && traffic || return
    t top --once --interval=0.1 --connect="$socket"
    exits 0 && is_silent && says "at $socket, up " && says '50.0 % since the start' && says '128 of 256 since' &&
        says 'host ' && says 'connected' || return
    [[ $out != *$'\033'* ]] || fail "escapes, and no terminal: $out" || return
    TESSERA_SERVER_SOCKET=$socket t top --once --interval=0.1
    exits 0 && says '128 of 256 since' || return
    t top --once --interval=0.1 "$url"
    exits 0 && is_silent && says "at $url, up " && says '128 of 256 since' || return
    t top --once --interval=0.1 "$url/metrics"
    exits 0 || return
    stop
}

json_is_one_object_a_line() {
    needs_python || return
    start && traffic || return
    t top --once --json --interval=0.1 --connect="$socket"
    exits 0 && is "$(wc -l <<<"$out")" 1 || return
    is "$(json '(x["hit_rate_total"], x["lookups"], x["tenants"][0]["tiers"][0]["name"], x["seconds"] > 0)')" \
        "(0.5, 2, 'host', True)" || return
    out=$("$tessera" top --json --interval=0.1 --connect="$socket" | head -n 3)
    is "$(wc -l <<<"$out")" 3 || return
    stop
    out=$("$tessera" top --json --interval=0.1 --connect="$socket" | head -n 1)
    [[ $(json 'x["error"]') == "no server answers at $socket" ]] || fail "$out"
}

owners_see_all_tenants_and_others_themselves() {
    needs_python || return
    printf 'blue 0123456789abcdef\nred 0123456789abcdeg\n' >"$tmp/tokens" && chmod 600 "$tmp/tokens"
    start --server_tokens="$tmp/tokens" && traffic --server_token=0123456789abcdef || return
    t top --once --interval=0.1 --connect="$socket"
    exits 0 && says 'tenant ' && says $'\nblue ' && says $'\nred ' && says $'\nuid-' || return
    t top --once --json --interval=0.1 --connect="$socket" --server_token=0123456789abcdef
    is "$(json '[t["name"] for t in x["tenants"]]')" "['blue']" && is "$(json 'x["lookups"]')" 2 || return
    t top --once --json --interval=0.1 --connect="$socket" --server_token=0123456789abcdeg
    is "$(json '[t["name"] for t in x["tenants"]]')" "['red']" && is "$(json 'x["lookups"]')" 0 &&
        is "$(json 'sum(c["tenant"] != "red" for c in x["slow"])')" 0 || return
    stop
}

a_token_opens_http() {
    echo 0123456789abcdef >"$tmp/token" && chmod 600 "$tmp/token"
    echo 0123456789abcdeg >"$tmp/wrong" && chmod 600 "$tmp/wrong"
    start --http_token="$tmp/token" || return
    t top --once --interval=0.1 "$url"
    exits 1 && complains 'a token is required: use --token-file' || return
    t top --once --interval=0.1 --token-file="$tmp/wrong" "$url"
    exits 1 && complains 'wrong token' || return
    t top --once --interval=0.1 --token-file="$tmp/token" "$url"
    exits 0 && says 'hit rate' || return
    chmod 644 "$tmp/token"
    t top --once --token-file="$tmp/token" "$url"
    exits 1 && complains "--token-file" || return
    stop
}

mistakes_are_named() {
    t top --once --connect="$tmp/nobody"
    exits 1 && complains "no server answers at $tmp/nobody" && is "$out" '' || return
    t top --once http://127.0.0.1:1
    exits 1 && complains 'no server answers at http://127.0.0.1:1' || return
    t top somewhere
    exits 2 && complains 'must be http://ADDRESS:PORT' || return
    t top --connect=x http://127.0.0.1:1
    exits 2 && complains 'not both' || return
    t top --interval=0 --once
    exits 2 && complains 'interval' || return
    t top --token-file=x --connect=x
    exits 2 && complains 'server_token'
}

what_is_no_server_of_ours_is_said() {
    needs_python || return
    python3 - "$tmp/port" <<'END' &
import socketserver, sys
class Other(socketserver.BaseRequestHandler):
    answers = [b"HTTP/1.1 200 OK\r\n\r\nhello", b"SSH-2.0\r\n", b"HTTP/1.1 404 no\r\n\r\n"]
    def handle(self):
        self.request.recv(4096)
        self.request.sendall(Other.answers.pop(0))
        if not Other.answers: self.server.done = True
s = socketserver.TCPServer(("127.0.0.1", 0), Other)
s.done = False
open(sys.argv[1] + ".new", "w").write(str(s.server_address[1]))
import os; os.rename(sys.argv[1] + ".new", sys.argv[1])
while not s.done: s.handle_request()
END
    local i
    other=$!
    trap 'kill $other 2>/dev/null' EXIT
    for ((i = 0; i < 1200; i++)); do
        [ -s "$tmp/port" ] && break
        sleep 0.05
    done
    url=http://127.0.0.1:$(cat "$tmp/port")
    t top --once "$url"
    exits 1 && complains 'not the status of a Tessera server' || return
    t top --once "$url"
    exits 1 && complains 'the reply is not HTTP' || return
    t top --once "$url"
    exits 1 && complains 'HTTP status 404'
}

pty() { python3 tests/cli/top_pty.py "$@" 2>"$tmp/pty" || fail "$(cat "$tmp/pty")"; }
in_a_terminal() {
    needs_python || return
    start || return
    pty "$1" "$tessera" "$socket" || return
    stop
}
q_and_control_c_quit() { in_a_terminal q_and_control_c_quit; }
signals_restore_the_terminal() { in_a_terminal signals_restore_the_terminal; }
it_follows_the_size() { in_a_terminal it_follows_the_size; }
it_stops_and_goes_on() { in_a_terminal it_stops_and_goes_on; }
a_server_goes_and_comes_back() {
    needs_python || return
    pty a_server_goes_and_comes_back "$tessera" "$tmp/run/sock" "$tesserad"
}

run once_prints_one_report_over_the_socket_and_over_http
run json_is_one_object_a_line
run owners_see_all_tenants_and_others_themselves
run a_token_opens_http
run mistakes_are_named
run what_is_no_server_of_ours_is_said
run q_and_control_c_quit
run signals_restore_the_terminal
run it_follows_the_size
run it_stops_and_goes_on
run a_server_goes_and_comes_back
test_end
