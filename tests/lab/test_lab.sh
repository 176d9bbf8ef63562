#!/usr/bin/env bash
# The command line of tessera-lab: its commands, under its own name.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"

help_lists_every_command_and_describes_each() {
    local name
    lab help
    exits 0 && is_silent && says 'usage: tessera-lab [FLAGS]' || return
    for name in calibrate 'bench copy' 'bench rope' replay; do
        lab help
        says "  $name " || return
        # shellcheck disable=SC2086  # two words are two arguments
        lab help $name
        exits 0 && says "usage: tessera-lab $name" || return
        # shellcheck disable=SC2086
        lab $name --help
        exits 0 && says "usage: tessera-lab $name" && is_silent || return
    done
    lab help bench
    exits 0 && says 'bench copy' && says 'bench rope'
}

errors_have_its_name() {
    lab
    exits 2 && says 'usage: tessera-lab' || return
    lab bench
    exits 2 && [[ $err == "tessera-lab: 'bench' needs a subcommand"* ]] || fail "$err" || return
    lab reply
    exits 2 && [[ $err == "tessera-lab: unknown command 'reply'; did you mean 'replay'?"* ]] ||
        fail "$err" || return
    lab doctor
    exits 2 && complains "unknown command 'doctor'"
}

it_is_of_the_same_version() {
    lab --version
    exits 0 && is "$out" "$("$tessera" --version)"
}

options_are_those_of_tessera() {
    lab replay --limit=2 --host_siz=1M
    exits 2 && complains host-size || return
    lab replay --limit=2 --chunk_size=128 --host-size=1M
    exits 0 && says 'hit rate'
}

counts_are_whole_numbers() {
    lab replay --limit=1.5
    exits 2 && complains '--limit=1.5: not a whole number' || return
    lab replay --limit=0
    exits 2 && complains '--limit=0: not a number from 1' || return
    lab bench copy --threads=0x2
    exits 2 && complains '--threads=0x2: not a whole number'
}

help_fits_a_terminal() {
    local name
    for name in calibrate 'bench copy' 'bench rope' replay; do
        # shellcheck disable=SC2086  # two words are two arguments
        lab help $name
        [ "$(wc -L <<<"$out")" -le 100 ] || fail "$name: $out" || return
    done
}

control_characters_of_file_names_do_not_reach_the_terminal() {
    local name=$tmp/$'a\e]0;b\a\xc2\x9b2Jc\n'
    echo x >"$name"
    lab replay "$name"
    exits 1 || return
    printf '%s%s' "$out" "$err" | LC_ALL=C grep -q $'[\a\e]\|\xc2\x9b' && fail "$err" && return 1
    return 0
}

run help_lists_every_command_and_describes_each
run errors_have_its_name
run it_is_of_the_same_version
run options_are_those_of_tessera
run counts_are_whole_numbers
run help_fits_a_terminal
run control_characters_of_file_names_do_not_reach_the_terminal
test_end
