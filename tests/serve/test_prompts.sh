#!/usr/bin/env bash
# From requests to prompts: documents, templates, plain prompts, limits of the context.
# shellcheck source=tests/serve/serve_kit.sh
. "$(dirname "$0")/serve_kit.sh"
serve_needs
mkdir -p "$tmp_all/docs"
for name in ferry train; do
    { echo "# The $name" && letters 900 a && echo && echo "The $name leaves at dawn." && letters 600 b; } \
        >"$tmp_all/docs/$name.md"
done
serve_start "$tmp_all/server" --docs="$tmp_all/docs" --no-read-ahead --enable-chunk-cache \
    --chunk-separator=@@ || exit 1

# A document of so many letters, as a JSON string.
text() { python3 -c 'import json, sys; print(json.dumps(sys.stdin.read()))' < <(letters "$1" "$2"); }
chat() { post /v1/chat/completions "{\"max_tokens\":4,$1}"; }
used() { json 'x["tessera"]["documents"]'; }

documents_of_a_list_and_of_messages_are_the_same_prompt() {
    local doc n
    doc=$(text 400 c)
    chat "$hello,\"tessera\":{\"search\":false},\"documents\":[{\"name\":\"c.md\",\"text\":$doc}]"
    answers 200 || return
    n=$(json 'x["usage"]["prompt_tokens"]')
    [ "$n" -gt 250 ] || fail "$out" || return
    chat "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"title\":\"c.md\",\"content\":$doc},{\"type\":\"text\",\"text\":\"why\"}]}]"
    answers 200 || return
    is "$(json 'x["usage"]["prompt_tokens"]')" "$n" || return
    # The same tokens: the whole prompt but its end is known.
    is "$(json 'x["usage"]["prompt_tokens_details"]["cached_tokens"] > 200')" True || return
    is "$(json 'x["tessera"]["documents"][0]["name"]')" c.md
}

documents_between_separators_are_the_same_prompt() {
    local c d n
    c=$(letters 300 c) d=$(letters 300 d)
    chat "\"messages\":[{\"role\":\"user\",\"content\":\"Be kind.\n\nwhy\"}],\"documents\":[$(text 300 c),$(text 300 d)]"
    answers 200 || return
    n=$(json 'x["usage"]["prompt_tokens"]')
    chat "\"messages\":[{\"role\":\"user\",\"content\":\"Be kind.@@${c}@@${d}@@why\"}]"
    answers 200 || return
    is "$(json 'x["usage"]["prompt_tokens"]')" "$n" || return
    is "$(json 'len(x["tessera"]["documents"])')" 2 || return
    is "$(json 'x["usage"]["prompt_tokens_details"]["cached_tokens"] > 300')" True || return
    # In another order the documents are known, too; a plain prompt has them as they are.
    chat "\"messages\":[{\"role\":\"user\",\"content\":\"Be good.@@${d}@@${c}@@how\"}],\"tessera\":{\"mode\":\"fast\"}"
    answers 200 || return
    is "$(json 'x["usage"]["prompt_tokens_details"]["cached_tokens"] > 300')" True || return
    post /v1/completions "{\"max_tokens\":4,\"prompt\":\"Be kind.@@${c}@@${d}@@why\"}"
    answers 200 || return
    is "$(json 'len(x["tessera"]["documents"])')" 2 || return
    [ "$(json 'x["usage"]["prompt_tokens"]')" -lt "$n" ] || fail "$out" || return
    # What has no documents is text, also in an earlier turn.
    chat '"messages":[{"role":"user","content":"Be kind.@@ @@why"},{"role":"assistant","content":"so"},{"role":"user","content":"@@how"}]'
    answers 200 || return
    is "$(used)" '[]'
}

# Until nothing waits to be stored.
stored() {
    local i
    for ((i = 0; i < 2500; i++)); do
        get /metrics
        grep -q '^tessera_serve_learning 0$' <<<"$out" && return
        sleep 0.1
    done
    fail "$(grep serve_ <<<"$out")"
}

a_list_stays_in_its_place_when_the_chat_goes_on() {
    local doc n
    doc=$(text 400 h)
    chat "$hello,\"documents\":[$doc],\"tessera\":{\"mode\":\"exact\"}"
    answers 200 || return
    n=$(json 'x["usage"]["prompt_tokens"]')
    stored || return
    chat "\"messages\":[{\"role\":\"user\",\"content\":\"why\"},{\"role\":\"assistant\",\"content\":\"so\"},{\"role\":\"user\",\"content\":\"how\"}],\"documents\":[$doc],\"tessera\":{\"mode\":\"exact\"}"
    # All of the first prompt, but for a block that is not full.
    is "$(json "x['usage']['prompt_tokens_details']['cached_tokens'] >= $n // 32 * 32")" True || return
    is "$(json 'x["tessera"]["exact"]')" True
}

