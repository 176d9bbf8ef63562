#!/usr/bin/env bash
# tessera version.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"

version=$(cat VERSION)

the_number_is_the_one_of_the_file_VERSION() {
    t --version
    exits 0 && is "$out" "$version" || return
    t version
    exits 0 && is "$(head -n 1 <<<"$out")" "tessera $version"
}

compiler_and_libraries_are_named() {
    local name
    t version
    for name in compiler libyaml xxhash jansson sqlite openssl cpu policies digests; do
        grep -qE "^  $name +[^ ]" <<<"$out" || fail "$name is missing: $out" || return
    done
}

json_has_the_same() {
    needs_python || return
    t version --json
    exits 0 && is "$(json 'x["version"]')" "$version" || return
    [[ $(json 'x["xxhash"]') =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "$out"
}

run the_number_is_the_one_of_the_file_VERSION
run compiler_and_libraries_are_named
run json_has_the_same
test_end
