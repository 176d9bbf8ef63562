#!/usr/bin/env bash
# A store outlives its owner: who shares it takes it over, however the owner ends.
# shellcheck source=tests/serve/serve_kit.sh
. "$(dirname "$0")/../serve/serve_kit.sh"
serve_needs
# shellcheck disable=SC2034
pid_first='' pid_second='' pid_third='' url_second='' url_third=''

# Starts a server beside the others and leaves its process, address and token by the name $1.
start() {
    serve_start "$tmp/server" || return
    mv "$home/err" "$tmp/err_$1"
    printf -v "pid_$1" %s "$pid"
    printf -v "url_$1" %s "$url"
}
# All servers, however the test ends.
end_all() {
    local name
    for name in pid_first pid_second pid_third; do
        [ -z "${!name}" ] || kill -9 "${!name}" 2>/dev/null
    done
    wait
}
told() {
    local i
    for ((i = 0; i < 2500; i++)); do
        grep -q "$2" "$tmp/err_$1" && return
        sleep 0.1
    done
    fail "no line '$2' of the $1: $(cat "$tmp/err_$1")"
}
# Asks the server $1 about a document, of which nothing may be recomputed.
question() {
    url=$1
    post /v1/chat/completions "{$hello,\"documents\":[\"$doc\"],\"max_tokens\":8,\"ignore_eos\":true,\"tessera\":{\"mode\":\"exact\"}}"
    answers 200
}
cached() { json 'x["usage"]["prompt_tokens_details"]["cached_tokens"]'; }
said() { json 'x["choices"][0]["message"]["content"].encode()'; }

begin() {
    trap end_all EXIT
    doc=$(letters 600 a)
    start first || return
    # What an `ask` has stored is on disk when it ends.
    letters 600 b >"$tmp/b.md"
    t ask --model="$model" --threads=1 --max=2 --doc="$tmp/b.md" why
    exits 0 || return
    [[ $err == *'sharing the store'* ]] || fail "$err" || return
    start second || return
    told second 'sharing the store' || return
    question "$url_second" || return
    answer=$(said)
}

# It is served by the second one: what was on disk is there, and nothing is wrong.
goes_on() {
    told second 'it is served from here now' || return
    # A server that answers too late is a miss, so once may not be enough on a busy machine.
    local i
    for ((i = 0; i < 50; i++)); do
        t ask --model="$model" --threads=1 --max=2 --json --doc="$tmp/b.md" why
        exits 0 || return
        [[ $err == *'sharing the store'* ]] || fail "$err" || return
        [ "$(json 'sum(x["tiers"]) > 300')" = False ] || break
    done
    is "$(json 'sum(x["tiers"]) > 300')" True || return
    # Right in any case, and from the cache as soon as its connection is there again.
    for ((i = 0; i < 1000; i++)); do
        question "$url_second" || return
        is "$(said)" "$answer" || return
        [ "$(cached)" -le 300 ] || return 0
        sleep 0.1
    done
    fail "$out"
}

a_store_outlives_an_owner_that_is_killed() {
    begin || return
    kill -9 "$pid_first"
    goes_on
}

a_store_outlives_an_owner_that_ends() {
    begin || return
    kill -INT "$pid_first"
    goes_on || return
    # And its heir: of two that wait, one has it.
    start third || return
    kill -9 "$pid_second"
    told third 'it is served from here now' || return
    question "$url_third" || return
    is "$(said)" "$answer"
}

needs_shared_memory
run a_store_outlives_an_owner_that_is_killed
run a_store_outlives_an_owner_that_ends
test_end
