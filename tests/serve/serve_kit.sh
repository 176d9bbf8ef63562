#!/usr/bin/env bash
# serve_kit.sh - a running `tessera serve` with a small random model for the tests of src/serve, and
# curl to ask it: `req METHOD PATH [BODY] [curl's arguments]` leaves $out and $status, the latter of
# HTTP; `post PATH BODY` is one with the token.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "${BASH_SOURCE[0]}")/../cli/ask_kit.sh"

# Skips the whole script where there is nothing to run.
serve_needs() {
    [ -x "$B/tests/model/make_gguf" ] || serve_none 'llama.cpp is not installed: tools/setup --model'
    command -v curl >/dev/null || serve_none 'no curl to ask with'
    command -v python3 >/dev/null || serve_none 'no python3 to read JSON with'
}
serve_none() {
    skip "$1"
    echo '# 0 passed 0 failed 1 skipped'
    exit 77
}

# Starts a server in folder $1 with the flags that follow, and waits until it is there. It does not
# outlive the shell that starts it, also where a test fails before serve_end.
serve_start() {
    home=$1
    shift
    mkdir -p "$home"
    export TESSERA_DEPS_DIR=$home/deps
    model=$home/m.gguf
    [ -f "$model" ] || "$B/tests/model/make_gguf" "$model" llama
    rm -f "$home/out" "$home/err" # of a server before: the new one empties them when it runs
    "$tessera" serve --model="$model" --threads=1 --port=0 --json "$@" >"$home/out" 2>"$home/err" &
    pid=$!
    # shellcheck disable=SC2064 # of this server
    if [ "$BASH_SUBSHELL" -eq 0 ]; then
        trap "kill -KILL $pid 2>/dev/null; rm -rf '$tmp_all'" EXIT
    else
        trap "kill -KILL $pid 2>/dev/null" EXIT
    fi
    local i
    for ((i = 0; i < 6000; i++)); do
        [ -s "$home/out" ] && break
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.05
    done
    url=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["url"])' "$home/out") || {
        cat "$home/err"
        return 1
    }
    token=$(cat "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["token_file"])' "$home/out")")
}
serve_end() {
    kill -INT "$pid" 2>/dev/null
    wait "$pid"
}

req() {
    local method=$1 path=$2 data=()
    shift 2
    [ $# -gt 0 ] && [ -n "$1" ] && data=(--data-binary "$1")
    [ $# -gt 0 ] && shift
    status=$(curl -sN -m 300 -o "$tmp/body" -w '%{http_code}' -X "$method" "${data[@]}" "$@" "$url$path")
    out=$(tr -d '\0' <"$tmp/body")
}
post() {
    local path=$1 body=$2
    shift 2
    req POST "$path" "$body" -H "Authorization: Bearer $token" "$@"
}
get() {
    local path=$1
    shift
    req GET "$path" '' -H "Authorization: Bearer $token" "$@"
}
answers() { [ "$status" = "$1" ] || fail "status $status, not $1: ${out:0:600}"; }
# The last answer is an error in OpenAI's form: status, parameter, a word of its message.
refuses() {
    answers "$1" || return
    is "$(json 'sorted(x["error"])')" "['code', 'message', 'param', 'type']" || return
    is "$(json 'x["error"]["param"]')" "$2" || return
    [[ $(json 'x["error"]["message"]') == *"$3"* ]] || fail "$out"
}
# The stream in $out: a Python expression over its events as e and the text of its answer as t.
events() {
    python3 -c '
import json, sys
lines = [l for l in sys.stdin.read().split("\n") if l and not l.startswith(":")]
assert all(l.startswith("data: ") for l in lines), lines
assert lines[-1] == "data: [DONE]", lines[-1]
e = [json.loads(l[6:]) for l in lines[:-1]]
t = "".join((c["delta"].get("content") or "") if "delta" in c else c["text"] for x in e for c in x.get("choices", []))
print(eval(sys.argv[1]))' "$1" <<<"$out"
}
err=''
export hello='"messages":[{"role":"user","content":"why"}]'
