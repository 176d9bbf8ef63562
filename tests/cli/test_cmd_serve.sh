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
    says "/#token=$key"
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
    t serve question
    exits 2 || return
    t serve --model="$model" --docs="$tmp/none" --port=0
    exits 1
}

run it_says_where_it_is_and_what_the_key_is
run the_token_stays_for_the_next_time
run other_machines_need_a_token_file_that_is_private
run a_port_in_use_says_so
run bad_flags_are_usage_errors
test_end
