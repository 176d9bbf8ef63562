#!/usr/bin/env bash
# Every flag in a program's help is in its manual page and the other way round, and shells complete it.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"
bin=$PWD/$B/bin

commands_of() { # program: one a line, of one word or two
    "$bin/$1" help | awk '/^Commands:/ {on = 1; next} on && !/^  / {exit} on {name = substr($0, 3, 15); sub(/ +$/, "", name); print name}'
}

helps_of() { # program: a file for each command in $tmp/help
    local name
    mkdir -p "$tmp/help"
    "$bin/$1" --help >"$tmp/help/program"
    commands_of "$1" >"$tmp/commands"
    while IFS= read -r name; do
        # shellcheck disable=SC2086  # one word or two
        [ "$name" = help ] || "$bin/$1" help $name >"$tmp/help/$name" 2>&1 || fail "help $name: $(cat "$tmp/help/$name")" || return
    done <"$tmp/commands"
    [ "$(wc -l <"$tmp/commands")" -ge "$2" ] || fail "too few commands: $(cat "$tmp/commands")"
}

page_matches() { # program, page
    python3 tests/cli/documented.py "$tmp/help" "$2" >"$tmp/wrong" || fail "$1: $(cat "$tmp/wrong")"
}

tessera_and_its_page_have_the_same_flags() {
    needs_python || return
    helps_of tessera 20 && page_matches tessera man/tessera.1
}

tessera_lab_and_its_page_have_the_same_flags() {
    needs_python || return
    helps_of tessera-lab 6 && page_matches tessera-lab man/tessera-lab.1
}

tesserad_and_its_page_have_the_same_flags() {
    needs_python || return
    mkdir "$tmp/help"
    "$bin/tesserad" --help >"$tmp/help/program"
    page_matches tesserad man/tesserad.8
}

# The comparison itself: a flag that only one side has is named.
what_only_one_side_has_is_named() {
    needs_python || return
    mkdir "$tmp/help"
    printf 'usage: x [--json] [--config=FILE]\n' >"$tmp/help/program"
    printf 'usage: x go [--fast] [--slow=N] [--a_key=V]\n' >"$tmp/help/go"
    printf '.Sh D\n.It Fl -json\n.It Fl -config Ns = Ns Ar f\n.It Cm go Oo Fl -fast Oc Op Fl -old\n' >"$tmp/page"
    ! python3 tests/cli/documented.py "$tmp/help" "$tmp/page" >"$tmp/wrong" || fail 'nothing is wrong' || return
    is "$(cat "$tmp/wrong")" "go: --slow is not in $tmp/page
go: --old is in $tmp/page only"
}

# Flags that bash offers for a command, without the = of a value.
offered() {
    # shellcheck disable=SC2016  # the inner shell expands
    PATH=$bin:$PATH bash -c '. packaging/completion/tessera.bash
        COMP_WORDS=("$@" --) COMP_CWORD=$#
        "$(complete -p "$1" | sed "s/.*-F \([^ ]*\).*/\1/")"
        printf "%s\n" "${COMPREPLY[@]}"' bash "$@" 2>/dev/null | tr -d = | sort -u
}

# Those at the begin of a word, as the completions of zsh and fish take them, too.
completion_offers() { # file of help, command...
    local want
    want=$(grep -oE -- '(^|[ [(|])--[a-z0-9][a-z0-9_-]*' "$1" | grep -oE -- '--.*' | grep -v _ | sort -u)
    shift
    [ -z "$(comm -23 - <(offered "$@") <<<"$want")" ] || fail "$*: not offered: $(comm -23 - <(offered "$@") <<<"$want")"
}

every_flag_is_completed() {
    local program name
    for program in tessera tessera-lab; do
        rm -rf "$tmp/help"
        helps_of "$program" 6 || return
        while IFS= read -r name; do
            [ "$name" != help ] || continue
            # shellcheck disable=SC2086  # one word or two
            completion_offers "$tmp/help/$name" "$program" $name || return
        done <"$tmp/commands"
        completion_offers "$tmp/help/program" "$program" || return
    done
    "$bin/tesserad" --help >"$tmp/tesserad"
    completion_offers "$tmp/tesserad" tesserad
}

zsh_and_fish_know_every_program() {
    head -n 1 packaging/completion/_tessera | grep -qx '#compdef tessera tessera-lab tesserad' || fail zsh || return
    grep -q 'complete -c tesserad' packaging/completion/tessera.fish || fail fish
}

run tessera_and_its_page_have_the_same_flags
run tessera_lab_and_its_page_have_the_same_flags
run tesserad_and_its_page_have_the_same_flags
run what_only_one_side_has_is_named
run every_flag_is_completed
run zsh_and_fish_know_every_program
test_end
