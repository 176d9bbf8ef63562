#!/usr/bin/env bash
# tessera.sh - drives the programs for the tests of src/cli and src/lab: `t ARGS` runs tessera, `lab ARGS`
# runs tessera-lab, and both leave $out, $err and $status; the others look at those.
# shellcheck source=tests/support/test.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/test.sh"
tessera=$PWD/$B/bin/tessera
[[ $B == /* ]] && tessera=$B/bin/tessera
lab=$tessera-lab
unset "${!TESSERA_@}" "${!LMCACHE_@}"
# No test reads the model of whoever runs it, which takes minutes with a sanitizer, nor writes their store.
export tessera lab TESSERA_DEPS_DIR=$tmp_all/deps

run_program() {
    out=$("$@" 2>"$tmp/err")
    status=$?
    err=$(cat "$tmp/err")
}
t() { run_program "$tessera" "$@"; }
lab() { run_program "$lab" "$@"; }

# Why a program has ended stands at the end of what it printed.
exits() { [ "$status" -eq "$1" ] || fail "exit status $status, not $1; out: $(tail -c 1600 <<<"$out"); err: $err"; }
says() { [[ $out == *"$1"* ]] || fail "'$1' is not in the output: ${out:0:800}"; }
complains() { [[ $err == tessera?(-lab)": "*"$1"* ]] || fail "'$1' is not in the errors: $err"; }
is() { [ "$1" = "$2" ] || fail "'$1' is not '$2'; out: ${out:0:800}; err: $err"; }
is_silent() { [ -z "$err" ] || fail "errors: $err"; }

# The output is JSON; prints the value of a Python expression over it, with the object as x.
json() {
    python3 -c 'import json, sys; x = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1" <<<"$out"
}
needs_python() { command -v python3 >/dev/null || skip 'no python3 to read JSON with'; }
