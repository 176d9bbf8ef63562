#!/usr/bin/env bash
# A conversation as one prompt, as the server makes it: the same tokens as those of tessera ask.
# shellcheck source=tests/serve/serve_kit.sh
. "$(dirname "$0")/../serve/serve_kit.sh"
serve_needs

a_question_about_documents_is_the_prompt_of_ask() {
    ask_init llama || return
    ask --json --docs="$tmp/docs" 'why'
    exits 0 || return
    local n
    n=$(count prompt)
    serve_start "$tmp" || return
    post /v1/chat/completions "$(python3 -c '
import json, sys
docs = [{"name": p.rsplit("/", 1)[1], "text": open(p).read()} for p in sys.argv[1:]]
print(json.dumps({"messages": [{"role": "user", "content": "why"}], "documents": docs, "max_tokens": 2}))
' "$tmp/docs/a.md" "$tmp/docs/b.txt")"
    answers 200 || return
    is "$(json 'x["usage"]["prompt_tokens"]')" "$n" || return
    # The store of ask knows the documents.
    is "$(json 'x["usage"]["prompt_tokens_details"]["cached_tokens"] > 500')" True || return
    serve_end
}

turns_follow_each_other() {
    serve_start "$tmp/server" || return
    local one
    post /v1/chat/completions '{"messages":[{"role":"user","content":"a"}],"max_tokens":1}'
    one=$(json 'x["usage"]["prompt_tokens"]')
    post /v1/chat/completions '{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}],"max_tokens":1}'
    [ "$(json 'x["usage"]["prompt_tokens"]')" -gt "$one" ] || fail "$out" || return
    serve_end
}

run a_question_about_documents_is_the_prompt_of_ask
run turns_follow_each_other
test_end
