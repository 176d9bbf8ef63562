#!/usr/bin/env bash
# Documents of tessera serve: read ahead with an estimate and progress, watched for changes.
# shellcheck source=tests/serve/serve_kit.sh
. "$(dirname "$0")/../serve/serve_kit.sh"
serve_needs

# Waits until the server's errors have a line.
told() {
    local i
    for ((i = 0; i < 3000; i++)); do
        grep -q "$1" "$home/err" 2>/dev/null && return
        sleep 0.1
    done
    fail "no line '$1': $(cat "$home/err")"
}

start_with_documents() {
    mkdir -p "$tmp/docs"
    { letters 900 a && echo 'The ferry leaves at dawn.'; } >"$tmp/docs/ferry.md"
    { letters 900 b && echo 'The train leaves at noon.'; } >"$tmp/docs/train.md"
    home=$tmp/server
    mkdir -p "$home"
    export TESSERA_DEPS_DIR=$home/deps
    model=$home/m.gguf
    [ -f "$model" ] || "$B/tests/model/make_gguf" "$model" llama
    rm -f "$home/out" "$home/err" # of a server before: the new one empties them when it runs
    "$tessera" serve --model="$model" --threads=1 --port=0 --no-open --docs="$tmp/docs" >"$home/out" 2>"$home/err" &
    pid=$!
    told 'all documents are known' || return
    url=$(sed -n 's/^OpenAI API \(.*\)\/v1,.*/\1/p' "$home/out")
    token=$(cat "$home/deps/store/serve.token")
}
ferry() { post /v1/chat/completions '{"max_tokens":2,"messages":[{"role":"user","content":"When does the ferry leave?"}]}'; }

documents_are_read_ahead_and_the_first_question_finds_them() {
    start_with_documents || return
    grep -qE '^reading ahead: [0-9]+ tokens at most, time .*, disk [0-9.]+ .*iB in files of 256.* MiB; ' "$home/err" || fail "$(cat "$home/err")" || return
    ferry
    answers 200 || return
    is "$(json 'x["usage"]["prompt_tokens_details"]["cached_tokens"] > 300')" True || return
    is "$(json 'x["tessera"]["documents"][0]["name"]')" ferry.md || return
    # Reading ahead has shown how long a full read takes.
    is "$(json 'x["tessera"]["seconds"]["full_read_estimate"] > 0')" True || return
    serve_end
    # What the store has is not computed again.
    local before after
    before=$(du -sb "$home/deps/store" | cut -f1)
    start_with_documents || return
    serve_end
    grep -qE '^reading ahead: [0-9]+ tokens at most, time [0-9]+ s' "$home/err" || fail "$(cat "$home/err")" || return
    after=$(du -sb "$home/deps/store" | cut -f1)
    [ "$after" -lt $((before + before / 4 + 65536)) ] || fail "$before bytes became $after"
}

a_file_that_is_new_is_found() {
    start_with_documents || return
    echo 'The zeppelin leaves at midnight.' >"$tmp/docs/zeppelin.md"
    told '1 new, 0 changed' || return
    post /v1/chat/completions '{"max_tokens":2,"messages":[{"role":"user","content":"When does the zeppelin leave?"}]}'
    is "$(json 'x["tessera"]["documents"][0]["name"]')" zeppelin.md || return
    serve_end
}

# What was read ahead is not read again for a file that was only touched.
a_file_that_is_only_touched_is_not_read_again() {
    start_with_documents || return
    touch "$tmp/docs/ferry.md"
    sleep 2 # it is looked at
    echo 'The zeppelin leaves at midnight.' >"$tmp/docs/zeppelin.md"
    told '1 new, 0 changed' || return
    local i
    for ((i = 0; i < 600; i++)); do
        sed -n '/1 new, 0 changed/,$p' "$home/err" | grep -q 'all documents are known' && break
        sleep 0.1
    done
    [ "$(grep -c 'all documents are known' "$home/err")" = 2 ] || fail "$(cat "$home/err")" || return
    serve_end
}

