#!/usr/bin/env bash
# Answers on their way out: whole, streamed, stopped, given up.
# shellcheck source=tests/serve/serve_kit.sh
. "$(dirname "$0")/serve_kit.sh"
serve_needs
serve_start "$tmp_all/server" || exit 1

ask_chat() { post /v1/chat/completions "{$hello,\"max_tokens\":24,$1}"; }

a_stream_has_the_text_of_a_whole_answer() {
    ask_chat '"stream":false'
    answers 200 || return
    local whole
    whole=$(json 'x["choices"][0]["message"]["content"].encode()')
    ask_chat '"stream":true'
    answers 200 || return
    is "$(events 't.encode()')" "$whole" || return
    is "$(events 'e[0]["choices"][0]["delta"]')" "{'role': 'assistant', 'content': ''}" || return
    is "$(events '[c["finish_reason"] for x in e for c in x["choices"]][-2:]')" "[None, 'length']" || return
    is "$(events '{x["object"] for x in e}')" "{'chat.completion.chunk'}" || return
    is "$(events 'len({x["id"] for x in e})')" 1 || return
    is "$(events '"tessera" in e[-1] and "usage" not in e[-1]')" True
}

usage_comes_last_where_it_is_asked_for() {
    ask_chat '"stream":true,"stream_options":{"include_usage":true}'
    is "$(events 'e[-1]["choices"] == [] and e[-1]["usage"]["completion_tokens"] == 24')" True || return
    is "$(events 'all(x["usage"] is None for x in e[:-1])')" True
}

a_stop_string_ends_the_answer_before_it() {
    ask_chat '"stream":false'
    local stop kept
    # Two characters from the middle that are not of one token, and what is before them.
    stop=$(json '(lambda t: t[9:12])(x["choices"][0]["message"]["content"])')
    kept=$(json '(lambda t: t[:t.index(t[9:12])].encode())(x["choices"][0]["message"]["content"])')
    stop=$(python3 -c 'import json, sys; print(json.dumps(sys.argv[1]))' "$stop")
    [[ $stop != *ufffd* ]] || skip 'the model says nothing of sense here' || return
    ask_chat "\"stop\":$stop"
    is "$(json 'x["choices"][0]["finish_reason"]')" stop || return
    is "$(json 'x["choices"][0]["message"]["content"].encode()')" "$kept" || return
    ask_chat "\"stream\":true,\"stop\":[\"never there\",$stop]"
    is "$(events 't.encode()')" "$kept"
}

logprobs_have_the_form_of_either_api() {
    ask_chat '"logprobs":true,"top_logprobs":3'
    is "$(json 'len(x["choices"][0]["logprobs"]["content"])')" 24 || return
    is "$(json 'sorted(x["choices"][0]["logprobs"]["content"][5])')" \
        "['bytes', 'logprob', 'token', 'top_logprobs']" || return
    is "$(json 'all(len(c["top_logprobs"]) == 3 and c["top_logprobs"][0]["logprob"] == c["logprob"] for c in x["choices"][0]["logprobs"]["content"])')" True || return
    post /v1/completions '{"prompt":"once","max_tokens":6,"logprobs":2}'
    is "$(json '[len(v) for k, v in sorted(x["choices"][0]["logprobs"].items())]')" '[6, 6, 6, 6]' || return
    ask_chat '"logprobs":true,"stream":true'
    is "$(events 'sum(len(c["logprobs"]["content"]) for x in e for c in x["choices"] if c["logprobs"])')" 24
}

a_seed_repeats_an_answer_and_the_most_likely_one_needs_none() {
    local first
    ask_chat '"temperature":1.5,"seed":7'
    first=$(json 'x["choices"][0]["message"]["content"].encode()')
    ask_chat '"temperature":1.5,"seed":7'
    is "$(json 'x["choices"][0]["message"]["content"].encode()')" "$first" || return
    ask_chat '"temperature":1.5,"seed":8'
    [ "$(json 'x["choices"][0]["message"]["content"].encode()')" != "$first" ] || fail "$first"
}

top_p_of_zero_is_the_most_likely_token_alone() {
    local likely
    ask_chat '"temperature":0'
    likely=$(json 'x["choices"][0]["message"]["content"].encode()')
    ask_chat '"temperature":2,"top_p":0,"seed":7'
    is "$(json 'x["choices"][0]["message"]["content"].encode()')" "$likely"
}

# A number of /metrics.
number() {
    get /metrics
    sed -n "s/^tessera_serve_$1 //p" <<<"$out"
}

# Twelve clients ask for long answers, of which four are written at once, and leave; $1: streams, or
# replies in one piece; $2: what the clients send before they leave. However fast the machine is, the
# last answers are not written then.
all_leave() {
    local i before after
    before=$(number gone_total)
    python3 - "$url" "$token" "{$hello,\"max_tokens\":1900,\"ignore_eos\":true" "$@" <<'P' || fail 'cannot ask' || return
import socket, sys
url, token, body, kind, last = sys.argv[1:]
host = url[len("http://"):]
head = "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n"
clients = []
for i in range(12):
    s = socket.create_connection(host.split(":"))
    text = body + (', "stream": true}' if kind == "stream" else "}")
    s.sendall((head % (host, token, len(text)) + text).encode())
    clients.append(s)
if kind == "stream":
    assert clients[0].recv(1)  # the first answer has begun
for s in clients:
    s.sendall(last.encode())
P
    for ((i = 0; i < 2500; i++)); do
        [ "$(number answers)" = 0 ] && break
        sleep 0.1
    done
    after=$(number gone_total)
    [ "$after" -gt "$before" ] || fail "$(get /metrics; grep serve_ <<<"$out")"
}

