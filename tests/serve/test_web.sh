#!/usr/bin/env bash
# HTTP in front of the engine: addresses, methods, who may ask, limits of bodies.
# shellcheck source=tests/serve/serve_kit.sh
. "$(dirname "$0")/serve_kit.sh"
serve_needs
serve_start "$tmp_all/server" || exit 1

health_and_the_page_need_no_token_and_hold_no_data() {
    req GET /health
    answers 200 || return
    is "$out" '{"status":"ok"}' || return
    req GET /
    answers 200 || return
    [[ $out != *"$token"* ]] || fail 'the page has the token'
}

everything_else_needs_the_token() {
    local path
    for path in /v1/models /metrics /api/stats /tessera/status; do
        req GET "$path"
        refuses 401 None 'token' || return
    done
    req POST /v1/chat/completions "{$hello}" -H 'Authorization: Bearer wrong'
    refuses 401 None 'serve.token in its store' || return
    req POST /v1/chat/completions "{$hello}" -H "Authorization: Bearer ${token:0:31}"
    answers 401 || return
    get /v1/models
    answers 200
}

top_shows_the_answers_and_their_cache() {
    post /v1/chat/completions "{$hello,\"max_tokens\":2}"
    answers 200 || return
    get /api/stats
    answers 200 || return
    is "$(json '[c["call"] for c in x["slow"]][:1] + [x["serve"]["requests_total"] > 0, x["tenants"][0]["name"]]')" \
        "['chat', True, 'serve']" || return
    printf %s "$token" >"$tmp/token" && chmod 600 "$tmp/token"
    t top --once --interval=0.1 "$url" --token-file="$tmp/token"
    exits 0 && says 'answers   0 queued, 0 reading, 0 writing' && says 'chat ' || return
    t top --once --interval=0.1 "$url"
    exits 1 && complains 'token is required'
}

names_of_hosts_and_other_origins_are_refused() {
    get /v1/models -H 'Host: evil.example'
    refuses 403 None 'address' || return
    post /v1/chat/completions "{$hello}" -H 'Origin: http://evil.example'
    refuses 403 None 'other sites' || return
    post /v1/chat/completions "{$hello}" -H 'Origin: null'
    answers 403 || return
    post /v1/chat/completions "{$hello,\"max_tokens\":1}" -H "Origin: $url"
    answers 200
}

no_reply_lets_other_sites_read_it() {
    local head
    head=$(curl -si -m 300 -X OPTIONS "$url/v1/models" -H 'Origin: http://evil.example')
    [[ ${head,,} != *access-control* ]] || fail "$head" || return
    head=$(curl -si -m 300 "$url/v1/models" -H "Authorization: Bearer $token")
    [[ ${head,,} != *access-control* ]] || fail "$head"
}

unknown_addresses_and_methods_are_errors() {
    get /v2/models
    refuses 404 None 'no such address' || return
    get /v1/chat/completions
    refuses 405 None 'use POST' || return
    post /v1/models '{}'
    refuses 405 None 'use GET' || return
    get /v1/models/other
    refuses 404 model 'only m'
}

a_wrong_method_gets_the_right_ones() {
    local with="Authorization: Bearer $token"
    is "$(curl -s -m 300 -o /dev/null -w '%{http_code} %header{allow}' -H "$with" "$url/v1/chat/completions")" '405 POST' || return
    is "$(curl -s -m 300 -o /dev/null -w '%{http_code} %header{allow}' -H "$with" -d '{}' "$url/v1/models")" '405 GET, HEAD'
}

embeddings_are_refused_clearly() {
    post /v1/embeddings '{"input":"x","model":"m"}'
    refuses 400 None 'none for embeddings'
}

a_body_that_is_too_large_is_413() {
    head -c 17000000 /dev/zero | tr '\0' ' ' >"$tmp/big"
    post /v1/chat/completions "@$tmp/big"
    refuses 413 None 'more than' || return
    post /v1/chat/completions "@$tmp/big" -H 'Transfer-Encoding: chunked' -H 'Content-Length:'
    refuses 413 None 'more than'
}

# Sends bytes as they are; prints the statuses of all replies until the server closes.
send() {
    python3 - "$url" "$1" <<'P'
import re, socket, sys
s = socket.create_connection(sys.argv[1][len("http://"):].split(":"), timeout=20)
s.sendall(sys.argv[2].encode().decode("unicode_escape").encode("latin1"))
got = b""
while more := s.recv(65536):
    got += more
print(*re.findall(r"HTTP/1.1 (\d+)", got.decode("latin1")))
P
}

# A second request in what is the body to a program that takes the other length.
a_request_with_two_ends_is_refused_and_nothing_after_it_is_read() {
    local head second
    head="POST /v1/chat/completions HTTP/1.1\\r\\nHost: localhost\\r\\nAuthorization: Bearer $token\\r\\n"
    second="GET /health HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"
    is "$(send "${head}Content-Length: 5\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n$second")" 400 || return
    is "$(send "${head}Content-Length: 2\\r\\nContent-Length: 60\\r\\n\\r\\n{}$second")" 400 || return
    is "$(send "${head}Content-Length : 60\\r\\n\\r\\n$second")" 400 || return
    is "$(send "${head}Transfer-Encoding: xchunked\\r\\n\\r\\n0\\r\\n\\r\\n$second")" 400 || return
    is "$(send "GET /health HTTP/1.1\\r\\nHost: localhost\\r\\nHost: evil.example\\r\\n\\r\\n$second")" 400 || return
    is "$(send "GET /health HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 0\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n$second")" 400
}

a_connection_may_ask_again() {
    local both
    both=$(curl -s -m 300 -H "Authorization: Bearer $token" "$url/v1/models" "$url/v1/models" -w '%{num_connects} ' -o /dev/null -o /dev/null)
    is "$both" '1 0 '
}

connections_that_ask_nothing_keep_nobody_out() {
    python3 - "$url" <<'P' || fail 'the server was out of reach'
import socket, sys, urllib.request
host = sys.argv[1][len("http://"):].split(":")
idle = [socket.create_connection(host) for _ in range(128)]
assert urllib.request.urlopen(sys.argv[1] + "/health", timeout=300).status == 200
P
}

numbers_are_prometheus_text() {
    post /v1/chat/completions "{$hello,\"max_tokens\":2}"
    get /metrics
    answers 200 || return
    grep -qE '^tessera_serve_requests_total [1-9]' <<<"$out" || fail "$out" || return
    grep -qE '^tessera_serve_kv_tokens [1-9]' <<<"$out" || fail "$out" || return
    grep -q '^tessera_lookups' <<<"$out" || fail "$out"
}

run health_and_the_page_need_no_token_and_hold_no_data
run everything_else_needs_the_token
run top_shows_the_answers_and_their_cache
run names_of_hosts_and_other_origins_are_refused
run no_reply_lets_other_sites_read_it
run unknown_addresses_and_methods_are_errors
run a_wrong_method_gets_the_right_ones
run embeddings_are_refused_clearly
run a_body_that_is_too_large_is_413
run a_request_with_two_ends_is_refused_and_nothing_after_it_is_read
run a_connection_may_ask_again
run connections_that_ask_nothing_keep_nobody_out
run numbers_are_prometheus_text
serve_end
test_end
