#!/usr/bin/env bash
# Clients that people have: the openai package, LangChain, LlamaIndex (tools/setup --clients), and Open
# WebUI by the requests that it sends.
# The kit forgets variables of ours.
python=${TESSERA_DEPS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tessera}/clients/bin/python
# shellcheck source=tests/serve/serve_kit.sh
. "$(dirname "$0")/serve_kit.sh"
serve_needs
serve_start "$tmp_all/server" || exit 1

client() {
    [ -x "$python" ] || skip "no $1: tools/setup --clients" || return
    "$python" tests/serve/clients.py "$1" "$url" "$token" >"$tmp/log" 2>&1
    case $? in
    0) ;;
    77) skip "no $1: $(tail -1 "$tmp/log")" ;;
    *) fail "$(tail -4 "$tmp/log")" ;;
    esac
}
the_openai_package_works() { client openai; }
langchain_works() { client langchain; }
llamaindex_works() { client llamaindex; }

open_webui_works() {
    get /v1/models
    is "$(json 'x["data"][0]["id"]')" m || return
    # A question as it streams it, and the title that it asks for afterwards.
    post /v1/chat/completions '{"stream":true,"model":"m","messages":[{"role":"user","content":"why"}],"max_tokens":5,"stream_options":{"include_usage":true},"features":{},"chat_id":"x","session_id":"y"}'
    is "$(events 'e[-1]["usage"]["completion_tokens"]')" 5 || return
    post /v1/chat/completions '{"model":"m","messages":[{"role":"user","content":"### Task:\nGenerate a concise title"}],"stream":false,"max_completion_tokens":9,"metadata":{"task":"title_generation"}}'
    answers 200 || return
    is "$(json 'x["usage"]["completion_tokens"] <= 9')" True
}

run the_openai_package_works
run langchain_works
run llamaindex_works
run open_webui_works
serve_end
test_end
