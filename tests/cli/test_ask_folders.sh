#!/usr/bin/env bash
# Folders of tessera ask and ingest: what is read, and where its text is kept.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/ask_kit.sh"

ingest() { t ingest --model="$model" --threads=1 --json "$@"; }

a_folder_is_read_to_the_bottom_without_hidden_and_binary_files() {
    ask_init llama || return
    needs_python || return
    mkdir -p "$tmp/docs/deep/er" "$tmp/docs/.git"
    letters 50 c >"$tmp/docs/deep/er/c.txt"
    letters 50 d >"$tmp/docs/.hidden.txt"
    letters 50 e >"$tmp/docs/.git/e.txt"
    printf '\0\0' >"$tmp/docs/image.png"
    ln -s /etc/passwd "$tmp/docs/out"
    ingest "$tmp/docs"
    exits 0 || return
    is "$(json 'x["documents"]')" 3 || return
    [[ $err == *'docs/image.png is binary: skipped'* ]] || fail "$err" || return
    [[ $err == *'docs/out is a link that leaves the folder: skipped'* ]] || fail "$err"
}

what_ingest_has_read_is_known_to_ask() {
    ask_init llama || return
    needs_python || return
    ingest "$tmp/docs"
    exits 0 || return
    ask --json --docs="$tmp/docs" 'why'
    exits 0 || return
    is "$(json 'x["first"]')" False || return
    is "$(count filled)" 0
}

html_is_read_as_text() {
    ask_init llama || return
    needs_python || return
    rm "$tmp"/docs/*
    printf '<html><script>%s</script><p>short text</p></html>' "$(letters 2000 c)" >"$tmp/docs/page.html"
    ingest "$tmp/docs"
    exits 0 || return
    [ "$(json 'x["stored"] < 400')" = True ] || fail "$out"
}

the_database_is_beside_the_store_and_of_its_user_alone() {
    ask_init llama || return
    ask --docs="$tmp/docs" 'why'
    exits 0 || return
    local file
    file=$(find "$tmp/deps" -name 'search-*.db')
    [ -f "$file" ] || fail "$(find "$tmp/deps")" || return
    is "$(stat -c %a "$file")" 600
}

nothing_is_kept_with_no_store() {
    ask_init llama || return
    ask --docs="$tmp/docs" --no-store 'why'
    exits 0 || return
    [ -z "$(find "$tmp/deps" -name 'search-*')" ] || fail "$(find "$tmp/deps")"
}

a_database_that_cannot_be_made_is_no_reason_not_to_answer() {
    ask_init llama || return
    ask --docs="$tmp/docs" 'why'
    local file
    file=$(find "$tmp/deps" -name 'search-*.db')
    rm "$file" && mkdir "$file" || return
    ask --docs="$tmp/docs" 'why'
    exits 0 || return
    [[ $err == *'continuing without the index of the documents: '* ]] || fail "$err"
}

what_is_no_folder_is_refused() {
    ask_init llama || return
    ask --docs="$tmp/docs/a.md" 'why' && exits 1 && complains 'a.md: not a folder' || return
    ask --docs="$tmp/none" 'why' && exits 1 && complains 'none: No such file' || return
    mkdir "$tmp/empty"
    ask --docs="$tmp/empty" 'why' && exits 1 && complains 'empty: no documents found'
}

run a_folder_is_read_to_the_bottom_without_hidden_and_binary_files
run what_ingest_has_read_is_known_to_ask
run html_is_read_as_text
run the_database_is_beside_the_store_and_of_its_user_alone
run nothing_is_kept_with_no_store
run a_database_that_cannot_be_made_is_no_reason_not_to_answer
run what_is_no_folder_is_refused
test_end
