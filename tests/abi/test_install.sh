#!/usr/bin/env bash
# make install, seen from outside: a program that knows only pkg-config finds, links and runs with
# the installed library, shared and static.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"

install_to() { # $1 prefix, $2 destdir
    make -s B="$B" "${built_with[@]}" PREFIX="$1" DESTDIR="${2-}" install >"$tmp/log" 2>&1 ||
        fail "make install: $(cat "$tmp/log")"
}

# The smallest program that needs the library, or examples/hello.c where it is there.
program() {
    if [ -f examples/hello.c ]; then
        cp examples/hello.c "$tmp/hello.c"
    else
        printf '#include <tessera/tessera.h>\n#include <stdio.h>\n%s\n' \
            'int main(void) { return puts(tsr_version()) < 0; }' >"$tmp/hello.c"
    fi
}

pc() { PKG_CONFIG_PATH=$tmp/usr/lib/pkgconfig pkg-config "$@" tessera; }

a_program_builds_and_runs_with_the_installed_shared_library() {
    install_to "$tmp/usr" || return
    program
    # shellcheck disable=SC2046,SC2086
    "$CC" -std=c11 $san "$tmp/hello.c" -o "$tmp/hello" $(pc --cflags --libs) || return
    ldd "$tmp/hello" 2>/dev/null | grep -q libtessera.so || fail "not linked to the library" || return
    LD_LIBRARY_PATH=$tmp/usr/lib "$tmp/hello" >"$tmp/out" 2>&1 || fail "it failed: $(cat "$tmp/out")"
}

a_program_builds_and_runs_with_the_installed_static_library() {
    install_to "$tmp/usr" || return
    rm "$tmp"/usr/lib/libtessera.so*
    program
    # shellcheck disable=SC2046,SC2086
    "$CC" -std=c11 $san "$tmp/hello.c" -o "$tmp/hello" $(pc --cflags --libs --static) || return
    "$tmp/hello" >"$tmp/out" 2>&1 || fail "it failed: $(cat "$tmp/out")"
}

pkg_config_gives_the_version_of_the_library() {
    install_to "$tmp/usr" || return
    [ "$(pc --modversion)" = "$(cat VERSION)" ] || fail "pkg-config says $(pc --modversion)"
}

# One file has it; what else shows it takes it from there.
the_version_is_written_in_one_file() {
    local version again page
    version=$(cat VERSION)
    again=$(grep -rnF "$version" Makefile tessera.pc.in man packaging tools include src/base src/cli \
        python --include='*' --exclude-dir=__pycache__ --exclude-dir='*.egg-info' --exclude-dir=build --exclude='*.txt') &&
        { fail "again in: $again" || return; }
    grep -qE "^## ${version//./\\.}( |$)" CHANGELOG.md || fail "no such heading in CHANGELOG.md" || return
    install_to "$tmp/usr" || return
    for page in "$tmp"/usr/share/man/*/*; do
        grep -qx "\.Os Tessera $version" "$page" || fail "${page##*/} says another one" || return
    done
    "$tmp/usr/bin/tessera" --version | grep -qF "$version" || fail "the program says another one" || return
    python3 -c 'import setuptools' 2>/dev/null || return 0
    [ "$(cd python && python3 setup.py --version 2>/dev/null | tail -n 1)" = "$version" ] ||
        fail "the Python package has another one"
}

