#!/usr/bin/env bash
# Documents of tessera ask and ingest: files, standard input, passages.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/../cli/ask_kit.sh"

ingest() { t ingest --model="$model" --threads=1 --json "$@"; }

standard_input_is_a_document() {
    ask_init llama || return
    out=$(letters 300 c | "$tessera" ask --model="$model" --threads=1 --max=4 --doc=- 'why' 2>"$tmp/err") ||
        fail "$(cat "$tmp/err")" || return
    grep -q ' tokens: 0 reused' "$tmp/err" || fail "$(cat "$tmp/err")"
}

html_and_pdf_are_read_as_text() {
    ask_init llama || return
    needs_python || return
    printf '<html><script>%s</script><p>short text</p></html>' "$(letters 2000 c)" >"$tmp/page.html"
    ingest "$tmp/page.html"
    exits 0 || return
    [ "$(json '0 < x["stored"] < 400')" = True ] || fail "$out" || return
    mkdir -p "$tmp/bin"
    printf '#!/bin/sh\necho The balloon leaves at ten.\n' >"$tmp/bin/pdftotext"
    chmod 700 "$tmp/bin/pdftotext"
    printf '%%PDF-1.4\n\377\0' >"$tmp/balloon.pdf"
    PATH=$tmp/bin:$PATH ask --json --doc="$tmp/balloon.pdf" 'when'
    exits 0 || return
    printf '#!/bin/sh\nexit 3\n' >"$tmp/bin/pdftotext"
    PATH=$tmp/bin:$PATH ask --doc="$tmp/balloon.pdf" 'when'
    exits 1 && complains 'balloon.pdf'
}

line_ends_and_blanks_around_do_not_make_another_document() {
    ask_init llama || return
    needs_python || return
    printf 'one two\n\nthree\n' >"$tmp/x.txt"
    ingest "$tmp/x.txt"
    [ "$(json 'x["stored"] > 0')" = True ] || fail "$out" || return
    printf '\357\273\277  one two\r\n\r\nthree\r\n\r\n' >"$tmp/x.txt"
    ingest "$tmp/x.txt"
    is "$(json 'x["stored"]')" 0
}

a_changed_paragraph_costs_its_piece_and_no_more() {
    ask_init llama 65536 || return
    needs_python || return
    local i
    for i in a b c d e f; do
        letters 1500 "$i"
        echo
    done >"$tmp/long.txt"
    ingest "$tmp/long.txt"
    exits 0 || return
    [ "$(json 'x["stored"] > 8000')" = True ] || fail "$out" || return
    { cat "$tmp/long.txt" && letters 300 g; } >"$tmp/longer" && mv "$tmp/longer" "$tmp/long.txt"
    sed -i '$s/[a-m]/x/g' "$tmp/long.txt"
    ingest "$tmp/long.txt"
    [ "$(json '0 < x["stored"] < 4500')" = True ] || fail "$out"
}

run standard_input_is_a_document
run html_and_pdf_are_read_as_text
run line_ends_and_blanks_around_do_not_make_another_document
run a_changed_paragraph_costs_its_piece_and_no_more
test_end
