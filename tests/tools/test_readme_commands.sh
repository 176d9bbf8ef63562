#!/usr/bin/env bash
# The README's commands: each is run here, in folders of the test's own, or named below with the reason why not.
# A command that is in neither list fails, and so does one in a list that the README no longer has. The C program
# of the README is run by abi/test_readme.
# shellcheck source=tests/serve/serve_kit.sh
. "$(dirname "$0")/../serve/serve_kit.sh"
tree=$PWD

# command | why it is not run
not_run() {
    cat <<'END'
make cuda|needs nvcc; CI runs it where there is one
pip install ./python|needs the network; make check-packages installs the wheel
vllm serve MODEL --kv-transfer-config "$(cat examples/vllm/tessera.json)"|needs vLLM and a model; make test-vllm runs engines with such settings
make test|runs this test
make demo|tools/test_demo runs it
END
}
# Run below, as far as that goes without root.
run_here() {
    cat <<'END'
tools/setup
tools/setup --model
make -j4
build/bin/tessera ask --docs=examples/docs 'How long does the ferry take?'
build/bin/tessera serve --docs=examples/docs
make -j4 && sudo make install
cc examples/hello.c $(pkg-config --cflags --libs tessera) -o hello && ./hello
END
}

every_command_is_run_or_has_a_reason() {
    needs_python || return
    {
        not_run | cut -d'|' -f1
        run_here
    } | sort >"$tmp/listed"
    python3 tests/tools/doc_blocks.py commands README.md | sort -u >"$tmp/there"
    diff "$tmp/listed" "$tmp/there" >"$tmp/diff" || fail "listed here (<), in the README (>): $(cat "$tmp/diff")"
}

# A quickstart has at most four lines.
quickstarts_are_short() {
    local n
    n=$(awk '/^## Start/ {on = 1; next} /^## / {on = 0} on && /^    / {n++; if (n > max) max = n; next} on {n = 0} END {print max + 0}' README.md)
    ((n >= 1 && n <= 4)) || fail "one has $n lines"
}

the_engines_settings_are_those_of_a_connector() {
    out=$(cat examples/vllm/tessera.json)
    is "$(json 'x["kv_connector"]')" TesseraConnector
}

setup_says_what_it_would_install() {
    local code
    out=$(tools/setup --model --dry-run 2>&1)
    code=$?
    ((code <= 1)) || fail "$out" || return
    [ -n "$out" ] || fail 'it says nothing'
}

# Everything up to date is what running the tests has left.
make_builds() {
    make -n B="$B" "${built_with[@]}" >/dev/null 2>"$tmp/err" || fail "$(cat "$tmp/err")"
}

# A machine on which pkg-config finds neither of two libraries, or there is no compiler.
make_lacking() { # pattern of libraries, then arguments of make
    mkdir -p "$tmp/bin"
    # shellcheck disable=SC2016  # the inner shell expands
    printf '#!/bin/sh\ncase "$*" in %s) exit 1 ;; esac\nexec %s "$@"\n' "$1" "$(command -v pkg-config)" >"$tmp/bin/pkg-config"
    chmod +x "$tmp/bin/pkg-config"
    shift
    out=$(PATH=$tmp/bin:$PATH make B="$tmp/new" "$@" 2>&1)
    status=$?
}

make_says_what_is_missing_before_it_builds() {
    local target
    for target in all lib "$tmp/new/bin/tessera" install; do
        make_lacking '*yaml*|*libxml*' CC="$CC" PREFIX="$tmp/usr" "$target"
        [ "$status" -ne 0 ] || fail "$target: it goes on: $out" || return
        [[ $out == *'missing: libyaml-dev libxml2-dev. tools/setup installs them, which needs root or sudo; nothing was built'* ]] ||
            fail "$target: $out" || return
        [ ! -e "$tmp/new" ] && [ ! -e "$tmp/usr" ] || fail "$target: something was built" || return
    done
    make_lacking 'nothing' CC=no-such-compiler
    [[ $out == *'no compiler: no-such-compiler'* && ! -e $tmp/new ]] || fail "$out" || return
    # These install packages, or need none.
    make_lacking '*yaml*' -n clean
    [ "$status" -eq 0 ] || fail "clean: $out"
}

