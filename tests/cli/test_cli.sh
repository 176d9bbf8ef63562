#!/usr/bin/env bash
# The command line: commands, flags, help, errors, exit statuses.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"

no_command_prints_help_and_is_a_usage_error() {
    t
    exits 2 && says 'usage: tessera' && says 'config show'
}

help_lists_every_command_and_describes_each() {
    local name
    t help
    exits 0 && is_silent || return
    t --help
    exits 0 && says 'usage: tessera' || return
    for name in 'config show' 'config check' 'config doc' stat doctor ask version; do
        t help
        says "  $name " || return
        # shellcheck disable=SC2086  # two words are two arguments
        t help $name
        exits 0 && says "usage: tessera $name" || return
        # shellcheck disable=SC2086
        t $name --help
        exits 0 && says "usage: tessera $name" && is_silent || return
        # shellcheck disable=SC2086
        t $name -h
        exits 0 && says "usage: tessera $name" || return
    done
}

help_is_a_command_too() {
    t help help
    exits 0 && is_silent && says 'usage: tessera' && says '  help '
}

help_of_a_group_lists_its_commands() {
    t help config
    exits 0 && says 'config show' && says 'config doc' || return
    [[ $out != *doctor* ]] || fail "it lists others: $out" || return
    t config
    exits 2 && complains "'config' needs a subcommand" && [[ $err == *'config check'* ]]
}

an_unknown_command_names_the_nearest() {
    t doctr
    exits 2 && complains "unknown command 'doctr'; did you mean 'doctor'?" || return
    t confgi show
    exits 2 && complains "did you mean 'config'?" || return
    t config shwo
    exits 2 && complains "unknown command 'config shwo'; did you mean 'config show'?" || return
    t help dcotor
    exits 2 && complains "did you mean 'doctor'?" || return
    t qqqqqqqq
    exits 2 && complains "unknown command 'qqqqqqqq'" || return
    [[ $err != *'did you mean'* ]] || fail "a guess at nothing: $err"
}

control_characters_in_a_command_do_not_reach_the_terminal() {
    t $'a\033[31mb'
    exits 2 && [[ $err != *$'\033'* ]]
}

an_unknown_option_names_the_nearest() {
    t config show --host_siz=1G
    exits 2 && complains host-size && is "$out" '' || return
    t --host_siz=1G config show
    exits 2 && complains host-size
}

a_bad_value_of_an_option_is_a_usage_error() {
    t stat --host_size=lots
    exits 2 && complains host_size
}

options_may_stand_before_and_after_the_command() {
    t --host_size=2G config show host_size
    exits 0 && says 2G || return
    t config show host_size --host_size=2G
    exits 0 && says 2G || return
    t config --host_size 2G show host_size
    exits 0 && says 2G || return
    t config show --host-size 2G -- host_size
    exits 0 && says 2G
}

the_last_of_two_equal_options_holds() {
    t config show --host_size=2G --host_size=3G host_size
    exits 0 && says 3G
}

a_flag_that_needs_a_value_says_so() {
    lab replay --host-size
    exits 2 && complains '--host-size needs a value' || return
    t config show --config
    exits 2 && complains '--config needs a file' || return
    t config doc --man=1
    exits 2 && complains '--man takes no value' || return
    # The next argument is a flag of its own, and no value.
    lab replay --host-size --json
    exits 2 && complains '--host-size needs a value' || return
    t config show --config --json
    exits 2 && complains '--config needs a file' || return
    t config show --disk_path --json
    exits 2 && complains '--disk_path: needs a value' || return
    t config show --disk_path=--json disk_path
    exits 0 && says --json
}

flags_of_one_command_are_no_flags_of_another() {
    t version --prometheus
    exits 2 && complains prometheus || return
    t config doc --json
    exits 2 && complains 'no JSON output' || return
    t -x version
    exits 2 && complains "unknown flag '-x'"
}

too_many_arguments_are_refused() {
    t version now
    exits 2 && complains "unexpected argument 'now'" || return
    t config check
    exits 2 && complains 'missing argument' || return
    t config check a b
    exits 2 && complains "unexpected argument 'b'"
}

output_that_cannot_be_written_is_a_failure() {
    [ -e /dev/full ] || skip 'no /dev/full' || return
    "$tessera" version >/dev/full 2>"$tmp/err"
    status=$? out='' err=$(cat "$tmp/err")
    exits 1 && complains 'cannot write'
}

