#!/usr/bin/env bash
# tessera serve as a command: what it says, its token, what it refuses.
# shellcheck source=tests/serve/serve_kit.sh
. "$(dirname "$0")/../serve/serve_kit.sh"
serve_needs

it_says_where_it_is_and_what_the_key_is() {
    ask_init llama || return
    "$tessera" serve --model="$model" --threads=1 --port=0 --no-open >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    while ! grep -q Ctrl-C "$tmp/out" && kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
    serve_end
    out=$(cat "$tmp/out")
    says 'model      m, context 2048 tokens' || return
    local key
    key=$(cat "$tmp/deps/store/serve.token")
    is ${#key} 32 || return
    is "$(stat -c %a "$tmp/deps/store/serve.token")" 600 || return
    [[ $out != *"$key"* && $out != *'#token='* ]] || fail "a token in a file that others may read: $out" || return
    says 'by opening ' || return
    [ -z "$(find "$tmp/deps/store" -name '*.html')" ] || fail 'the way to the page outlives the server'
}

# The page's own token, which a terminal and a private file show, works and ends with the server.
the_page_has_a_token_of_this_life() {
    serve_start "$tmp/server" || return
    local file page first
    file=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["page_file"])' "$home/out")
    is "$(stat -c %a "$file")" 600 || return
    page=$(sed -n 's/.*#token=\([0-9a-f]*\)".*/\1/p' "$file")
    is ${#page} 32 || return
    [ "$page" != "$token" ] || fail 'it is the API key' || return
    req GET /v1/models '' -H "Authorization: Bearer $page"
    answers 200 || return
    first=$page
    serve_end
    serve_start "$tmp/server" || return
    req GET /v1/models '' -H "Authorization: Bearer $first"
    answers 401 || return
    serve_end
}

a_terminal_shows_the_address_of_the_page() {
    ask_init llama || return
    python3 - "$tessera" "$model" <<'P' || fail 'no address'
import os, pty, signal, sys
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], [sys.argv[1], "serve", "--model=" + sys.argv[2], "--threads=1", "--port=0", "--no-open"])
said = b""
while b"Ctrl-C" not in said:
    said += os.read(fd, 4096)
os.kill(pid, signal.SIGINT)
os.waitpid(pid, 0)
assert b"/#token=" in said, said
P
}

the_token_stays_for_the_next_time() {
    serve_start "$tmp/server" || return
    local first=$token
    serve_end
    serve_start "$tmp/server" || return
    is "$token" "$first" || return
    serve_end
}

other_machines_need_a_token_file_that_is_private() {
    ask_init llama || return
    t serve --model="$model" --host=0.0.0.0 --port=0
    exits 2 || return
    complains 'name a file with a token' || return
    echo 0123456789abcdef0123 >"$tmp/key"
    chmod 644 "$tmp/key"
    t serve --model="$model" --token-file="$tmp/key" --port=0
    exits 1 || return
    complains 'others may read it' || return
    chmod 600 "$tmp/key"
    echo short >"$tmp/key"
    t serve --model="$model" --token-file="$tmp/key" --port=0
    complains 'at least 16 characters'
}

without_a_store_the_key_is_a_file_of_the_user() {
    ask_init llama || return
    t serve --model="$model" --threads=1 --disk_path=/proc/none --port=0
    exits 1 && complains 'serve.token: No such file or directory: name a file with a token by --token-file' || return
    echo 0123456789abcdef0123 >"$tmp/key" && chmod 600 "$tmp/key"
    serve_start "$tmp/server" --disk_path=/proc/none --token-file="$tmp/key" || return
    post /v1/chat/completions "{$hello,\"max_tokens\":2}"
    answers 200 || return
    serve_end
}

a_port_in_use_says_so() {
    serve_start "$tmp/server" || return
    t serve --model="$model" --threads=1 --port="${url##*:}" --disk_path="$tmp/other" --no-open
    serve_end
    exits 1 || return
    complains 'is in use: choose another one'
}

bad_flags_are_usage_errors() {
    ask_init llama || return
    t serve --host=example.com
    exits 2 || return
    complains 'must be an address' || return
    t serve --port=70000
    exits 2 || return
    # Before it reads a model, which is not there.
    t serve --model="$tmp/none" --max=many
    exits 2 && complains '--max=many: not a number from 1 to 1048576' || return
    t serve question
    exits 2 || return
    t serve --model="$model" --docs="$tmp/none" --port=0
    exits 1
}

# The model is not there: what is said comes before it is read.
folders_and_the_port_are_looked_at_first() {
    mkdir "$tmp/docs"
    : >"$tmp/file.md"
    t serve --model="$tmp/none" --docs="$tmp/nope"
    exits 1 && complains "--docs=$tmp/nope: No such file or directory" || return
    t serve --model="$tmp/none" --docs="$tmp/file.md"
    exits 1 && complains "--docs=$tmp/file.md: not a folder; name the one that it is in" || return
    t serve --model="$tmp/none" "$tmp/docs"
    exits 2 && complains "unexpected argument '$tmp/docs'; did you mean --docs=$tmp/docs?" || return
    python3 - "$tessera" "$tmp/none" <<'P' || fail 'the port is not looked at'
import socket, subprocess, sys
with socket.create_server(("127.0.0.1", 0)) as s:
    port = s.getsockname()[1]
    r = subprocess.run([sys.argv[1], "serve", "--model=" + sys.argv[2], f"--port={port}"], capture_output=True, text=True)
assert r.returncode == 1 and f"port {port} is in use: choose another one" in r.stderr, r
P
}

an_empty_folder_says_what_is_read() {
    mkdir -p "$tmp/docs"
    : >"$tmp/docs/.hidden"
    serve_start "$tmp/server" --docs="$tmp/docs" || return
    serve_end
    grep -q 'nothing to answer from yet: text, HTML and PDF files are read' "$home/err" || fail "$(cat "$home/err")"
}

# As printed, but for the port and the home folder.
the_example_of_the_documentation_works() {
    serve_start "$tmp/server" || return
    mkdir -p "$tmp/me/.cache"
    ln -s "$home/deps" "$tmp/me/.cache/tessera"
    local example
    example=$(sed -n '/^    curl /,/^$/p' docs/serve.md)
    [[ $example == *http://127.0.0.1:7465/* ]] || fail "no example: $example" || return
    out=$(HOME=$tmp/me bash -c "${example//http:\/\/127.0.0.1:7465/$url}" 2>/dev/null)
    serve_end
    is "$(json 'x["choices"][0]["message"]["role"]')" assistant
}

run the_example_of_the_documentation_works
run folders_and_the_port_are_looked_at_first
run an_empty_folder_says_what_is_read
run it_says_where_it_is_and_what_the_key_is
run the_page_has_a_token_of_this_life
run a_terminal_shows_the_address_of_the_page
run the_token_stays_for_the_next_time
run other_machines_need_a_token_file_that_is_private
run without_a_store_the_key_is_a_file_of_the_user
run a_port_in_use_says_so
run bad_flags_are_usage_errors
test_end
