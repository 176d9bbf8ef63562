#!/usr/bin/env bash
# The page and the metrics of a real tesserad: what is served to whom, and what is not.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"
needs_shared_memory

tesserad=$B/bin/tesserad
unset XDG_RUNTIME_DIR NOTIFY_SOCKET LISTEN_PID LISTEN_FDS TESSERA_CONFIG_FILE

# Starts it at a port of its own choosing ($port); flags are added.
start() {
    : >"$tmp/log"
    "$tesserad" --host_size=4M --server_socket="$tmp/run/sock" --log_level=info \
        --http_listen=127.0.0.1:0 "$@" 2>>"$tmp/log" &
    server=$!
    trap 'kill $server 2>/dev/null' EXIT # of this test's subshell, when it fails midway
    local i
    for ((i = 0; i < 200; i++)); do
        port=$(sed -n 's/.*page and metrics at .*:\([0-9]*\)$/\1/p' "$tmp/log")
        [ -n "$port" ] && grep -q 'serves .* tenant' "$tmp/log" && return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    fail "it does not start" "$(cat "$tmp/log")"
}

stop() {
    kill -TERM "$server" 2>/dev/null
    wait "$server"
}

# get PATH [HEADER...]: the body to $tmp/body, headers to $tmp/head; prints the status.
get() {
    python3 - "$port" "$tmp" "$@" <<'END'
import http.client, sys
port, tmp, path, *extra = sys.argv[1:]
method = "GET"
headers = {}
for e in extra:
    if e.startswith("method="): method = e[7:]
    else:
        k, v = e.split(": ", 1)
        headers[k] = v
c = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
c.request(method, path, headers=headers)
r = c.getresponse()
open(tmp + "/body", "wb").write(r.read())
open(tmp + "/head", "w").write(str(r.headers))
print(r.status)
END
}

expect() {
    local wanted=$1 got
    shift
    got=$(get "$@")
    [ "$got" = "$wanted" ] || fail "$*: $got and not $wanted: $(cat "$tmp/body")"
}

health_metrics_stats_and_page_are_served() {
    start || return
    expect 200 /healthz && grep -qx ok "$tmp/body" || return
    expect 200 /metrics || return
    grep -q '^tessera_lookups_total{tenant="uid-[0-9]*"} 0$' "$tmp/body" || fail "no metrics" || return
    grep -qi '^content-type: text/plain; version=0.0.4' "$tmp/head" || fail "wrong type" || return
    expect 200 /api/stats || return
    python3 -c 'import json,sys; s=json.load(open(sys.argv[1])); t=s["tenants"][0]
assert t["tiers"][0]["name"] == "host" and t["tiers"][0]["size"] == 4 << 20, t["tiers"]
assert t["metrics"]["lookups"] == 0 and s["slow"] == [] and s["uptime"] >= 0' "$tmp/body" || fail "stats" || return
    expect 200 /grafana.json && cmp -s "$tmp/body" docs/watching/grafana.json || fail "no dashboard" || return
    expect 200 /alerts.yaml && cmp -s "$tmp/body" docs/watching/alerts.yaml || fail "no alerts" || return
    expect 200 / && cmp -s "$tmp/body" src/daemon/page.html || fail "the page is another" || return
    grep -qi "^content-security-policy: default-src 'none'" "$tmp/head" || fail "no policy" || return
    expect 200 /healthz method=HEAD || return
    [ -s "$tmp/body" ] && fail "HEAD has a body" && return 1
    stop
}

what_is_not_there_is_refused() {
    start || return
    expect 404 /nothing && expect 404 /../etc/passwd && expect 405 /api/stats method=POST &&
        expect 405 / method=DELETE || return
    expect 403 /api/stats "Host: evil.example" && expect 403 / "Host: evil.example:$port" || return
    expect 200 /api/stats "Host: localhost:$port" || return
    stop
}

a_token_is_asked_for_where_there_is_one() {
    (umask 077 && echo 0123456789abcdef >"$tmp/token")
    start --http_token="$tmp/token" || return
    expect 401 /api/stats && expect 401 /metrics || return
    grep -qi '^www-authenticate: bearer' "$tmp/head" || fail "no challenge" || return
    expect 401 /metrics "Authorization: Bearer 0123456789abcdeX" || return
    expect 401 /metrics "Authorization: Bearer 0123456789abcde" || return
    expect 401 /metrics "Authorization: Basic 0123456789abcdef" || return
    expect 200 /metrics "Authorization: Bearer 0123456789abcdef" || return
    expect 200 / && expect 200 /healthz || return
    grep -q 0123456789abcdef "$tmp/log" && fail "the token is in the log" && return 1
    stop
}

refused() {
    "$tesserad" --host_size=4M --server_socket="$tmp/run/sock" "$@" 2>"$tmp/err"
    [ $? -eq 1 ] || fail "$*: not refused"
}

addresses_and_tokens_that_would_leak_are_refused() {
    refused --http_listen=0.0.0.0:0 && grep -q http_token "$tmp/err" || fail "no way out named" || return
    refused --http_listen=localhost:80 || return
    (umask 022 && echo 0123456789abcdef >"$tmp/open")
    refused --http_token="$tmp/open" && grep -q 'mode 0644, must be 0600' "$tmp/err" || fail "open file" || return
    (umask 077 && echo short >"$tmp/short")
    refused --http_token="$tmp/short" && refused --http_token="$tmp/missing"
}

