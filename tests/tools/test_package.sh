#!/usr/bin/env bash
# What packages are made of, as far as it can be tried without building one: tools/check-packages installs and
# tries the packages themselves.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"

program=$PWD/$B/bin/tessera

# What bash would offer for a line: complete_line tessera ask --comp
complete_line() {
    # shellcheck disable=SC2016  # the inner shell expands
    PATH=${program%/*}:$PATH bash -c '
        . packaging/completion/tessera.bash
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _tessera
        printf "%s\n" "${COMPREPLY[@]}"' bash "$@" 2>/dev/null
}

bash_completes_commands_and_flags() {
    complete_line tessera doc | grep -qx doctor || fail "doc: $(complete_line tessera doc)" || return
    complete_line tessera config '' | grep -qx check || fail "config: $(complete_line tessera config '')" || return
    complete_line tessera ask --mod | grep -qx -- '--model=' || fail "--mod: $(complete_line tessera ask --mod)" || return
    [ -z "$(complete_line tessera doctor no-such)" ] || fail "doctor: $(complete_line tessera doctor no-such)"
}

every_command_of_the_help_is_completed() {
    local command
    for command in ask ingest serve stat top doctor inspect ls verify evict clear compact warm version help; do
        complete_line tessera "$command" | grep -qx "$command" || fail "not $command" || return
    done
    complete_line tessera-lab sim | grep -qx simulate || fail "sim: $(complete_line tessera-lab sim)" || return
    complete_line tessera top --onc | grep -qx -- --once || fail "--onc: $(complete_line tessera top --onc)" || return
    complete_line tessera-lab simulate --eng | grep -qx -- --engines= || fail "--eng: $(complete_line tessera-lab simulate --eng)"
}

the_configuration_of_the_package_is_valid() {
    "$B/bin/tesserad" --check --config packaging/tessera.conf >"$tmp/out" 2>&1 || fail "$(cat "$tmp/out")" || return
    # The paths are those of the unit and of the socket.
    grep -q 'path: /var/lib/tessera' packaging/tessera.conf || fail 'disk: not the StateDirectory of the unit' || return
    grep -q "$(sed -n 's/^ListenStream=//p' packaging/systemd/tesserad.socket)" packaging/tessera.conf ||
        fail 'not the socket of the unit'
}

# A new program, page or library must not be forgotten, nor be in two packages.
every_installed_file_is_in_one_debian_package() {
    local file pattern n
    make -s B="$B" "${built_with[@]}" PREFIX=/usr LIBDIR=/usr/lib/x DESTDIR="$tmp/stage" install >"$tmp/log" 2>&1 ||
        fail "make install: $(cat "$tmp/log")" || return
    while IFS= read -r file; do
        case $file in
        usr/lib/systemd/*) continue ;; # debian/rules hands them to debhelper
        usr/lib/x/libtessera-ascend.so | usr/lib/x/libtessera-model.so | usr/lib/x/libtessera-cuda.so | usr/lib/x/tessera/* | usr/share/doc/*) continue ;;
        esac
        n=0
        while IFS= read -r pattern; do
            # shellcheck disable=SC2053,SC2254  # patterns
            case $file in $pattern | $pattern/*) n=$((n + 1)) ;; esac
        done < <(cat packaging/debian/*.install)
        [ "$n" -eq 1 ] || fail "$file is in $n packages" || return
    done < <(cd "$tmp/stage" && find . ! -type d -printf '%P\n')
}

# What is loaded by name only is in no list that the linker makes.
the_wheel_has_what_is_loaded_on_demand() {
    local name
    for name in $(grep -rhoE '"lib(curl|expat|xml2)\.so\.[0-9]+"' src | tr -d '"' | sort -u); do
        name=${name#lib}
        grep -qF "$name" packaging/wheel/build.sh || fail "no $name in the wheel" || return
    done
}

# What make wants for the library and the programs. A model is not part of it.
the_sdist_has_all_that_the_build_needs() {
    local name
    mkdir "$tmp/source"
    for name in $(python3 - <<'END'
import ast
names = []
for node in ast.parse(open("python/setup.py").read()).body:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    if isinstance(target, ast.Name) and target.id == "SOURCES":
        names += ast.literal_eval(node.value)
print(*names)
END
    ); do
        mkdir -p "$tmp/source/$(dirname "$name")"
        cp -r "$name" "$tmp/source/$name" || fail "no $name" || return
    done
    make -C "$tmp/source" -n B=build WITH_MODEL=0 lib build/bin/tessera build/bin/tesserad >"$tmp/out" 2>&1 ||
        fail "$(grep -F '***' "$tmp/out")"
}

# One call of a newer function, and the wheel no longer installs on Ubuntu 22.04 and RHEL 9.
what_is_in_the_wheel_needs_glibc_2_34() {
    local file newer
    [ -z "$san" ] || skip 'sanitizers call what they like' || return
    # A newer glibc has newer versions of functions that Debian 12, where the wheel is built, has as old ones.
    [ "$(getconf GNU_LIBC_VERSION | sed 's/.*\.//')" -le 36 ] || skip "$(getconf GNU_LIBC_VERSION)" || return
    for file in lib/libtessera.so lib/libtessera-ascend.so bin/tessera bin/tesserad; do
        newer=$(readelf -W --dyn-syms "$B/$file" | grep -oE '[a-z0-9_]+@GLIBC_2\.(3[5-9]|[4-9][0-9]).*')
        [ -z "$newer" ] || fail "$file: $newer" || return
    done
}

run bash_completes_commands_and_flags
run every_command_of_the_help_is_completed
run the_configuration_of_the_package_is_valid
run every_installed_file_is_in_one_debian_package
run the_wheel_has_what_is_loaded_on_demand
run the_sdist_has_all_that_the_build_needs
run what_is_in_the_wheel_needs_glibc_2_34
test_end