# A server that has begun to read 120,000 tokens ahead.
read_much_ahead() {
    local i
    mkdir -p "$tmp/docs"
    for i in {1..120}; do letters 1000 "${i: -1}" | sed "s/^/$i /" >"$tmp/docs/$i.md"; done
    ask_init llama || return
    home=$tmp
    "$tessera" serve --model="$model" --threads=1 --port=0 --no-open --docs="$tmp/docs" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    told '^reading ahead: '
}

# The new file is indexed before the others are read.
a_file_that_comes_while_others_are_read_is_found() {
    read_much_ahead || return
    echo 'The zeppelin leaves at midnight.' >"$tmp/docs/zeppelin.md"
    told '1 new, 0 changed' || return
    ! grep -q 'all documents are known' "$tmp/err" || fail "found only later: $(cat "$tmp/err")" || return
    serve_end
}

# Four long answers meanwhile. The first line comes after five seconds, and the speed is that of the
# time without them.
progress_tells_that_it_waits_for_questions() {
    local i
    read_much_ahead || return
    url=$(sed -n 's/^OpenAI API \(.*\)\/v1,.*/\1/p' "$home/out")
    token=$(cat "$home/deps/store/serve.token")
    for i in 1 2 3 4; do
        curl -s -o /dev/null -H "Authorization: Bearer $token" \
            -d "{$hello,\"tessera\":{\"search\":false},\"max_tokens\":1900,\"ignore_eos\":true}" "$url/v1/chat/completions" &
    done
    told '^read [0-9]* of [0-9]* tokens, waits for questions$' || return
    serve_end
}

# The server's signals are not in the way of the program that reads them.
pdfs_are_read() {
    mkdir -p "$tmp/bin" "$tmp/docs"
    printf '#!/bin/sh\necho The balloon leaves at ten.\n' >"$tmp/bin/pdftotext"
    chmod 700 "$tmp/bin/pdftotext"
    printf '%%PDF-1.4\n' >"$tmp/docs/balloon.pdf"
    PATH=$tmp/bin:$PATH start_with_documents || return
    post /v1/chat/completions '{"max_tokens":2,"messages":[{"role":"user","content":"When does the balloon leave?"}]}'
    serve_end
    is "$(json 'x["tessera"]["documents"][0]["name"]')" balloon.pdf
}

# Four files of a second each, and a signal in the first one.
a_signal_ends_the_indexing() {
    mkdir -p "$tmp/bin" "$tmp/begun"
    printf '#!/bin/sh\n: >%s/$$\nsleep 1\necho The balloon leaves at ten.\n' "$tmp/begun" >"$tmp/bin/pdftotext"
    chmod 700 "$tmp/bin/pdftotext"
    ask_init llama || return
    local i
    for i in 1 2 3 4; do printf '%%PDF-1.4\n%s\n' "$i" >"$tmp/docs/$i.pdf"; done
    PATH=$tmp/bin:$PATH "$tessera" serve --model="$model" --threads=1 --port=0 --no-open --docs="$tmp/docs" \
        >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    while [ -z "$(ls "$tmp/begun")" ] && kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
    serve_end
    is $? 0 || return
    out=$(cat "$tmp/out" "$tmp/err")
    is "$(find "$tmp/begun" -type f | wc -l)" 1 || return
    [ ! -s "$tmp/out" ] || fail "it goes on: $(cat "$tmp/out")"
}

passages_are_read_in_prompts_that_fit_the_context() {
    mkdir -p "$tmp/docs"
    local i
    # 900 tokens each, in a context of 2048.
    for i in a b c d e; do letters 1000 "$i" >"$tmp/docs/$i.md"; done
    # Too long for any prompt, with a token for each letter.
    letters 2900 f >"$tmp/docs/f.md"
    start_with_documents || return
    serve_end
}

run documents_are_read_ahead_and_the_first_question_finds_them
run a_file_that_is_new_is_found
run a_file_that_is_only_touched_is_not_read_again
run a_file_that_comes_while_others_are_read_is_found
run progress_tells_that_it_waits_for_questions
run pdfs_are_read
run a_signal_ends_the_indexing
run passages_are_read_in_prompts_that_fit_the_context
test_end