a_question_finds_its_passages_and_names_them() {
    chat '"messages":[{"role":"user","content":"When does the ferry leave?"}]'
    answers 200 || return
    is "$(json 'x["tessera"]["documents"][0]["name"]')" ferry.md || return
    [[ $(json 'x["tessera"]["documents"][0]["text"]') == *'ferry'* ]] || fail "$out" || return
    chat '"messages":[{"role":"user","content":"When does the ferry leave?"}],"tessera":{"search":false}'
    is "$(used)" '[]'
}

a_chat_that_goes_on_finds_what_its_earlier_question_was_about() {
    local before='{"role":"user","content":"When does the ferry leave?"},{"role":"assistant","content":"At dawn."}'
    chat "\"messages\":[$before,{\"role\":\"user\",\"content\":\"How long has it done that?\"}]"
    answers 200 || return
    is "$(json 'x["tessera"]["documents"][0]["name"]')" ferry.md || return
    chat '"messages":[{"role":"user","content":"How long has it done that?"}]'
    is "$(used)" '[]'
}

the_reply_says_whether_documents_were_searched() {
    chat '"messages":[{"role":"user","content":"When does the ferry leave?"}]'
    is "$(json 'x["tessera"]["documents_searched"]')" True || return
    chat "$hello"
    is "$(json '[x["tessera"]["documents_searched"], x["tessera"]["documents"]]')" '[True, []]' || return
    chat "$hello,\"tessera\":{\"search\":false}"
    is "$(json 'x["tessera"]["documents_searched"]')" False || return
    chat "$hello,\"documents\":[\"a\"]"
    is "$(json 'x["tessera"]["documents_searched"]')" False || return
    post /v1/completions '{"prompt":"When does the ferry leave?","max_tokens":2}'
    is "$(json 'x["tessera"]["documents_searched"]')" False || return
    post /v1/chat/completions "{\"stream\":true,\"max_tokens\":2,$hello}"
    is "$(events 'e[-1]["tessera"]["documents_searched"]')" True
}

# The system prompt is the one that is used with documents, and the model is told that there are none.
where_no_document_is_found_the_model_is_told_so() {
    local system='You answer questions about the documents that the user gives you. Answer briefly, and only from the documents.' n own
    chat "$hello"
    n=$(json 'x["usage"]["prompt_tokens"]')
    chat "\"tessera\":{\"search\":false},\"messages\":[{\"role\":\"system\",\"content\":\"$system\"},{\"role\":\"user\",\"content\":\"There is no document about this question. Say so.\n\nQuestion: why\"}]"
    # Ours is part of the template's text, where a token may join both.
    is "$(json "abs(x['usage']['prompt_tokens'] - $n) <= 1")" True || return
    # Who brings a system prompt says there what is wanted.
    own='"messages":[{"role":"system","content":"s"},{"role":"user","content":"why"}]'
    chat "$own"
    n=$(json 'x["usage"]["prompt_tokens"]')
    chat "$own,\"tessera\":{\"search\":false}"
    is "$(json 'x["usage"]["prompt_tokens"]')" "$n"
}

# Every letter is a token here, which takes more of the context than was thought.
passages_that_do_not_fit_are_left_out() {
    local i
    for i in 1 2 3 4; do { letters 1000 e && echo "The zeppelin number $i leaves at noon."; } >"$tmp_all/docs/zeppelin$i.md"; done
    for ((i = 0; i < 1000; i++)); do
        get /tessera/status
        [ "$(json 'x["documents"]["files"]')" = 6 ] && break
        sleep 0.2
    done
    chat '"messages":[{"role":"user","content":"When does the zeppelin leave?"}]'
    answers 200 || return
    is "$(json '0 < len(x["tessera"]["documents"]) < 4')" True || return
    is "$(json 'x["usage"]["prompt_tokens"] <= 2048 - 2048 // 8')" True
}

a_mode_is_obeyed_and_told() {
    local mode
    for mode in exact auto fast; do
        chat "$hello,\"tessera\":{\"mode\":\"$mode\"}"
        answers 200 || return
        is "$(json 'x["tessera"]["mode"]')" "$mode" || return
    done
    chat "$hello,\"tessera\":{\"mode\":\"exact\"}"
    is "$(json '[x["tessera"]["exact"], x["tessera"]["sure"]]')" '[True, 1.0]'
}

special_tokens_in_texts_are_letters() {
    chat '"messages":[{"role":"user","content":"a"}],"tessera":{"search":false}'
    local n
    n=$(json 'x["usage"]["prompt_tokens"]')
    chat '"messages":[{"role":"user","content":"a<|im_end|>"}],"tessera":{"search":false}'
    [ $(($(json 'x["usage"]["prompt_tokens"]') - n)) -ge 5 ] || fail "$out" || return
    chat '"messages":[{"role":"system","content":"a<|im_end|>"},{"role":"user","content":"a"}],"tessera":{"search":false}'
    [ $(($(json 'x["usage"]["prompt_tokens"]') - n)) -ge 5 ] || fail "$out"
}

a_conversation_keeps_its_turns() {
    chat '"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}],"tessera":{"search":false}'
    answers 200
}

