#!/usr/bin/env bash
# The model and the store that tessera ask finds by itself.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/ask_kit.sh"

the_model_of_the_environment_is_used() {
    ask_init llama || return
    TESSERA_MODEL=$model t ask --threads=1 --max=4 'why'
    exits 0 || return
    TESSERA_MODEL=$tmp/none.gguf t ask --threads=1 'why'
    exits 1 && complains 'none.gguf: No such file'
}

the_best_installed_model_is_used_and_the_fallback_is_said() {
    ask_init llama || return
    local small=$tmp/deps/models/SmolLM2-135M-Instruct.Q4_1.gguf
    local large=$tmp/deps/models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
    mkdir -p "$tmp/deps/models"
    cp "$model" "$small"
    t ask --threads=1 --max=4 'why'
    exits 0 || return
    [ "$(grep -c 'using SmolLM2-135M.*tools/setup --model' <<<"$err")" -eq 1 ] || fail "$err" || return
    t doctor --host_size=1M
    grep -A 1 "^warn  ask model      $small; installed: 135m" <<<"$out" | grep -q 'often wrong' || fail "$out" || return
    cp "$model" "$large"
    t ask --threads=1 --max=4 'why'
    exits 0 || return
    [[ $err != *SmolLM2* ]] || fail "$err" || return
    t doctor --host_size=1M
    says "ok    ask model      $large; installed: 0.5b, 135m" || return
    # Asked for by name, there is nothing to say about it.
    t ask --threads=1 --max=4 --model=135M 'why'
    exits 0 || return
    [[ $err != *SmolLM2* ]] || fail "$err" || return
    t ask --model=1.5b 'why'
    # shellcheck disable=SC2016  # a command in a message
    exits 1 && complains 'no model is installed as 1.5b: run `tools/setup --model=1.5b`'
}

a_shipped_profile_without_measurements_does_not_count_as_measured() {
    ask_init llama || return
    needs_python || return
    local space
    ask --stats --doc="$tmp/docs/a.md" 'why'
    exits 0 && [[ $err == *'profile      none'* ]] || fail "$err" || return
    t ls --json "$tmp/deps/store"
    space=$(json 'x["entries"][0]["space"]')
    echo 'ratio: 0.2' >"$tmp/deps/store/$space.yaml"
    ask --stats --doc="$tmp/docs/a.md" 'why'
    exits 0 && [[ $err == *'profile      none'* ]] || fail "$err" || return
    ask --stats --profile="$tmp/deps/store/$space.yaml" --doc="$tmp/docs/a.md" 'why'
    exits 0 || return
    [[ $err == *'profile      measured'* ]] || fail "$err"
}

a_model_that_was_not_measured_gets_the_safe_profile() {
    ask_init llama || return
    needs_python || return
    # A program of its own, with a primer that fits the test model.
    mkdir -p "$tmp/own/bin" "$tmp/own/share/tessera/profiles"
    ln -s "$(realpath "$(dirname "$tessera")/../lib")" "$tmp/own/lib"
    cp "$tessera" "$tmp/own/bin/tessera"
    { cat profiles/safe.yaml; echo "primer: 'Some text.'"; } >"$tmp/own/share/tessera/profiles/safe.yaml"
    local tessera=$tmp/own/bin/tessera
    ask --doc="$tmp/docs/a.md" 'why'
    exits 0 || return
    ask --stats --doc="$tmp/docs/a.md" 'why'
    exits 0 && [[ $err == *'profile      none; selector'* ]] || fail "$err" || return
    ask --json --doc="$tmp/docs/a.md" 'why'
    exits 0 || return
    [ "$(json 'x["ratio"]')" = 0.25 ] || fail "$out" || return
    rm "$tmp/own/share/tessera/profiles/safe.yaml"
    ask --json --doc="$tmp/docs/a.md" 'why'
    exits 0 || return
    [ "$(json 'x["ratio"]')" = 0.15 ] || fail "$out"
}

the_store_is_in_the_cache_folder_unless_named() {
    ask_init llama || return
    ask --doc="$tmp/docs/a.md" 'why'
    [ -d "$tmp/deps/store" ] || fail 'no store' || return
    ask --disk_path="$tmp/elsewhere" --doc="$tmp/docs/a.md" 'why'
    exits 0 || return
    [ -d "$tmp/elsewhere" ] || fail 'no store where it was wanted'
}

converted_weights_are_another_model_to_the_store() {
    ask_init llama || return
    needs_python || return
    ask --json --docs="$tmp/docs" 'why'
    ask --json --docs="$tmp/docs" --weights=q8_0 'why'
    exits 0 || return
    is "$(json 'sum(x["tiers"])')" 0
}

a_profile_that_cannot_be_read_is_an_error() {
    ask_init llama || return
    echo 'ratio: many' >"$tmp/p.yaml"
    ask --profile="$tmp/p.yaml" 'why'
    exits 1 && complains 'p.yaml'
}

two_processes_share_one_store() {
    ask_init llama || return
    needs_python || return
    needs_shared_memory
    mkfifo "$tmp/questions"
    # The first one stays, with the store open and the documents of its first question stored.
    "$tessera" ask --model="$model" --threads=1 --max=4 --docs="$tmp/docs" --chat="$tmp/questions" \
        >"$tmp/first" 2>"$tmp/first_err" &
    local first=$! i
    exec 7>"$tmp/questions"
    echo why >&7
    for ((i = 0; i < 200; i++)); do
        grep -q 'tokens:' "$tmp/first_err" && break
        sleep 0.1
    done
    ask --json --docs="$tmp/docs" 'why'
    exits 0 || return
    [[ $err == *'sharing the store with the process that has it open'* ]] || fail "$err" || return
    # It has stored the documents through the first one, and finds them there.
    ask --json --docs="$tmp/docs" 'why'
    is "$(json 'sum(x["tiers"]) > 300')" True || return
    exec 7>&-
    wait "$first"
    # What was stored outlives both.
    ask --json --docs="$tmp/docs" 'why'
    [[ $err != *sharing* ]] || fail "$err" || return
    is "$(json 'sum(x["tiers"]) > 300')" True
}

run the_model_of_the_environment_is_used
run the_best_installed_model_is_used_and_the_fallback_is_said
run a_shipped_profile_without_measurements_does_not_count_as_measured
run a_model_that_was_not_measured_gets_the_safe_profile
run the_store_is_in_the_cache_folder_unless_named
run converted_weights_are_another_model_to_the_store
run a_profile_that_cannot_be_read_is_an_error
run two_processes_share_one_store
test_end