every_example_builds_with_what_pkg_config_says() {
    local example
    install_to "$tmp/usr" || return
    for example in examples/*.c; do
        local own=()
        grep -q '<math.h>' "$example" && own=(-lm) # a need of its own, not of the library
        # shellcheck disable=SC2046,SC2086
        "$CC" -Wall -Wextra -Werror $san "$example" -o "$tmp/example" $(pc --cflags --libs) \
            "${own[@]}" || fail "$example" || return
        LD_LIBRARY_PATH=$tmp/usr/lib timeout 60 "$tmp/example" >"$tmp/out" 2>&1 ||
            fail "$example: $(cat "$tmp/out")" || return
    done
}

libraries_go_where_libdir_says() {
    make -s B="$B" "${built_with[@]}" PREFIX="$tmp/usr" LIBDIR="$tmp/usr/lib64" install \
        >"$tmp/log" 2>&1 || fail "make install: $(cat "$tmp/log")" || return
    [ -f "$tmp/usr/lib64/libtessera.so" ] || fail "no library in lib64" || return
    [ -z "$(find "$tmp/usr/lib" -name 'libtessera*' -o -name '*.pc')" ] ||
        fail "in lib: $(ls "$tmp/usr/lib")" || return
    # shellcheck disable=SC2016  # pkg-config expands it
    grep -qx 'libdir=${prefix}/lib64' "$tmp/usr/lib64/pkgconfig/tessera.pc" ||
        fail "tessera.pc: $(grep libdir= "$tmp/usr/lib64/pkgconfig/tessera.pc")" || return
    [ -f "$tmp/usr/lib64/libtessera-model.so" ] || return 0
    touch "$tmp/empty.gguf"
    "$tmp/usr/bin/tessera" ask --model="$tmp/empty.gguf" --doc=VERSION hello >"$tmp/out" 2>&1
    grep -q 'not a model file' "$tmp/out" || fail "no model library: $(cat "$tmp/out")"
}

uninstall_takes_away_what_install_has_put_there_and_nothing_else() {
    mkdir -p "$tmp/stage/usr/lib/pkgconfig" "$tmp/stage/usr/include/tessera" || return
    touch "$tmp/stage/usr/lib/libother.so" "$tmp/stage/usr/include/tessera/other.h"
    (cd "$tmp/stage" && find . ! -type d | sort) >"$tmp/before"
    install_to /usr "$tmp/stage" || return
    make -s B="$B" "${built_with[@]}" PREFIX=/usr DESTDIR="$tmp/stage" uninstall >"$tmp/log" 2>&1 ||
        fail "make uninstall: $(cat "$tmp/log")" || return
    (cd "$tmp/stage" && find . ! -type d | sort) | diff "$tmp/before" - || fail "other files" || return
    [ -z "$(find "$tmp/stage" -type d -name 'tessera' -empty)" ] || fail "empty folders of ours"
}

destdir_gets_everything_and_prefix_is_what_programs_see() {
    install_to /opt/somewhere "$tmp/stage" || return
    local top
    top=$(ls "$tmp/stage")
    [ "$top" = opt ] || fail "in the stage: $top" || return
    grep -q '^prefix=/opt/somewhere$' "$tmp/stage/opt/somewhere/lib/pkgconfig/tessera.pc" ||
        fail "tessera.pc names another prefix" || return
    [ -f "$tmp/stage/opt/somewhere/include/tessera/tessera.h" ] || fail "no header" || return
    [ ! -e /opt/somewhere ] || fail "something went to /opt/somewhere"
}

every_man_page_and_program_is_installed() {
    install_to "$tmp/usr" || return
    local page program
    for page in man/*.[1-8]; do
        [ -f "$page" ] || continue
        [ -f "$tmp/usr/share/man/man${page##*.}/${page#man/}" ] || fail "no $page" || return
    done
    for program in "$B"/bin/*; do
        [ -f "$program" ] || continue
        [ -x "$tmp/usr/bin/${program##*/}" ] || fail "no $program" || return
    done
}

# Nothing that is installed may need a folder of the person who built it.
what_is_installed_finds_its_libraries_beside_itself() {
    install_to "$tmp/usr" || return
    local file path
    while IFS= read -r file; do
        path=$(readelf -d "$file" 2>/dev/null | sed -n 's/.*(R[A-Z]*PATH).*\[\(.*\)\]/\1/p')
        [ -z "$path" ] || [[ $path =~ ^\$ORIGIN[^:]*$ ]] ||
            fail "${file##*/} looks for libraries in $path" || return
    done < <(find "$tmp/usr" -type f)
    [ -f "$tmp/usr/lib/libtessera-model.so" ] || return 0
    ldd "$tmp/usr/lib/libtessera-model.so" >"$tmp/out" 2>&1 || fail "$(cat "$tmp/out")" || return
    ! grep -q 'not found' "$tmp/out" || fail "$(cat "$tmp/out")" || return
    [ ! -d "$tmp/usr/lib/tessera" ] || ! grep -E 'lib(llama|ggml)' "$tmp/out" |
        grep -v "=> $tmp/usr/lib/" || fail "other libraries than the installed ones"
}

run a_program_builds_and_runs_with_the_installed_shared_library
run a_program_builds_and_runs_with_the_installed_static_library
run pkg_config_gives_the_version_of_the_library
run the_version_is_written_in_one_file
run every_example_builds_with_what_pkg_config_says
run libraries_go_where_libdir_says
run uninstall_takes_away_what_install_has_put_there_and_nothing_else
run destdir_gets_everything_and_prefix_is_what_programs_see
run every_man_page_and_program_is_installed
run what_is_installed_finds_its_libraries_beside_itself
test_end