a_client_that_leaves_ends_its_answer() { all_leave stream '' && all_leave whole ''; }

# The bytes of the next request are no sign that somebody is there.
a_client_that_leaves_with_a_second_question_under_way_ends_its_answer() { all_leave whole $'GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n'; }

progress='[x["tessera"]["progress"] for x in e if "progress" in x.get("tessera", {})]'

a_stream_tells_progress_where_it_is_asked_for() {
    ask_chat '"stream":true,"documents":[{"name":"a.md","text":"one"},{"name":"b.md","text":"two"},{"name":"a.md","text":"three"}],"tessera":{"progress":true},"stream_options":{"include_usage":true}'
    answers 200 || return
    is "$(events 'e[0]["choices"]')" '[]' || return
    is "$(events 'sorted(e[0]["tessera"])')" "['progress']" || return
    is "$(events "sorted(${progress}[0])")" "['documents', 'seconds_left', 'tokens', 'tokens_read']" || return
    is "$(events "${progress}[0]['documents']")" "['a.md', 'b.md']" || return
    is "$(events "(${progress}[0]['tokens_read'], ${progress}[0]['tokens'] == e[-1]['usage']['prompt_tokens'])")" '(0, True)' || return
    is "$(events 'e[0]["usage"] is None and e[0]["id"] == e[-1]["id"]')" True || return
    is "$(events 'len(t) > 0')" True || return
    ask_chat '"stream":true'
    is "$(events "$progress")" '[]' || return
    ask_chat '"tessera":{"progress":true}'
    is "$(json '"progress" in x["tessera"]')" False || return
    post /v1/chat/completions '{"stream":true,"messages":[],"tessera":{"progress":true}}'
    refuses 400 messages ''
}

# Another answer is written meanwhile; only one is at once. All chunks come before the first token.
progress_is_told_about_once_a_second_while_a_question_waits() {
    serve_start "$tmp/one" --at-once=1 || return
    curl -s -o "$tmp/first" -H "Authorization: Bearer $token" \
        -d "{$hello,\"max_tokens\":1900,\"ignore_eos\":true}" "$url/v1/chat/completions" &
    local first=$! i
    for ((i = 0; i < 1000; i++)); do
        [ "$(number writing)" = 1 ] && break
        sleep 0.02
    done
    ask_chat '"stream":true,"tessera":{"progress":true}'
    answers 200 || return
    wait "$first"
    is "$(events "(lambda s: s / 2 <= len($progress) <= s * 1.5 + 2)(e[-1]['tessera']['seconds']['first_token'])")" True || return
    is "$(events "[('progress' in x.get('tessera', {})) for x in e].index(False) == len($progress)")" True || return
    is "$(events "all(p['tokens_read'] <= p['tokens'] for p in $progress)")" True || return
    serve_end
}

# Its system prompt is cached the second time, and it is a measurement all the same.
a_full_read_is_estimated_from_prompts_with_a_cached_begin() {
    serve_start "$tmp/speed" || return
    local system i
    system=$(letters 60 s)
    for i in c d e; do
        post /v1/chat/completions "{\"max_tokens\":2,\"tessera\":{\"mode\":\"exact\"},\"messages\":[{\"role\":\"system\",\"content\":\"$system\"},{\"role\":\"user\",\"content\":\"$(letters 300 "$i")\"}]}"
        answers 200 || return
        # Of the first one, too, without what it has measured.
        [ "$i" = d ] && : >"$home/deps/store/"*.speed
    done
    is "$(json 'x["usage"]["prompt_tokens_details"]["cached_tokens"] * 10 > x["usage"]["prompt_tokens"]')" True || return
    post /v1/chat/completions "{\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\"content\":\"$(letters 400 f)\"}]}"
    is "$(json 'x["tessera"]["seconds"]["full_read_estimate"] > 0')" True || return
    serve_end
}

run a_stream_tells_progress_where_it_is_asked_for
run a_stream_has_the_text_of_a_whole_answer
run usage_comes_last_where_it_is_asked_for
run a_stop_string_ends_the_answer_before_it
run logprobs_have_the_form_of_either_api
run a_seed_repeats_an_answer_and_the_most_likely_one_needs_none
run top_p_of_zero_is_the_most_likely_token_alone
run a_client_that_leaves_with_a_second_question_under_way_ends_its_answer
run a_client_that_leaves_ends_its_answer
serve_end
run a_full_read_is_estimated_from_prompts_with_a_cached_begin
run progress_is_told_about_once_a_second_while_a_question_waits
test_end
