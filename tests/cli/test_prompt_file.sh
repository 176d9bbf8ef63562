#!/usr/bin/env bash
# The files that tessera inspect reads: texts become tokens, and a mistake is named with its place.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"

texts_are_cut_at_words() {
    local words
    words=$(for i in $(seq 50); do printf 'word%d is one, ' "$i"; done)
    printf '{"documents":["%s"],"prompt":"Before: %s And after?"}\n' "$words" "$words" \
        >"$tmp/prompt"
    t inspect "$tmp/prompt"
    # Each has word, is, one, a comma and the space before the next; but that belongs to a word.
    exits 0 && says "Before:" && says "[1:" && says 'match ' || return
    [[ $out == *"word25 is one, word26 is one"* ]] || fail "$out"
}

escapes_are_read_and_controls_are_not_printed() {
    local words
    words=$(for i in $(seq 40); do printf 'w%d ' "$i"; done)
    printf '{"documents":["%s"],"prompt":"\\u00e4\\ud83d\\ude00\\n\\"\\\\\\/ \\u001b[31m\\u009b %s"}' \
        "$words" "$words" >"$tmp/prompt"
    t inspect "$tmp/prompt"
    exits 0 && says $'\u00e4\U0001f600\n"\\/ ?[31m' || return
    [[ $out != *$'\033'* ]] || fail "an escape sequence is in the output"
}

mistakes_are_named_with_their_place() {
    check() {
        printf '%s' "$1" >"$tmp/prompt"
        t inspect "$tmp/prompt"
        exits 1 && complains "$tmp/prompt$2"
    }
    check '' ':1:0: ' || return
    check '{"prompt":[1,2' ":1:14: ']' expected near end of file" || return
    check '{"prompt":[01]}' ':1:12: ' || return
    check '{"prompt":[1],"prompt":[1]}' ':1:22: duplicate object key' || return
    check '{"prompt":"a' ':1:12: premature end of input' || return
    check '{"prompt":"\x"}' ':1:13: invalid escape' || return
    check '{"prompt":"\ud800"}' ':1:18: invalid Unicode' || return
    check '{"prompt":"\udc00"}' ':1:18: invalid Unicode' || return
    check $'{"documents":[],\n"prompt":[1]} x' ':2:15: end of file expected' || return
    check $'{"prompt":"\xff"}' ':1:11: unable to decode byte 0xff' || return
    check $'{"prompt":"\xc0\x80"}' ':1:11: unable to decode byte 0xc0' || return
    check $'{"prompt":"\xe2\x82' ':1:11: unable to decode byte 0xe2' || return
    check '[1]' ':1: expected a JSON object' || return
    check '{"prompt":[1.5]}' ': prompt: token 0: expected a whole number up to 4294967295' || return
    check '{"prompt":[1,4294967296]}' ': prompt: token 1: expected a whole number' || return
    check '{"prompt":7}' ': prompt: expected a string or a list of tokens' || return
    check '{"documents":[],"promt":[1]}' ': unknown member "promt": must be documents, system or prompt' || return
    check '{"documents":{},"prompt":[1]}' ': documents: expected a list' || return
    check '{"documents":[[]],"prompt":[1]}' ': documents[0]: an empty document' || return
    check '{"documents":["a"]}' ': no prompt' || return
    check '{"documents":[{"x":1}],"prompt":[1]}' ': documents[0]: unknown member "x": must be text, kind or behind' || return
    check '{"documents":["a",7],"prompt":[1]}' ': documents[1]: expected a string or a list of tokens' || return
    check '{"documents":[{"kind":"prefix"}],"prompt":[1]}' ': documents[0]: an empty document' || return
    check '{"documents":[{"kind":"x"}],"prompt":[1]}' ': documents[0]: kind: expected "segment" or "prefix"' || return
    check '{"documents":[{"text":[1],"kind":"prefix","behind":[2]}],"prompt":[1]}' \
        ': documents[0]: a prefix cannot have "behind"' || return
    check '{"prompt":["a",[1]]}' ': prompt[1]: cannot mix strings and tokens' || return
    check '{"prompt":[[1],[]]}' ': prompt[1]: an empty part' || return
    check '{"system":{},"prompt":[1]}' ': system: expected a string or a list of tokens' || return
    check '{"system":"a","prompt":[1]}' ': cannot mix strings and tokens' || return
    t inspect "$tmp/none"
    exits 1 && complains "$tmp/none: No such file" || return
    t inspect
    exits 2
}

a_file_that_is_too_large_is_refused() {
    { printf '{"prompt":"' && head -c 65M /dev/zero | tr '\0' x && printf '"}'; } >"$tmp/prompt"
    t inspect "$tmp/prompt"
    exits 1 && complains "$tmp/prompt:1: more than 67108864 bytes"
}

run texts_are_cut_at_words
run escapes_are_read_and_controls_are_not_printed
run mistakes_are_named_with_their_place
run a_file_that_is_too_large_is_refused
test_end
