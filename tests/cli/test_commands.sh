#!/usr/bin/env bash
# The commands of tessera: those that it has, and those that moved to tessera-lab.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"

commands='ask ingest config stat top doctor inspect ls verify evict clear compact warm flush pin unpin kv version help'

every_command_is_there() {
    local name
    for name in $commands; do
        t help "$name"
        exits 0 && is_silent || return
        [ "$(wc -L <<<"$out")" -le 100 ] || fail "$name: $out" || return
    done
}

what_measures_is_named_with_its_new_program() {
    local line
    for line in calibrate 'calibrate --prompts=x --csv=y' bench 'bench copy' 'bench rope --size=1M' \
        'replay --host-size=1M trace' 'help replay' 'help bench copy' 'bench copy --help'; do
        # shellcheck disable=SC2086  # words are arguments
        t $line
        exits 2 && complains 'is now in tessera-lab' && is "$out" '' && is "$(wc -l <<<"$err")" 1 ||
            return
    done
}

run every_command_is_there
run what_measures_is_named_with_its_new_program
test_end