# Without it, ./hello does not find what is installed in /usr/local.
an_installation_for_all_is_told_to_the_linker() {
    make -n B="$B" "${built_with[@]}" PREFIX=/usr/local install 2>&1 | grep -q 'then ldconfig' || fail 'no ldconfig' || return
    ! make -n B="$B" "${built_with[@]}" PREFIX="$tmp/usr" install 2>&1 | grep ldconfig || fail 'for a folder' || return
    ! make -n B="$B" "${built_with[@]}" DESTDIR="$tmp/stage" install 2>&1 | grep ldconfig || fail 'for a package'
}

# sudo has another home, in which there is no llama.cpp.
an_installation_with_sudo_has_the_model() {
    [ -e "$B/lib/libtessera-model.so" ] || { skip 'llama.cpp is not installed: tools/setup --model'; return; }
    SUDO_USER=me TESSERA_LLAMA_DIR='' TESSERA_DEPS_DIR=$tmp/none make -n B="$B" "${built_with[@]}" PREFIX="$tmp/usr" install 2>&1 |
        grep -q 'install .*libtessera-model.so' || fail 'no libtessera-model.so'
}

# A model of random numbers in place of a real one.
small_model() {
    [ -x "$B/tests/model/make_gguf" ] || { skip 'llama.cpp is not installed: tools/setup --model'; return; }
    export TESSERA_DEPS_DIR=$tmp/deps TESSERA_MODEL=$tmp/m.gguf
    "$B/tests/model/make_gguf" "$TESSERA_MODEL" llama >/dev/null
}

ask_answers() {
    small_model || return
    t ask --docs=examples/docs 'How long does the ferry take?' --max=2 --threads=1
    exits 0
}

serve_starts() {
    small_model || return
    "$tessera" serve --docs=examples/docs --port=0 --no-open --threads=1 >"$tmp/out" 2>"$tmp/err" &
    local served=$! i
    for ((i = 0; i < 1200; i++)); do
        grep -q 'http://127.0.0.1' "$tmp/out" "$tmp/err" && break
        kill -0 "$served" 2>/dev/null || break
        sleep 0.05
    done
    kill -INT "$served" 2>/dev/null
    wait "$served"
    grep -q 'http://127.0.0.1' "$tmp/out" "$tmp/err" || fail "$(cat "$tmp/out" "$tmp/err")"
}

# Below a folder of the test's own, so without sudo.
what_is_installed_compiles_the_first_program() {
    make -s B="$B" "${built_with[@]}" PREFIX="$tmp/usr" install >"$tmp/log" 2>&1 || fail "$(tail -3 "$tmp/log")" || return
    cd "$tmp" || return
    export PKG_CONFIG_PATH=$tmp/usr/lib/pkgconfig LD_LIBRARY_PATH=$tmp/usr/lib
    # shellcheck disable=SC2046,SC2086  # words of flags
    "$CC" $san "$tree/examples/hello.c" $(pkg-config --cflags --libs tessera) -o hello 2>"$tmp/err" || fail "$(cat "$tmp/err")" || return
    ./hello >"$tmp/out" 2>&1 || fail "$(cat "$tmp/out")"
}

run every_command_is_run_or_has_a_reason
run quickstarts_are_short
run the_engines_settings_are_those_of_a_connector
run setup_says_what_it_would_install
run make_builds
run make_says_what_is_missing_before_it_builds
run an_installation_for_all_is_told_to_the_linker
run an_installation_with_sudo_has_the_model
run ask_answers
run serve_starts
run what_is_installed_compiles_the_first_program
test_end
