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
        exits 1 && complains "$tmp/prompt:$2"
    }
    check '' '1:1: '"'{'" || return
    check '{"prompt":[1,2' "1:15: ',' or ']' expected" || return
    check '{"prompt":[1,' '1:14: a token expected' || return
    check '{"prompt":[01]}' '1:12: a token expected' || return
    check '{"prompt":[1.5]}' '1:12: a whole number expected' || return
    check '{"prompt":[4294967296]}' '1:12: a token above' || return
    check $'{"documents":[],\n "promt":[1]}' '2:2: "documents", "system" or "prompt" expected' || return
    check '{"documents":[[]],"prompt":[1]}' '1:17: an empty document' || return
    check '{"documents":["a"]}' '1:20: there is no prompt' || return
    check '{"prompt":[1],"prompt":[1]}' '1:24: given twice' || return
    check '{"prompt":"a' '1:13: the end of the string expected' || return
    check '{"prompt":"\x"}' '1:13: an escape expected' || return
    check '{"prompt":"\ud800"}' '1:18: the second half' || return
    check '{"prompt":"\udc00"}' '1:18: the first half' || return
    check '{"prompt":[1]} x' '1:16: the end of the file' || return
    check '{"documents":[{}],"prompt":[1]}' '1:16: "text", "kind" or "behind" expected' || return
    check '{"documents":[7],"prompt":[1]}' '1:16: a string or a list of tokens expected' || return
    check '{"documents":[{"kind":"prefix"}],"prompt":[1]}' '1:32: an empty document' || return
    check '{"documents":[{"kind":"x"}],"prompt":[1]}' '1:23: "segment" or "prefix"' || return
    check '{"documents":[{"text":[1],"kind":"prefix","behind":[2]}],"prompt":[1]}' \
        '1:56: a prefix stands behind nothing' || return
    check '{"prompt":["a",[1]]}' '1:19: strings and tokens in one prompt' || return
    check '{"prompt":[[1],[]]}' '1:18: an empty part' || return
    check '{"system":"a","prompt":[1]}' '1:28: strings and tokens' || return
    check $'{"prompt":"\xff"}' '1:12: UTF-8 expected' || return
    check $'{"prompt":"\xc0\x80"}' '1:12: UTF-8 expected' || return
    check $'{"prompt":"\xe2\x82' '1:12: UTF-8 expected' || return
    t inspect "$tmp/none"
    exits 1 && complains "$tmp/none: No such file" || return
    t inspect
    exits 2
}

run texts_are_cut_at_words
run escapes_are_read_and_controls_are_not_printed
run mistakes_are_named_with_their_place
test_end
