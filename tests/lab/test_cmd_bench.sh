#!/usr/bin/env bash
# tessera-lab bench copy and tessera-lab bench rope.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"

every_case_has_two_rates_and_a_ratio() {
    lab bench copy --size=1M --device=cpu
    exits 0 && is_silent && says 'cpu: ' || return
    [ "$(grep -cE '^cpu  .* host +[0-9.]+ +[0-9.]+ +[0-9.]+$' <<<"$out")" -eq 5 ] || fail "$out" || return
    lab bench rope --size=1M --device=cpu
    exits 0 || return
    [ "$(grep -cE '^cpu  .* [0-9.]+ +[0-9.]+ +[0-9.]+$' <<<"$out")" -eq 6 ] || fail "$out"
}

json_has_the_same_rows() {
    needs_python || return
    lab bench rope --size=1M --device=cpu --json
    exits 0 || return
    is "$(json 'x["bench"], len(x["rows"]), x["devices"][0]["name"]')" "('rope', 6, 'cpu')" || return
    is "$(json 'all(r["gb_per_s"] > 0 and r["copy_gb_per_s"] > 0 and r["ratio"] > 0 for r in x["rows"])')" True
}

a_device_that_is_not_there_is_one_line_and_fails_only_when_asked_for() {
    # shellcheck disable=SC2030
    export LD_LIBRARY_PATH=$tmp
    lab bench copy --size=1M --device=nosuch
    exits 1 && complains 'bench copy: device nosuch' || return
    lab bench copy --size=1M
    exits 0 || return
    grep -qE '^cuda: (not available: )?.' <<<"$out" || fail "$out"
}

a_code_path_can_be_chosen() {
    lab bench rope --size=1M --variant=plain
    exits 0 && says 'cpu: plain, 0 threads' || return
    lab bench rope --size=1M --variant=plain --threads=1
    exits 0 && says 'cpu: plain, 1 threads' || return
    lab bench rope --variant=nosuch
    exits 1 && complains 'no variant "nosuch"'
}

flags_that_make_no_sense_are_refused() {
    lab bench copy --size=17
    exits 2 && complains 'must be at least 1M' || return
    lab bench copy --threads=many
    exits 2 && complains '--threads=many: not a number from 0 to 64' || return
    lab bench copy twice
    exits 2 && complains "unexpected argument 'twice'" || return
    lab bench
    exits 2 && complains 'needs a subcommand'
}

run every_case_has_two_rates_and_a_ratio
run json_has_the_same_rows
run a_device_that_is_not_there_is_one_line_and_fails_only_when_asked_for
run a_code_path_can_be_chosen
run flags_that_make_no_sense_are_refused
test_end
