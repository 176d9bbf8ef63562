#!/usr/bin/env bash
# The README: its C program is a real one, as are the examples, and what it points to is there.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"

extract() { awk '/^```c$/ {on = 1; next} /^```$/ {on = 0} on' README.md; }

the_example_compiles_without_a_warning() {
    extract >"$tmp/example.c"
    [ -s "$tmp/example.c" ] || fail "README.md has no C example" || return
    # shellcheck disable=SC2086
    "$CC" -std=c11 -Wall -Wextra -Wpedantic -Werror $san -Iinclude -c "$tmp/example.c" \
        -o "$tmp/example.o"
}

the_example_finds_its_document() {
    extract >"$tmp/example.c"
    # shellcheck disable=SC2086
    "$CC" -std=c11 $san -Iinclude "$tmp/example.c" -o "$tmp/example" -L"$B/lib" -ltessera || return
    local out
    out=$(LD_LIBRARY_PATH=$B/lib "$tmp/example" 2>&1) || fail "it failed: $out" || return
    [ "$out" = '4 of 7 tokens from the cache, K[0] = 0.5' ] || fail "it said: $out"
}

every_example_runs_to_its_end() {
    local source program out
    for source in examples/*.c; do
        program=$B/examples/$(basename "$source" .c)
        [ -x "$program" ] || continue
        out=$(timeout 60 "$program" 2>&1) || fail "$program: $out" || return
    done
}

every_link_between_documents_leads_somewhere() {
    command -v python3 >/dev/null || skip 'no python3' || return
    local documents=(*.md docs/*.md docs/guides/*.md examples/*/README.md)
    python3 tests/tools/links.py "${documents[@]}" >"$tmp/out" || fail "dead links: $(cat "$tmp/out")" || return
    # A title that is not there is noticed.
    printf '# One\n[here](#one) [there](#two)\n' >"$tmp/two.md"
    ! python3 tests/tools/links.py "$tmp/two.md" >"$tmp/out" || fail 'a dead link passes' || return
    [ "$(cat "$tmp/out")" = "$tmp/two.md: #two: no such title" ] || fail "it said: $(cat "$tmp/out")"
}

every_make_target_named_in_the_documents_exists() {
    local target missing=''
    while IFS= read -r target; do
        make -n B="$B" "$target" >/dev/null 2>&1 || missing="$missing $target"
    done < <(grep -ohE '(^ +|`)make [a-z][a-z-]*' README.md CONTRIBUTING.md docs/*.md | awk '{print $NF}' | sort -u)
    [ -z "$missing" ] || fail "no such target:$missing"
}

help_of_make_names_every_target_that_a_user_calls() {
    local target missing=''
    make -s help >"$tmp/help" || fail "make help" || return
    while IFS= read -r target; do
        case $target in all | lib | help | setup | FORCE) continue ;; esac
        grep -qE "make $target( |,|\$)" "$tmp/help" || missing="$missing $target"
    done < <(sed -n 's/^\.PHONY: //p' Makefile | tr ' ' '\n')
    [ -z "$missing" ] || fail "make help does not name$missing"
}

run the_example_compiles_without_a_warning
run the_example_finds_its_document
run every_example_runs_to_its_end
run every_link_between_documents_leads_somewhere
run help_of_make_names_every_target_that_a_user_calls
run every_make_target_named_in_the_documents_exists
test_end
