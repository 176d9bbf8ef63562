#!/usr/bin/env bash
# ask_kit.sh - a model and documents for the tests of ask and ingest. The model is random and says
# nothing of sense, but always the same; a letter is about a token.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "${BASH_SOURCE[0]}")/tessera.sh"

# Every store and model below the test's own folder; skips where models cannot be run.
ask_init() {
    [ -x "$B/tests/model/make_gguf" ] ||
        skip 'llama.cpp is not installed: tools/setup --model' || return
    export TESSERA_DEPS_DIR=$tmp/deps
    model=$tmp/m.gguf
    "$B/tests/model/make_gguf" "$model" "$@" || fail 'cannot make a model' || return
    mkdir -p "$tmp/docs"
    letters 400 a >"$tmp/docs/a.md"
    letters 400 b >"$tmp/docs/b.txt"
}

# N letters, not the same for another seed.
letters() {
    awk -v n="$1" -v s="$2" 'BEGIN {
        x = index("abcdefghij", s) * 7919
        for (i = 0; i < n; i++) {
            x = (x * 1103515245 + 12345) % 2147483648
            printf "%s", i % 9 == 8 ? " " : substr("abcdefghijklmnopqrstuvwxyz", x % 26 + 1, 1)
        }
        print ""
    }'
}

ask() { t ask --model="$model" --threads=1 --max=8 "$@"; }

# The tokens of the last --json answer, by kind.
count() { json "x['tokens']['$1']"; }
