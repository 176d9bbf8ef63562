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
    make -C "$tmp/source" -n B=build WITH_MODEL=0 lib build/lib/libtessera-ascend.so build/bin/tessera build/bin/tesserad >"$tmp/out" 2>&1 ||
        fail "$(grep -F '***' "$tmp/out")"
}

# Apache-2.0 wants it with every copy. What is built of the sdist has it from there.
the_licence_goes_with_the_sdist_and_the_wheels() {
    local folder name
    python3 -c 'import setuptools' 2>/dev/null || { skip 'no setuptools'; return; }
    (cd python && python3 setup.py -q egg_info -e "$tmp" sdist -d "$tmp/dist") >"$tmp/log" 2>&1 || fail "$(tail -3 "$tmp/log")" || return
    tar -xzf "$tmp"/dist/*.tar.gz -C "$tmp" || return
    for name in LICENSE README.md; do
        [ -s "$(echo "$tmp"/tessera?kv-*/"$name")" ] || fail "no $name in the sdist" || return
    done
    cmp -s LICENSE "$tmp"/tessera?kv-*/LICENSE || fail 'another licence' || return
    for folder in python packaging/cuda; do
        grep -qx 'readme = "README.md"' "$folder/pyproject.toml" && [ -s "$folder/README.md" ] || fail "$folder: no readme" || return
        grep -q "^cp LICENSE $folder/ " packaging/*/build.sh || fail "$folder: its wheel has no licence" || return
    done
}

# A server that nobody may use, or that its clients do not accept, is what the file would be without these variables.
the_container_has_clients() {
    local file=packaging/container/tesserad.Containerfile uid run
    uid=$(sed -n 's/^RUN useradd .*--uid \([0-9]*\) .*/\1/p' "$file")
    [ -n "$uid" ] && grep -q "^#  *podman run .*TESSERA_SERVER_OWNER=$uid " "$file" || fail 'clients do not accept the server' || return
    [ "$(id -u)" -eq 0 ] || { skip 'needs root: two users'; return; }
    command -v setpriv >/dev/null || { skip 'no setpriv'; return; }
    run=$(mktemp -d) && chown "$uid" "$run" && chmod 755 "$run" || return
    setpriv --reuid="$uid" --clear-groups "$B/bin/tesserad" --check >/dev/null 2>&1 || { skip "another user cannot run $B/bin/tesserad"; return; }
    env "$(grep -o 'TESSERA_SERVER_ALLOW=[0-9]*' "$file" | head -1)" HOME="$run" setpriv --reuid="$uid" --clear-groups \
        "$B/bin/tesserad" --server_socket="$run/sock" --host_size=16M --http_listen=off 2>"$tmp/log" &
    local server=$! i status=1
    for ((i = 0; i < 1200 && status; i++)); do
        TESSERA_SERVER_OWNER=$uid "$B/bin/tessera" ls --connect="$run/sock" >"$tmp/out" 2>&1
        status=$?
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    ! "$B/bin/tessera" ls --connect="$run/sock" >"$tmp/wrong" 2>&1 || status=2
    kill "$server"
    wait "$server"
    rm -rf "$run"
    [ "$status" -eq 0 ] || fail "status $status: $(cat "$tmp/out" "$tmp/log")"
}

# The wheel of packaging/wheel and the one that pip builds from the sources have the same libraries and programs.
the_sdist_makes_what_the_wheel_has() {
    local want
    want=$(sed -n 's/^libraries="\(.*\)" programs="\(.*\)"$/\1 \2/p' packaging/wheel/build.sh)
    [ -n "$want" ] || fail 'no list in build.sh' || return
    [ "$(sed -n 's/^\(LIBRARIES\|PROGRAMS\) = \[\(.*\)\]$/\2/p' python/setup.py | tr -d '",' | xargs)" = "$want" ] ||
        fail "build.sh: $want, setup.py: $(grep -E '^(LIBRARIES|PROGRAMS)' python/setup.py)"
}

# What would be built on a machine of another kind, with these tools of trees.
package_on() { # machine, tools that are there
    local tool
    rm -rf "${tmp:?}/bin"
    mkdir "$tmp/bin"
    printf '#!/bin/sh\necho %s\n' "$1" >"$tmp/bin/uname"
    printf '#!/bin/sh\necho 0\n' >"$tmp/bin/id"
    for tool in $2; do printf '#!/bin/sh\n' >"$tmp/bin/$tool"; done
    chmod +x "$tmp/bin"/*
    for tool in bash env dirname python3 unshare chroot cat; do
        [ -e "$tmp/bin/$tool" ] || ln -s "$(command -v "$tool")" "$tmp/bin/$tool"
    done
    shift 2
    out=$(PATH=$tmp/bin HOME=$tmp "$tmp/bin/bash" tools/package "$@" 2>&1)
    status=$?
}

packages_are_native_to_their_machine() {
    package_on x86_64 'debootstrap lintian' --dry-run
    [ "$status" -eq 0 ] || fail "$out" || return
    [[ $out == *'wheel for x86_64, native'*'wheel for aarch64, cross-compiled'*'packages of Debian 13 for x86_64'* ]] || fail "$out" || return
    package_on aarch64 'debootstrap lintian' --dry-run
    [ "$status" -eq 0 ] || fail "$out" || return
    [[ $out == *'wheel for aarch64, native'*'wheel for x86_64, cross-compiled'*'CUDA device for aarch64'*'Debian 12 for aarch64'* ]] || fail "$out"
}

what_cannot_be_built_is_said_before_anything_is() {
    package_on aarch64 ''
    [ "$status" -eq 1 ] || fail "status $status: $out" || return
    [[ $out == *'wheel '*'cannot be built here: no debootstrap lintian: as root, run tools/setup --package'*'nothing was built'* ]] ||
        fail "$out" || return
    package_on aarch64 '' --dry-run sdist
    [ "$status" -eq 0 ] || fail "$out" || return
    package_on riscv64 'debootstrap lintian' --dry-run deb-12
    [[ $status == 1 && $out == *'no packages for riscv64'* ]] || fail "$status: $out" || return
    package_on x86_64 '' tarball
    [[ $status == 1 && $out == *'unknown: tarball'* ]] || fail "$status: $out"
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
run the_sdist_makes_what_the_wheel_has
run the_licence_goes_with_the_sdist_and_the_wheels
run the_container_has_clients
run packages_are_native_to_their_machine
run what_cannot_be_built_is_said_before_anything_is
run what_is_in_the_wheel_needs_glibc_2_34
test_end
