#!/usr/bin/env bash
# tools/setup on machines that are made up: a PATH of links to the few commands it may use, and an
# apt-get that writes down what it was asked and "installs" by making the commands appear.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"

setup=$PWD/tools/setup

# $tmp/bin: env, sh, sed; then the commands named, which do nothing and succeed.
make_machine() {
    local name
    mkdir -p "$tmp/bin"
    for name in env sh sed cat; do ln -s "$(command -v "$name")" "$tmp/bin/$name"; done
    add_command id 'echo 0'
    for name in "$@"; do add_command "$name" ''; done
}

add_command() {
    printf '#!%s\n%s\n' "$(command -v sh)" "$2" >"$tmp/bin/$1"
    chmod +x "$tmp/bin/$1"
}

# Every package it is asked for becomes there: all commands exist from then on.
add_apt() {
    add_command apt-get "echo \"\$*\" >>$tmp/asked
        case \"\$*\" in *install*) for c in cc c++ make pkg-config python3 redis-check-rdb; do
            printf '#!%s\n' $(command -v sh) >$tmp/bin/\$c; $(command -v chmod) +x $tmp/bin/\$c
        done ;; esac"
}

everything='cc c++ make pkg-config python3 redis-check-rdb'

setup_here() { env -i PATH="$tmp/bin" "$tmp/bin/sh" "$setup" "$@" 2>&1; }

with_nothing_missing_it_says_so_in_one_line_and_asks_nobody() {
    local out
    # shellcheck disable=SC2086
    make_machine $everything
    add_apt
    out=$(setup_here) || fail "failed: $out" || return
    [ "$out" = 'setup: everything needed is installed' ] || fail "said: $out" || return
    [ ! -e "$tmp/asked" ] || fail "apt-get was run: $(cat "$tmp/asked")"
}

what_is_missing_is_installed_by_package_name() {
    local out
    make_machine make
    add_apt
    out=$(setup_here) || fail "failed: $out" || return
    [[ $out == *'missing: gcc g++ libc6-dev pkg-config libyaml-dev libxxhash-dev libssl-dev'* ]] ||
        fail "said: $out" || return
    grep -q 'install -y --no-install-recommends gcc g++ libc6-dev pkg-config' "$tmp/asked" ||
        fail "asked: $(cat "$tmp/asked")" || return
    [[ $out == *'setup: done' ]] || fail "said: $out"
}

one_missing_library_is_the_only_thing_installed() {
    local out
    # shellcheck disable=SC2086
    make_machine $everything
    add_apt
    add_command pkg-config "case \"\$*\" in *yaml*) [ -e $tmp/asked ] ;; esac"
    out=$(setup_here) || fail "failed: $out" || return
    grep -q 'install -y --no-install-recommends libyaml-dev$' "$tmp/asked" ||
        fail "asked: $(cat "$tmp/asked")"
}

a_failed_update_of_the_lists_is_not_the_end() {
    local out
    make_machine
    add_apt
    sed -i '1a case "$*" in *update*) exit 100 ;; esac' "$tmp/bin/apt-get"
    out=$(setup_here) || fail "failed: $out" || return
    [[ $out == *'cannot update'*'setup: done' ]] || fail "said: $out"
}

a_user_goes_through_sudo() {
    local out
    make_machine
    add_apt
    add_command id 'echo 1000'
    add_command sudo "echo sudo >>$tmp/asked; exec \"\$@\""
    out=$(setup_here) || fail "failed: $out" || return
    [ "$(grep -c sudo "$tmp/asked")" -eq 2 ] || fail "asked: $(cat "$tmp/asked")"
}

a_user_without_sudo_gets_the_command_to_hand_on() {
    local out
    make_machine
    add_apt
    add_command id 'echo 1000'
    out=$(setup_here) && { fail "succeeded: $out" || return; }
    [[ $out == *'no sudo'*'apt-get install'*gcc* ]] || fail "said: $out" || return
    [ ! -e "$tmp/asked" ] || fail "apt-get was run"
}

a_machine_without_apt_gets_the_names() {
    local out
    make_machine make
    out=$(setup_here) && { fail "succeeded: $out" || return; }
    [[ $out == *'no apt-get'*libyaml-dev* ]] || fail "said: $out"
}

a_package_that_does_not_help_is_named() {
    local out
    make_machine
    add_command apt-get ''
    out=$(setup_here) && { fail "succeeded: $out" || return; }
    [[ $out == *'still not usable: gcc'* ]] || fail "said: $out"
}

a_failed_install_is_an_error() {
    local out
    make_machine
    add_command apt-get 'exit 100'
    out=$(setup_here) && { fail "succeeded: $out" || return; }
    [[ $out == *'could not install: gcc'* ]] || fail "said: $out"
}

dry_run_changes_nothing_and_lint_asks_for_more() {
    local out
    # shellcheck disable=SC2086
    make_machine $everything
    add_apt
    out=$(setup_here --dry-run --lint) && { fail "succeeded: $out" || return; }
    [[ $out == *'missing: gcc clang'*mandoc* ]] || fail "said: $out" || return
    [ ! -e "$tmp/asked" ] || fail "apt-get was run" || return
    out=$(setup_here --nonsense) && { fail "succeeded: $out" || return; }
    [[ $out == *"unknown option '--nonsense'"* ]] || fail "said: $out"
}

a_model_needs_cmake_and_pip() {
    local out
    # shellcheck disable=SC2086
    make_machine $everything
    add_command python3 'case "$*" in *pip*) exit 1 ;; esac'
    add_apt
    out=$(setup_here --dry-run --model) && { fail "succeeded: $out" || return; }
    [[ $out == *'missing: cmake python3-pip' ]] || fail "said: $out" || return
    out=$(setup_here --dry-run --model=1.5b) && { fail "succeeded: $out" || return; }
    [[ $out == *'missing: cmake python3-pip' ]] || fail "said: $out" || return
    out=$(setup_here --dry-run --model=7b) && { fail "succeeded: $out" || return; }
    [[ $out == *"unknown option '--model=7b'"* ]] || fail "said: $out"
}

run with_nothing_missing_it_says_so_in_one_line_and_asks_nobody
run what_is_missing_is_installed_by_package_name
run one_missing_library_is_the_only_thing_installed
run a_failed_update_of_the_lists_is_not_the_end
run a_user_goes_through_sudo
run a_user_without_sudo_gets_the_command_to_hand_on
run a_machine_without_apt_gets_the_names
run a_package_that_does_not_help_is_named
run a_failed_install_is_an_error
run dry_run_changes_nothing_and_lint_asks_for_more
run a_model_needs_cmake_and_pip
test_end
