#!/usr/bin/env bash
# Requests between HTTP and the engine: refused as what they are, and none is lost when the server ends.
# shellcheck source=tests/serve/serve_kit.sh
. "$(dirname "$0")/serve_kit.sh"
serve_needs

a_stream_that_cannot_begin_is_an_error_with_its_status() {
    serve_start "$tmp/server" || return
    post /v1/chat/completions '{"stream":true,"messages":[]}'
    refuses 400 messages '' || return
    post /v1/chat/completions "{\"stream\":true,\"model\":\"other\",$hello}"
    refuses 404 model 'other does not exist' || return
    post /v1/chat/completions '{"stream":true,'
    answers 400 || return
    # The connection is as good as before.
    post /v1/chat/completions "{$hello,\"max_tokens\":2}"
    answers 200 || return
    serve_end
}

# Thirty requests of a megabyte each, and a signal while they are prepared.
a_server_that_ends_leaves_no_request_behind() {
    serve_start "$tmp/server" || return
    cat >"$tmp/ask.py" <<'P'
import http.client, json, os, signal, sys, threading
url, token, pid = sys.argv[1:]
body = json.dumps({"messages": [{"role": "user", "content": "why"}], "max_tokens": 3,
                   "documents": ["the ferry leaves at dawn " * 40000]})
got, lock, first = [], threading.Lock(), threading.Event()
def ask():
    c = http.client.HTTPConnection(url[len("http://"):], timeout=250)
    try:
        c.request("POST", "/v1/chat/completions", body, {"Authorization": "Bearer " + token})
        r = c.getresponse()
        answer = (r.status, "error" in json.load(r))
    except (ConnectionError, http.client.HTTPException) as e:
        answer = (0, e)  # it came when nobody listened any more
    with lock:
        got.append(answer)
    first.set()
threads = [threading.Thread(target=ask) for _ in range(30)]
[t.start() for t in threads]
first.wait()
os.kill(int(pid), signal.SIGINT)
[t.join() for t in threads]
assert len(got) == 30 and all(s in (0, 400, 503) for s, _ in got), got
assert got[0][0] == 400, got
P
    python3 "$tmp/ask.py" "$url" "$token" "$pid" 2>"$tmp/log" || fail "$(tail -3 "$tmp/log")" || return
    wait "$pid"
    is $? 0
}

# Eight bodies of 14 MB, and a small one when the first of them is answered.
a_small_request_does_not_wait_for_large_ones() {
    serve_start "$tmp/server" || return
    cat >"$tmp/ask.py" <<'P'
import http.client, json, sys, threading
url, token = sys.argv[1:]
many = json.dumps({"messages": [{"role": "user", "content": "why " * (14 << 18)}]})
first, done = threading.Event(), []
def ask(body, name):
    c = http.client.HTTPConnection(url[len("http://"):], timeout=250)
    c.request("POST", "/v1/chat/completions", body, {"Authorization": "Bearer " + token})
    done.append((name, c.getresponse().status))
    first.set()
threads = [threading.Thread(target=ask, args=(many, "large")) for _ in range(8)]
[t.start() for t in threads]
first.wait()
ask(json.dumps({"messages": [{"role": "user", "content": "why"}], "max_tokens": 1}), "small")
[t.join() for t in threads]
assert sorted(done) == [("large", 400)] * 8 + [("small", 200)], done
assert done[-1][0] == "large", done
P
    python3 "$tmp/ask.py" "$url" "$token" 2>"$tmp/log" || fail "$(tail -3 "$tmp/log")" || return
    serve_end
}

run a_stream_that_cannot_begin_is_an_error_with_its_status
run a_small_request_does_not_wait_for_large_ones
run a_server_that_ends_leaves_no_request_behind
test_end
