#!/usr/bin/env bash
# tessera config show, check, doc.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"

show_lists_options_with_value_and_origin() {
    t config show
    exits 0 && is_silent || return
    [[ $(head -n 1 <<<"$out") == option*value*origin*meaning ]] || fail "heading: $out" || return
    grep -qE '^host_size +1G +default +[a-z]' <<<"$out" || fail "host_size: $out"
}

flags_stand_before_environment_before_file() {
    printf 'host_size: 2G\nchunk_size: 128\nio_threads: 3\n' >"$tmp/t.yaml"
    export TESSERA_CHUNK_SIZE=64 TESSERA_IO_THREADS=5
    t config show --config="$tmp/t.yaml" --io_threads=7
    exits 0 || return
    grep -qE '^host_size +2G +.*t\.yaml:1' <<<"$out" || fail "file: $out" || return
    grep -qE '^chunk_size +64 +env ' <<<"$out" || fail "environment: $out" || return
    grep -qE '^io_threads +7 +flag ' <<<"$out" || fail "flag: $out" || return
    grep -qE '^policy +[a-z0-9]+ +default ' <<<"$out" || fail "default: $out"
}

a_file_given_by_flag_replaces_the_one_of_the_environment() {
    echo 'host_size: 2G' >"$tmp/a.yaml"
    echo 'chunk_size: 128' >"$tmp/b.yaml"
    TESSERA_CONFIG_FILE=$tmp/a.yaml t config show --config "$tmp/b.yaml"
    grep -qE '^host_size +1G +default' <<<"$out" || fail "host_size: $out" || return
    grep -qE '^chunk_size +128 ' <<<"$out" || fail "chunk_size: $out"
}

show_takes_names_and_refuses_unknown_ones() {
    t config show host_size chunk_size
    exits 0 && is "$(wc -l <<<"$out")" 3 || return
    t config show host_sizes
    exits 2 && complains "unknown option 'host_sizes'"
}

show_json_is_json_whatever_the_values_hold() {
    needs_python || return
    t config show --json --separator=$' \t"##"\\ \xff'
    exits 0 || return
    [ "$(json 'x["host_size"]["value"]')" = 1G ] || fail "host_size: $out" || return
    [ "$(json 'x["host_size"]["origin"]')" = default ] || fail "origin: $out" || return
    [ "$(json 'x["separator"]["value"] == " \t\"##\"\\ \ufffd"')" = True ] || fail "$out"
}

check_says_ok_for_a_good_file() {
    echo 'host_size: 2G' >"$tmp/good.yaml"
    t config check "$tmp/good.yaml"
    exits 0 && is "$out" "$tmp/good.yaml: ok" && is_silent
}

check_names_the_place_of_a_mistake() {
    printf 'chunk_size: 128\nhost_siez: 2G\n' >"$tmp/bad.yaml"
    t config check "$tmp/bad.yaml"
    exits 1 && complains "$tmp/bad.yaml:2:" && complains host_size && [ -z "$out" ] || return
    needs_python || return
    t config check --json "$tmp/bad.yaml"
    exits 1 && is "$(json 'x["ok"]')" False || return
    [[ $(json 'x["error"]') == *bad.yaml:2:* ]] || fail "$out"
}

check_warns_of_keys_that_are_ignored() {
    printf 'enable_chunk_cache: true\nenable_p2p: true\nextra_config: {mine: 1}\n' >"$tmp/keys.yaml"
    t config check "$tmp/keys.yaml"
    exits 0 && is_silent || return
    is "$(grep -c '^warning: ' <<<"$out")" 2 && says 'enable_p2p (LMCache): ignored: ' || return
    says 'extra_config: mine: ignored: unknown' && says "$tmp/keys.yaml: ok" || return
    needs_python || return
    t config check --json "$tmp/keys.yaml"
    is "$(json 'len(x["warnings"])')" 2 || return
    echo 'enable_p2p: false' >"$tmp/keys.yaml"
    t config check --json "$tmp/keys.yaml"
    is "$(json 'x["warnings"]')" '[]'
}

check_reads_the_file_alone() {
    echo 'host_size: 2G' >"$tmp/good.yaml"
    TESSERA_CHUNK_SIZE=nonsense t config check "$tmp/good.yaml"
    exits 0 || return
    t config check "$tmp/none.yaml"
    exits 1 && complains none.yaml
}

a_bad_environment_is_reported_where_it_counts() {
    TESSERA_CHUNK_SIZE=nonsense t config show
    exits 1 && complains TESSERA_CHUNK_SIZE || return
    TESSERA_CHUNK_SIZE=nonsense t version
    exits 0
}

doc_describes_every_option_in_both_forms() {
    local name names
    t config show
    names=$(tail -n +2 <<<"$out" | awk '{print $1}')
    [ "$(wc -l <<<"$names")" -gt 10 ] || fail "names: $names" || return
    t config doc
    exits 0 && is_silent || return
    for name in $names; do says "$name" || return; done
    t config doc --man
    exits 0 || return
    for name in $names; do says "$name" || return; done
    command -v mandoc >/dev/null || return 0
    mandoc -T lint -W warning >"$tmp/lint" 2>&1 <<<"$out" || fail "$(cat "$tmp/lint")"
}

run show_lists_options_with_value_and_origin
run flags_stand_before_environment_before_file
run a_file_given_by_flag_replaces_the_one_of_the_environment
run show_takes_names_and_refuses_unknown_ones
run show_json_is_json_whatever_the_values_hold
run check_says_ok_for_a_good_file
run check_names_the_place_of_a_mistake
run check_warns_of_keys_that_are_ignored
run check_reads_the_file_alone
run a_bad_environment_is_reported_where_it_counts
run doc_describes_every_option_in_both_forms
test_end
