#!/usr/bin/env bash
# The JSON of replies.
# shellcheck source=tests/serve/serve_kit.sh
. "$(dirname "$0")/serve_kit.sh"
serve_needs
serve_start "$tmp_all/server" || exit 1

a_chat_reply_has_the_members_of_openai() {
    post /v1/chat/completions "{\"model\":\"m\",$hello,\"max_tokens\":5}"
    answers 200 || return
    is "$(json 'sorted(x)')" "['choices', 'created', 'id', 'model', 'object', 'system_fingerprint', 'tessera', 'usage']" || return
    is "$(json 'sorted(x["choices"][0])')" "['finish_reason', 'index', 'logprobs', 'message']" || return
    is "$(json 'x["choices"][0]["message"]["role"]')" assistant || return
    is "$(json 'x["usage"]["total_tokens"] == x["usage"]["prompt_tokens"] + 5')" True
}

tokens_of_the_cache_are_counted() {
    local doc
    doc=$(letters 400 a)
    post /v1/chat/completions "{$hello,\"documents\":[\"$doc\"],\"max_tokens\":2}"
    is "$(json 'x["usage"]["prompt_tokens_details"]')" "{'cached_tokens': 0, 'recomputed_tokens': 0}" || return
    post /v1/chat/completions "{$hello,\"documents\":[\"$doc\"],\"max_tokens\":2}"
    is "$(json 'x["usage"]["prompt_tokens_details"]["cached_tokens"] > 200')" True || return
    is "$(json 'sum(x["tessera"]["tokens"].values()) == x["usage"]["prompt_tokens"]')" True || return
    is "$(json 'x["tessera"]["seconds"]["first_token"] > 0')" True
}

the_model_is_listed_and_another_one_is_not_found() {
    get /v1/models
    is "$(json 'x["data"][0]["id"]')" m || return
    get /v1/models/m
    is "$(json 'x["id"]')" m || return
    post /v1/chat/completions "{\"model\":\"gpt-4\",$hello}"
    refuses 404 model 'gpt-4 does not exist'
}

run a_chat_reply_has_the_members_of_openai
run tokens_of_the_cache_are_counted
run the_model_is_listed_and_another_one_is_not_found
serve_end
test_end
