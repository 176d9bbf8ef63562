#!/usr/bin/env bash
# The server as a whole: many at once, limits of time and of the queue, the end.
# shellcheck source=tests/serve/serve_kit.sh
. "$(dirname "$0")/serve_kit.sh"
serve_needs

many_at_once_lose_nothing_and_exact_answers_do_not_depend_on_company() {
    serve_start "$tmp/server" --at-once=4 || return
    cat >"$tmp/ask.py" <<'P'
import json, sys, threading, urllib.request
url, token = sys.argv[1:]
def ask(i):
    body = {"messages": [{"role": "user", "content": "question %d " % (i % 8) * 8}], "max_tokens": 12,
            "tessera": {"mode": "exact"}}
    r = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                               {"Authorization": "Bearer " + token, "Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(r, timeout=300))["choices"][0]["message"]["content"]
alone = [ask(i) for i in range(8)]
got = [None] * 32
def run(i): got[i] = ask(i)
threads = [threading.Thread(target=run, args=(i,)) for i in range(32)]
[t.start() for t in threads]
[t.join() for t in threads]
assert got == [alone[i % 8] for i in range(32)], (got, alone)
P
    python3 "$tmp/ask.py" "$url" "$token" 2>"$tmp/log" || fail "$(tail -3 "$tmp/log")" || return
    serve_end
}

# One answer is written at a time and 64 wait: a long one, then 79 short ones, every other a stream.
a_full_queue_refuses_with_429_and_what_it_took_is_answered() {
    serve_start "$tmp/server" --at-once=1 || return
    cat >"$tmp/ask.py" <<'P'
import http.client, json, sys, threading, time
url, token = sys.argv[1:]
def call(method, path, body=None):
    c = http.client.HTTPConnection(url[len("http://"):], timeout=250)
    c.request(method, path, body, {"Authorization": "Bearer " + token})
    r = c.getresponse()
    return r.status, r.headers, r.read().decode()
def number(name):
    return int(next(l.split()[1] for l in call("GET", "/metrics")[2].split("\n") if l.startswith(name + " ")))
LONG, SHORT = 1500, 2
got = [None] * 80
def ask(i, n, stream):
    body = {"messages": [{"role": "user", "content": "why"}], "max_tokens": n, "ignore_eos": True}
    if stream:
        body.update({"stream": True, "stream_options": {"include_usage": True}})
    status, headers, text = call("POST", "/v1/chat/completions", json.dumps(body))
    if status == 200 and stream:
        events = [l[len("data: "):] for l in text.split("\n") if l.startswith("data: ")]
        assert events.pop() == "[DONE]", text
        text = events[-1]
    got[i] = status, headers, json.loads(text), n
def run(first, last, n):
    threads = [threading.Thread(target=ask, args=(i, n, i % 2 == 1)) for i in range(first, last)]
    [t.start() for t in threads]
    return threads
threads = run(0, 1, LONG)
end = time.monotonic() + 60
while number("tessera_serve_writing") < 1:
    assert time.monotonic() < end, "the first answer does not begin"
    time.sleep(0.01)
threads += run(1, 80, SHORT)
[t.join() for t in threads]
refused = [g for g in got if g[0] != 200]
assert 1 <= len(refused) <= 80 - 65, len(refused)
for status, headers, answer, _ in refused:
    error = answer["error"]
    assert status == 429 and headers["Retry-After"] == "1", (status, headers.items())
    assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full"), error
    assert "too many questions wait" in error["message"], error
for status, _, answer, n in got:
    assert status != 200 or answer["usage"]["completion_tokens"] == n, answer
assert number("tessera_serve_refused_total") == len(refused)
ask(0, SHORT, False)
assert got[0][0] == 200, got[0]
P
    python3 "$tmp/ask.py" "$url" "$token" 2>"$tmp/log" || fail "$(tail -3 "$tmp/log")" || return
    serve_end
}

# No machine writes these in a second: 16 times what the context holds, one after another.
an_answer_that_takes_too_long_ends() {
    serve_start "$tmp/server" --time-limit=1 --at-once=1 || return
    local i askers=()
    for i in {1..16}; do
        curl -s -m 60 -w '\n%{http_code}\n' "$url/v1/chat/completions" -H "Authorization: Bearer $token" \
            -d "{$hello,\"max_tokens\":4000,\"ignore_eos\":true}" >"$tmp/answer$i" &
        askers+=($!)
    done
    wait "${askers[@]}"
    grep -q 'took longer than 1 s' "$tmp"/answer* || fail "$(cut -c1-200 "$tmp"/answer*)" || return
    # A part is an answer, too; what has none is an error with its status.
    for i in {1..16}; do
        if grep -q 'took longer than 1 s' "$tmp/answer$i"; then
            is "$(tail -1 "$tmp/answer$i")" 503 || return
        else
            is "$(tail -1 "$tmp/answer$i")" 200 || return
        fi
    done
    get /health
    answers 200 || return
    serve_end
}

an_answer_is_as_long_as_asked_when_its_end_is_ignored() {
    serve_start "$tmp/server" || return
    post /v1/chat/completions "{$hello,\"max_tokens\":300,\"ignore_eos\":true,\"temperature\":1}"
    is "$(json 'x["usage"]["completion_tokens"]')" 300 || return
    serve_end
}

a_signal_ends_it_after_the_running_answers() {
    serve_start "$tmp/server" || return
    curl -sN -m 300 "$url/v1/chat/completions" -H "Authorization: Bearer $token" \
        -d "{$hello,\"max_tokens\":100,\"stream\":true,\"temperature\":1,\"seed\":3}" >"$tmp/answer" &
    local asker=$!
    while [ ! -s "$tmp/answer" ]; do sleep 0.01; done
    kill -TERM "$pid"
    wait "$pid"
    is $? 0 || return
    wait "$asker"
    tail -c 20 "$tmp/answer" | grep -q 'DONE' || fail "$(tail -c 300 "$tmp/answer")"
}

what_was_read_is_known_to_the_next_server() {
    local doc
    doc=$(letters 600 a)
    serve_start "$tmp/server" || return
    post /v1/chat/completions "{$hello,\"documents\":[\"$doc\"],\"max_tokens\":2}"
    answers 200 || return
    post /v1/chat/completions "{$hello,\"documents\":[\"$doc\"],\"max_tokens\":2}"
    serve_end
    serve_start "$tmp/server" || return
    post /v1/chat/completions "{$hello,\"documents\":[\"$doc\"],\"max_tokens\":2}"
    is "$(json 'x["usage"]["prompt_tokens_details"]["cached_tokens"] > 300')" True || return
    serve_end
}

run many_at_once_lose_nothing_and_exact_answers_do_not_depend_on_company
run a_full_queue_refuses_with_429_and_what_it_took_is_answered
run an_answer_that_takes_too_long_ends
run an_answer_is_as_long_as_asked_when_its_end_is_ignored
run a_signal_ends_it_after_the_running_answers
run what_was_read_is_known_to_the_next_server
test_end
