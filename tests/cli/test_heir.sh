#!/usr/bin/env bash
# A store outlives its owner: who shares it takes it over, however the owner ends. Everything that a
# process had flushed is there then, and after an orderly end everything that the owner had accepted.
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
said() { json 'x["choices"][0]["message"]["content"].encode()'; }

# Which entries the store has, as its server lists them: a look at its index, which no deadline cuts
# short. Only who does not get a connection in time asks again.
entries() {
    local i
    for ((i = 0; i < 300; i++)); do
        t ls --connect="$TESSERA_DEPS_DIR/store/share/socket" --json
        [ "$status" -ne 0 ] || break
        sleep 0.1
    done
    exits 0 || return
    listed=$(json '" ".join(sorted("%s:%d" % (e["key"], e["tokens"]) for e in x["entries"]))')
}

begin() {
    trap end_all EXIT
    # A lookup that the server answers late is a miss. Here that would be taken for a lost entry.
    export TESSERA_SERVER_DEADLINE=60000 TESSERA_SERVER_PATIENCE=600000
    doc=$(letters 600 a)
    start first || return
    # What an `ask` has stored is on disk when it ends.
    letters 600 b >"$tmp/b.md"
    t ask --model="$model" --threads=1 --max=2 --doc="$tmp/b.md" why
    exits 0 || return
    [[ $err == *'sharing the store'* ]] || fail "$err" || return
    entries || return
    flushed=$listed
    [ -n "$flushed" ] || fail 'an ask has stored nothing' || return
    start second || return
    told second 'sharing the store' || return
    question "$url_second" || return
    answer=$(said)
    entries || return
    acknowledged=$listed
    [ "$acknowledged" != "$flushed" ] || fail 'a question has stored nothing'
}

# It is served by the second one, which has every entry of the list $1 from the first moment on.
goes_on() {
    local one
    told second 'it is served from here now' || return
    entries || return
    for one in $1; do
        [[ " $listed " == *" $one "* ]] || fail "entry $one is lost; there are: $listed" || return
    done
    # Found by the first who asks. What its tier does not bring in time is counted as failed.
    t ask --model="$model" --threads=1 --max=2 --json --doc="$tmp/b.md" why
    exits 0 || return
    [[ $err == *'sharing the store'* ]] || fail "$err" || return
    is "$(json 'sum(x["tiers"]) + x["tokens"]["failed"] > 300')" True || return
    question "$url_second" || return
    is "$(said)" "$answer"
}

a_store_outlives_an_owner_that_is_killed() {
    begin || return
    kill -9 "$pid_first"
    goes_on "$flushed"
}

a_store_outlives_an_owner_that_ends() {
    begin || return
    kill -INT "$pid_first" # writes what it has accepted, whoever it was from
    goes_on "$acknowledged" || return
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
