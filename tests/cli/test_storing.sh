#!/usr/bin/env bash
# Documents are stored after the answer.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/ask_kit.sh"

# Asks about the documents the other way round.
turned() { ask --json "$@" --doc="$tmp/docs/b.txt" --doc="$tmp/docs/a.md" 'how'; }

documents_are_stored_after_the_answer_and_then_known() {
    ask_init llama || return
    needs_python || return
    ask --docs="$tmp/docs" 'why'
    exits 0 || return
    [[ $err == *'first token after '*'storing '*' document'*' for next time ...'*$'\nstored '*' s' ]] ||
        fail "$err" || return
    turned
    is "$(json '[x["first"], x["tokens"]["filled"]]')" '[False, 0]' || return
    [ "$(count reused)" -gt 300 ] || fail "$out" || return
    # Nothing is left to store, and nothing is said.
    ask --docs="$tmp/docs" 'why'
    [[ $err != *stor* ]] || fail "$err"
}

json_says_nothing_else() {
    ask_init llama || return
    needs_python || return
    ask --json --docs="$tmp/docs" 'why'
    exits 0 && is "$(grep -v '^tessera: no profile' <<<"$err")" '' || return
    turned
    is "$(json 'x["first"]')" False
}

nothing_is_stored_if_so_wished() {
    ask_init llama || return
    needs_python || return
    ask --no-store --docs="$tmp/docs" 'why'
    exits 0 || return
    [[ $err != *stor* ]] || fail "$err" || return
    turned --no-store
    is "$(json '[x["first"], sum(x["tiers"])]')" '[True, 0]' || return
    ask --docs="$tmp/docs" 'why'
    # What is stored is still used.
    turned --no-store
    [ "$(json 'sum(x["tiers"])')" -gt 300 ] || fail "$out"
}

a_chat_stores_at_its_end() {
    ask_init llama || return
    needs_python || return
    printf 'why\nhow\n' >"$tmp/questions"
    ask --docs="$tmp/docs" --chat="$tmp/questions"
    exits 0 || return
    [[ $err == *'first token'*'first token'*$'\nstored '* ]] || fail "$err" || return
    turned
    is "$(json 'x["first"]')" False
}

# A long document, so that there is time to interrupt it.
an_interrupt_keeps_what_is_complete() {
    ask_init llama 16384 || return
    needs_python || return
    local i pid
    for i in c d e f g h i; do letters 1900 "$i" >"$tmp/docs/$i.txt"; done
    "$tessera" ask --model="$model" --threads=1 --max=4 --docs="$tmp/docs" --all why >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    for i in $(seq 600); do
        grep -q '^storing ' "$tmp/err" && break
        sleep 0.05
    done
    kill -INT "$pid"
    wait "$pid"
    is $? 0 || return
    err=$(cat "$tmp/err")
    # Where a machine is faster than the signal, everything is stored.
    [[ $err == *$'\nstopped; '*' documents are stored' || $err == *$'\nstored '* ]] || fail "$err" || return
    ask --docs="$tmp/docs" --all 'why'
    exits 0
}

run documents_are_stored_after_the_answer_and_then_known
run json_says_nothing_else
run nothing_is_stored_if_so_wished
run a_chat_stores_at_its_end
run an_interrupt_keeps_what_is_complete
test_end
