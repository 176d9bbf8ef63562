#!/usr/bin/env bash
# What a build or a machine may lack, as version and doctor tell it.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"

what_a_build_may_lack_is_there_with_its_version() {
    local name
    t version
    for name in liburing hiredis libcurl expat ggml; do
        grep -qE "^  $name +([0-9]+\.[0-9]+|not (in this build|found): .)" <<<"$out" ||
            fail "$name is missing: $out" || return
    done
    ! pkg-config --exists hiredis 2>/dev/null ||
        grep -qE "^  hiredis +$(pkg-config --modversion hiredis)" <<<"$out" || fail "$out" || return
    [ ! -e "$B/lib/libtessera-model.so" ] || grep -qE '^  ggml +[0-9]+\.[0-9]+' <<<"$out" || fail "$out"
}

the_model_and_the_store_of_ask_are_named() {
    needs_python || return
    export TESSERA_DEPS_DIR=$tmp/deps
    t version
    exits 0 && is_silent && says "model     none: $tmp/deps/models/" && says "store     $tmp/deps/store" || return
    : >"$tmp/x.gguf"
    export TESSERA_MODEL=$tmp/x.gguf
    t version --json --disk_path="$tmp/elsewhere"
    exits 0 && is "$(json 'x["model"]')" "$tmp/x.gguf" && is "$(json 'x["store"]')" "$tmp/elsewhere" || return
    t version --disk_enabled=false
    says 'store     none: disk_enabled is false' || return
    # It is what a bug report needs, so it works with any configuration.
    TESSERA_HOST_SIZE=lots t version
    exits 0 && is_silent && says 'store     not known: the configuration is invalid'
}

libraries_and_what_ask_uses_are_looked_at() {
    needs_python || return
    local name
    export TESSERA_DEPS_DIR=$tmp/deps
    t doctor --host_size=1M --json
    exits 0 || return
    for name in liburing hiredis libcurl expat ggml 'ask model' 'ask store'; do
        is "$(json "sum(c['name'] == '$name' and len(c['found']) > 2 for c in x['checks'])")" 1 || return
    done
    t doctor --host_size=1M
    grep -A 1 '^warn  ask model ' <<<"$out" | grep -q -- '-> .*tools/setup --model' || fail "$out" || return
    grep -q "^ok    ask store      $tmp/deps/store, not created yet" <<<"$out" || fail "$out" || return
    mkdir -p "$tmp/deps/store" && chmod 755 "$tmp/deps/store"
    t doctor --host_size=1M
    grep -q "^warn  ask store .* is open to other users" <<<"$out" || fail "$out" || return
    chmod 700 "$tmp/deps/store"
    : >"$tmp/x.gguf"
    TESSERA_MODEL=$tmp/x.gguf t doctor --host_size=1M
    says "ok    ask model      $tmp/x.gguf" && says "ok    ask store      $tmp/deps/store"
}

run what_a_build_may_lack_is_there_with_its_version
run the_model_and_the_store_of_ask_are_named
run libraries_and_what_ask_uses_are_looked_at
test_end