off_is_off_and_a_taken_address_costs_only_the_page() {
    "$tesserad" --host_size=4M --server_socket="$tmp/run/sock" --http_listen=off \
        --log_level=info 2>"$tmp/log" &
    server=$!
    local i
    for ((i = 0; i < 100; i++)); do grep -q 'serves' "$tmp/log" && break; sleep 0.05; done
    grep -q 'http:' "$tmp/log" && fail "it speaks of http" && return 1
    stop
    start || return
    "$tesserad" --host_size=4M --server_socket="$tmp/run2/sock" --http_listen="127.0.0.1:$port" \
        --log_level=info 2>"$tmp/log2" &
    local second=$!
    for ((i = 0; i < 100; i++)); do grep -q 'serves' "$tmp/log2" && break; sleep 0.05; done
    grep -q 'status page and metrics are off' "$tmp/log2" || fail "not said: $(cat "$tmp/log2")" || return
    kill -TERM "$second" && wait "$second" || fail "it does not serve without a page" || return
    stop
}

rubbish_and_slow_clients_leave_the_rest_served() {
    start || return
    python3 - "$port" <<'END' || fail "rubbish"
import os, socket, sys
address = ("127.0.0.1", int(sys.argv[1]))
held = []
for i in range(100):  # more than are served at once, none of which ever asks
    try:
        held.append(socket.create_connection(address, 2))
    except OSError:
        break
for s in held: s.close()
for junk in (os.urandom(4096), b"GET /" + b"x" * 100000 + b" HTTP/1.1\r\n\r\n", b"\0" * 100,
             b"GET / HTTP/1.1\r\nContent-Length: 999999999999999999999\r\n\r\n", b"POST /x HTTP/1.1\r\n"):
    s = socket.create_connection(address, 5)
    try:
        s.sendall(junk)
        s.settimeout(0.2)
        s.recv(65536)
    except OSError:
        pass
    s.close()
END
    expect 200 /healthz || return
    stop
}

slow_clients_do_not_keep_healthz_waiting() {
    start || return
    python3 - "$port" <<'END' || fail "it does not answer while slow clients hang"
import http.client, socket, sys, threading, time
port = int(sys.argv[1])
def slow(n, ask):
    held = []
    for i in range(n):
        s = socket.create_connection(("127.0.0.1", port), 5)
        s.sendall(ask)
        held.append(s)
    return held
# Heads that do not come to their end, and answers that nobody reads: more than are served at once.
held = slow(200, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
held += slow(100, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
done = threading.Event()
def drip():
    while not done.wait(0.1):
        for s in held:
            try: s.send(b"x")
            except OSError: pass
threading.Thread(target=drip, daemon=True).start()
for i in range(20):
    start = time.monotonic()
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    c.request("GET", "/healthz")
    assert c.getresponse().read() == b"ok\n"
    c.close()
    assert time.monotonic() - start < 2, time.monotonic() - start
done.set()
END
    expect 200 /metrics || return
    stop
}

prometheus_scrapes_it() {
    command -v prometheus >/dev/null || { skip "no prometheus here"; return; }
    start || return
    mkdir "$tmp/prometheus"
    printf 'global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: tessera\n  static_configs:\n  - targets: ["127.0.0.1:%s"]\n' \
        "$port" >"$tmp/prometheus.yml"
    local own
    own=$(python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])')
    prometheus --config.file="$tmp/prometheus.yml" --storage.tsdb.path="$tmp/prometheus" \
        --web.listen-address="127.0.0.1:$own" >"$tmp/prometheus.log" 2>&1 &
    local scraper=$!
    python3 - "$own" <<'END' || fail "it was not scraped" "$(tail -5 "$tmp/prometheus.log")"
import json, sys, time, urllib.request
url = "http://127.0.0.1:%s/api/v1/query?query=" % sys.argv[1]
for i in range(240):
    try:
        up = json.load(urllib.request.urlopen(url + "up", timeout=2))["data"]["result"]
        got = json.load(urllib.request.urlopen(url + "tessera_host_bytes", timeout=2))["data"]["result"]
        if up and got:
            assert up[0]["value"][1] == "1", up
            assert got[0]["value"][1] == str(4 << 20), got
            assert got[0]["metric"]["tenant"].startswith("uid-"), got
            sys.exit(0)
    except OSError:
        pass
    time.sleep(0.25)
sys.exit(1)
END
    kill "$scraper"
    wait "$scraper" 2>/dev/null
    stop
}

run health_metrics_stats_and_page_are_served
run what_is_not_there_is_refused
run a_token_is_asked_for_where_there_is_one
run addresses_and_tokens_that_would_leak_are_refused
run off_is_off_and_a_taken_address_costs_only_the_page
run rubbish_and_slow_clients_leave_the_rest_served
run slow_clients_do_not_keep_healthz_waiting
run prometheus_scrapes_it
test_end