a_completion_takes_text_or_tokens() {
    post /v1/completions '{"prompt":[5,6,7],"max_tokens":3}'
    answers 200 || return
    is "$(json 'x["usage"]["prompt_tokens"]')" 3 || return
    is "$(json 'x["object"]')" text_completion || return
    post /v1/completions '{"prompt":[999999],"max_tokens":3}'
    refuses 400 None 'is not one of the model' || return
    post /v1/completions "{\"prompt\":\"why\",\"documents\":[$(text 400 d)],\"max_tokens\":3}"
    answers 200
}

what_does_not_fit_is_refused_with_the_numbers() {
    chat "\"messages\":[{\"role\":\"user\",\"content\":$(text 9000 a)}],\"tessera\":{\"search\":false}"
    refuses 400 messages "the model's context has 2048" || return
    is "$(json 'x["error"]["code"]')" context_length_exceeded
}

# Says about how long it would be, and counts no further: the whole has 900000 tokens. With the
# server's documents, too, which are not searched for it.
what_is_far_too_long_is_refused_before_it_is_counted() {
    local where
    python3 -c 'import json, sys; t = "why, " * 180000; m = {"role": "user", "content": t}
for name, x in (("one", {"messages": [m]}), ("plain", {"prompt": t}),
                ("listed", {"messages": [{"role": "user", "content": "why"}], "documents": [t]}),
                ("many", {"messages": [{"role": "user", "content": t[:900]}] * 1000})):
    json.dump(x, open(sys.argv[1] + "/" + name, "w"))' "$tmp"
    for where in chat/completions/one chat/completions/listed chat/completions/many completions/plain; do
        post "/v1/${where%/*}" "@$tmp/${where##*/}"
        answers 400 || return
        is "$(json 'x["error"]["code"]')" context_length_exceeded || return
        is "$(json '2048 <= int(x["error"]["message"].split("at least ")[1].split()[0]) < 10000')" True || return
    done
}

documents_without_a_question_are_refused() {
    chat '"messages":[{"role":"assistant","content":"well"}],"documents":["d"]'
    refuses 400 documents 'need a message of the user'
}

run documents_of_a_list_and_of_messages_are_the_same_prompt
run documents_between_separators_are_the_same_prompt
run a_list_stays_in_its_place_when_the_chat_goes_on
run a_question_finds_its_passages_and_names_them
run a_chat_that_goes_on_finds_what_its_earlier_question_was_about
run the_reply_says_whether_documents_were_searched
run where_no_document_is_found_the_model_is_told_so
run a_mode_is_obeyed_and_told
run passages_that_do_not_fit_are_left_out
run special_tokens_in_texts_are_letters
run a_conversation_keeps_its_turns
run a_completion_takes_text_or_tokens
run documents_without_a_question_are_refused
run what_does_not_fit_is_refused_with_the_numbers
run what_is_far_too_long_is_refused_before_it_is_counted
serve_end

# Both are in the prompt, whatever the question says; the same ones as of ask.
small_folders_are_in_the_prompt_whole() {
    mkdir "$tmp/small"
    { echo 'The tide comes at noon.' && letters 200 c; } >"$tmp/small/tide.md"
    { echo 'The moon rises late.' && letters 200 d; } >"$tmp/small/moon.md"
    serve_start "$tmp/server" --docs="$tmp/small" --no-read-ahead || return
    local first='{"role":"user","content":"Summarize them."}' n
    chat "\"messages\":[$first]"
    answers 200 || return
    is "$(json '[d["name"] for d in x["tessera"]["documents"]]')" "['moon.md', 'tide.md']" || return
    n=$(json 'x["usage"]["prompt_tokens"]')
    t ask --model="$model" --threads=1 --max=4 --docs="$tmp/small" --no-store --json 'Summarize them.'
    is "$(count prompt)" "$n" || return
    # They stay in their place when the chat goes on.
    chat "\"messages\":[$first],\"tessera\":{\"mode\":\"exact\"}"
    stored || return
    chat "\"messages\":[$first,{\"role\":\"assistant\",\"content\":\"so\"},{\"role\":\"user\",\"content\":\"how\"}],\"tessera\":{\"mode\":\"exact\"}"
    answers 200 || return
    is "$(json "x['usage']['prompt_tokens_details']['cached_tokens'] >= $n // 32 * 32")" True || return
    # Beside a long question they are searched, as larger ones are.
    chat "\"messages\":[{\"role\":\"user\",\"content\":\"tide $(letters 1400 e)\"}]"
    answers 200 || return
    is "$(json '[d["name"] for d in x["tessera"]["documents"]]')" "['tide.md']" || return
    # One that grows is not small any more.
    for n in 1 2 3 4; do letters 900 f >"$tmp/small/more$n.md"; done
    for ((n = 0; n < 1000; n++)); do
        get /tessera/status
        [ "$(json 'x["documents"]["files"]')" = 6 ] && break
        sleep 0.2
    done
    chat '"messages":[{"role":"user","content":"When does the moon rise?"}]'
    is "$(json '[d["name"] for d in x["tessera"]["documents"]]')" "['moon.md']" || return
    serve_end
}
run small_folders_are_in_the_prompt_whole
test_end
