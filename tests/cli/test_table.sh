#!/usr/bin/env bash
# Tables and colours, seen through the commands that print them.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"

# What the program prints when stdout is a terminal.
on_a_terminal() {
    script -qec "$tessera doctor --host_size=1M" /dev/null </dev/null
}

columns_are_aligned() {
    local at
    t config show host_size lease_entries_max
    at=$(awk '{print index($0, $2)}' <<<"$out" | sort -u)
    [ "$(wc -l <<<"$at")" -eq 1 ] || fail "second column at $at: $out"
}

wide_characters_do_not_shift_columns() {
    local first second
    t config show separator disk_path --separator=$'\u00e4\u00f6\u00fc'
    first=${out%%flag *} first=${first##*$'\n'}
    second=${out%%default *} second=${second##*$'\n'}
    is "${#first}" "${#second}"
}

no_line_ends_in_spaces() {
    t config show
    ! grep -q ' $' <<<"$out" || fail 'there are'
}

colours_are_for_terminals_that_want_them() {
    script -qec true /dev/null </dev/null >/dev/null 2>&1 ||
        skip 'script(1) cannot make a terminal here' || return
    export TERM=xterm
    unset NO_COLOR
    [[ $(on_a_terminal) == *$'\033[32mok'* ]] || fail 'none on a terminal' || return
    [[ $(NO_COLOR=1 on_a_terminal) != *$'\033'* ]] || fail 'although NO_COLOR is set' || return
    [[ $(NO_COLOR='' on_a_terminal) != *$'\033'* ]] || fail 'although NO_COLOR is set' || return
    [[ $(TERM=dumb on_a_terminal) != *$'\033'* ]] || fail 'on a dumb terminal' || return
    t doctor --host_size=1M
    [[ $out != *$'\033'* ]] || fail 'into a pipe'
}

run columns_are_aligned
run wide_characters_do_not_shift_columns
run no_line_ends_in_spaces
run colours_are_for_terminals_that_want_them
test_end
