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

# No machine writes these in a second: 16 times what the context holds, one after another.
an_answer_that_takes_too_long_ends() {
    serve_start "$tmp/server" --time-limit=1 --at-once=1 || return
    local i askers=()
    for i in {1..16}; do
        curl -s -m 60 "$url/v1/chat/completions" -H "Authorization: Bearer $token" \
            -d "{$hello,\"max_tokens\":4000,\"ignore_eos\":true}" >"$tmp/answer$i" &
        askers+=($!)
    done
    wait "${askers[@]}"
    grep -q 'took longer than 1 s' "$tmp"/answer* || fail "$(cut -c1-200 "$tmp"/answer*)" || return
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
run an_answer_that_takes_too_long_ends
run an_answer_is_as_long_as_asked_when_its_end_is_ignored
run a_signal_ends_it_after_the_running_answers
run what_was_read_is_known_to_the_next_server
test_end
