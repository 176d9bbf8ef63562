#!/usr/bin/env bash
# tessera inspect --store: the text of a store directory is found as the cache that owns it would.
# shellcheck source=tests/cli/store_kit.sh
. "$(dirname "$0")/store_kit.sh"

# The first entry of a store, from its file (docs/format.md): $n tokens, $tokens, $key.
first_entry() {
    local file
    fill_store || return
    file=$(find "$store" -name '*.seg' | sort | head -n 1)
    n=$(od -An -tu4 -j $((4096 + 64 + 84)) -N 4 "$file" | tr -d ' ')
    key=$(od -An -tx1 -v -j $((4096 + 64)) -N 16 "$file" | tr -d ' \n')
    tokens=$(od -An -tu4 -v -w4 -j $((4096 + 256)) -N $((4 * n)) "$file" | tr -d ' ' | paste -sd,)
}

the_text_of_a_store_is_found_in_it() {
    needs_python || return
    first_entry || return
    printf '{"prompt":[1,2,3,%s,4,5]}' "$(cut -d, -f 21- <<<"$tokens")" >"$tmp/prompt"
    t inspect --store="$store" --json "$tmp/prompt"
    exits 0 && is_silent || return
    is "$(json '[(m["offset"], m["tokens"], m["entry"], m["document_offset"]) for m in x["matches"]]')" \
        "[(3, $((n - 20)), '$key', 20)]" || return
    t inspect --store="$store" "$tmp/prompt"
    exits 0 && says "[${key:0:8}: " && says "entry ${key:0:8}: $n tokens, match partial"
}

a_segment_of_a_store_is_found_by_its_key_and_beside_documents() {
    needs_python || return
    first_entry || return
    printf '{"documents":[[%s]],"prompt":[[%s],[%s],[7]]}' "$(seq -s, 1000 1099)" "$tokens" \
        "$(seq -s, 1000 1099)" >"$tmp/prompt"
    t inspect --store="$store" --json "$tmp/prompt"
    exits 0 || return
    is "$(json '[(m.get("entry"), m.get("document"), m["way"], m["coverage"]) for m in x["matches"]]')" \
        "[('$key', None, 'segment', 'full'), (None, 1, 'segment', 'full')]"
}

a_store_is_only_read() {
    local before
    fill_store || return
    before=$(find "$store" -type f -printf '%p %s %T@\n' | sort)
    printf '{"prompt":[1]}' >"$tmp/prompt"
    t inspect --store="$store" "$tmp/prompt"
    exits 0 && is "$(find "$store" -type f -printf '%p %s %T@\n' | sort)" "$before"
}

mistakes_about_a_store_are_told() {
    fill_store || return
    printf '{"prompt":[1]}' >"$tmp/prompt"
    t inspect --store="$tmp/none" "$tmp/prompt"
    exits 1 && complains "$tmp/none: no such directory" || return
    t inspect --store="$store" --space=zz "$tmp/prompt"
    exits 1 && complains 'has no such space; choose one with --space: ' || return
    t inspect --space=aa "$tmp/prompt"
    exits 2 && complains '--space needs --store'
}

run the_text_of_a_store_is_found_in_it
run a_segment_of_a_store_is_found_by_its_key_and_beside_documents
run a_store_is_only_read
run mistakes_about_a_store_are_told
test_end