# Of an unknown variable of LMCache there is a warning, of one that is known and of no use here a
# line at level info.
log_lines_go_to_stderr_down_to_the_level_asked_for() {
    export LMCACHE_FROB=1 LMCACHE_PRE_CACHING_HASH_ALGORITHM=none LMCACHE_REMOTE_URL=redis://me:hush@host
    t config show host_size
    exits 0 || return
    [[ $err == *' tessera warning: environment variable LMCACHE_FROB: ignored'* ]] || fail "$err" || return
    t config show host_size --log-level=error
    exits 0 && is_silent || return
    is "$(TESSERA_LOG_LEVEL=error "$tessera" config show host_size 2>&1 >"$tmp/out")" '' || return
    echo 'log_level: error' >"$tmp/conf.yaml"
    t --config="$tmp/conf.yaml" config show host_size
    exits 0 && is_silent || return
    t doctor --log-level debug --host_size=1M
    [[ $err == *LMCACHE_FROB* && $err != *hush* ]] || fail "$err" || return
    # Commands that read no configuration have nothing to say about it.
    t version
    exits 0 && is_silent
}

a_line_of_level_info_is_there_when_it_is_asked_for() {
    echo 'host: {size: 8M}' >"$tmp/conf.yaml"
    export TESSERA_CONFIG_FILE=$tmp/conf.yaml LMCACHE_CONFIG_FILE=$tmp/conf.yaml
    t config show host_size
    exits 0 && is_silent || return
    t config show host_size --log_level=info
    exits 0 && [[ $err == *' tessera info: environment variable LMCACHE_CONFIG_FILE: ignored'* ]] ||
        fail "$err" || return
    printf 'host: {size: 8M}\nlog_level: info\n' >"$tmp/conf.yaml"
    t config show host_size
    exits 0 || return
    [[ $err == *' tessera info: '* ]] || fail "$err"
}

# Every way that a name goes to a terminal: errors, notes, tables, lines and JSON.
control_characters_of_file_names_do_not_reach_the_terminal() {
    local name=$tmp/$'a\e]0;b\a\xc2\x9b2Jc\n' command
    echo 'host: {size: 8M}' >"$name"
    for command in "config check" "config show --config" "doctor --config" "ls" "verify" "trim" \
        "inspect" "ask --docs" "ask --doc" "ingest" "config check --json" \
        "doctor --json --disk_path" "doctor --disk_path" "config show --disk_path" \
        "config show --json --disk_path"; do
        case $command in
        *--docs | *--doc) # shellcheck disable=SC2086
            t $command="$name" why ;;
        *) # shellcheck disable=SC2086
            t $command "$name" ;;
        esac
        printf '%s%s' "$out" "$err" | LC_ALL=C grep -q $'[\a\e]\|\xc2\x9b' &&
            fail "$command: $(printf '%s%s' "$out" "$err" | od -c | head -20)" && return 1
    done
    t config check "$name"
    exits 0 && says 'a?]0;b???2Jc?: ok'
}

run no_command_prints_help_and_is_a_usage_error
run help_lists_every_command_and_describes_each
run help_is_a_command_too
run log_lines_go_to_stderr_down_to_the_level_asked_for
run a_line_of_level_info_is_there_when_it_is_asked_for
run help_of_a_group_lists_its_commands
# The flag is right, and looked at first: it is the command that is not.
an_unknown_command_is_named_before_its_flags() {
    t serv --docs=x
    exits 2 && complains "unknown command 'serv'; did you mean 'serve'?" || return
    t serv --docs x
    exits 2 && complains "unknown command 'serv'; did you mean 'serve'?" || return
    t kv --bogus=1
    exits 2 && complains 'unknown key "bogus"'
}

an_unknown_flag_names_the_nearest_of_the_command() {
    t serve --doc=x
    exits 2 && complains "unknown flag '--doc'; did you mean '--docs'?" || return
    t serve --theads 2
    exits 2 && complains "unknown flag '--theads'; did you mean '--threads'?" || return
    t serve --bogusbogus=1
    exits 2 && complains 'unknown key "bogusbogus"' || return
    [[ $err != *'did you mean'* ]] || fail "a guess at nothing: $err"
}

run an_unknown_command_names_the_nearest
run an_unknown_command_is_named_before_its_flags
run an_unknown_flag_names_the_nearest_of_the_command
run control_characters_of_file_names_do_not_reach_the_terminal
run control_characters_in_a_command_do_not_reach_the_terminal
run an_unknown_option_names_the_nearest
run a_bad_value_of_an_option_is_a_usage_error
run options_may_stand_before_and_after_the_command
run the_last_of_two_equal_options_holds
run a_flag_that_needs_a_value_says_so
run flags_of_one_command_are_no_flags_of_another
run too_many_arguments_are_refused
run output_that_cannot_be_written_is_a_failure
test_end
