#!/usr/bin/env bash
# tessera inspect: what is printed is what the cache behind it matched.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/tessera.sh"

# Numbers from $1 on, $2 of them, separated by commas.
numbers() { seq -s, "$1" $(($1 + $2 - 1)); }

# A document of 200 tokens that is whole in the prompt, one with a token changed, one that is absent.
three_documents() {
    printf '{"documents":[[%s],[%s],[%s]],"prompt":[1,2,3,%s,7,%s,8,%s]}\n' "$(numbers 1000 200)" \
        "$(numbers 2000 300)" "$(numbers 3000 100)" "$(numbers 1000 200)" "$(numbers 2000 100)" \
        "$(numbers 2101 199)" >"$tmp/prompt"
}

matches_are_named_with_their_places() {
    three_documents
    t inspect "$tmp/prompt"
    exits 0 && is_silent || return
    says 'prompt: 504 tokens, 499 found (99.0 %)' || return
    says 'document 1: 200 tokens, match full' && says 'document 2: 300 tokens, match partial, 299 tokens' &&
        says 'document 3: 100 tokens, match none' || return
    grep -qE '^ *200 +3..202 +1 +0..199 of 200 +full +anywhere +pure$' <<<"$out" || fail "$out" || return
    grep -qE '^ *100 +204..303 +2 +0..99 of 300 +partial +anywhere +pure$' <<<"$out" || fail "$out" || return
    grep -qE '^ *199 +305..503 +2 +101..299 of 300 +partial +anywhere +pure$' <<<"$out" || fail "$out"
}

# A document of 60 tokens with its tokens 20 and 40 changed.
short_runs_are_found_around_edits() {
    printf '{"documents":[[%s]],"prompt":[1,2,3,%s,7,%s,8,%s,9]}\n' "$(numbers 1000 60)" \
        "$(numbers 1000 20)" "$(numbers 1021 19)" "$(numbers 1041 19)" >"$tmp/prompt"
    t inspect "$tmp/prompt"
    exits 0 && says 'document 1: 60 tokens, match partial, 58 tokens' || return
    grep -qE '^ *19 +24..42 +1 +21..39 of 60 +partial +edits +pure$' <<<"$out" || fail "$out" || return
    t inspect --partial=runs "$tmp/prompt"
    exits 0 && says 'document 1: 60 tokens, match none' && says ' 0 found'
}

json_has_the_same() {
    needs_python || return
    three_documents
    t inspect --json "$tmp/prompt"
    exits 0 && is "$(json 'x["tokens"], x["found"]')" '(504, 499)' || return
    is "$(json '[(m["offset"], m["tokens"], m["document"], m["document_offset"], m["coverage"])
        for m in x["matches"]]')" \
        "[(3, 200, 1, 0, 'full'), (204, 100, 2, 0, 'partial'), (305, 199, 2, 101, 'partial')]" ||
        return
    is "$(json '[(d["document"], d["tokens"], d["found"], d["match"]) for d in x["documents"]]')" \
        "[(1, 200, 200, 'full'), (2, 300, 299, 'partial'), (3, 100, 0, 'none')]"
}

the_prompt_is_shown_with_what_was_found_in_it() {
    three_documents
    t inspect "$tmp/prompt"
    says "1 2 3 [1: $(seq -s' ' 1000 1199)] 7 [2: $(seq -s' ' 2000 2099)] 8 [2: 2101"
}

a_terminal_gets_colours() {
    command -v script >/dev/null || skip 'no script(1) to make a terminal' || return
    three_documents
    out=$(TERM=xterm NO_COLOR='' script -qec "env -u NO_COLOR '$tessera' inspect '$tmp/prompt'" \
        /dev/null </dev/null)
    status=$?
    exits 0 && says $'\033[32m1000 1001' && says $'\033[36m2000 2001' || return
    out=$(TERM=xterm script -qec "NO_COLOR=1 '$tessera' inspect '$tmp/prompt'" /dev/null </dev/null)
    [[ $out != *$'\033'* ]] || fail 'colours in spite of NO_COLOR'
}

# A prefix, a segment behind the prompt's system prompt and one behind another, a pure one.
every_way() {
    local system other
    system=$(numbers 100 64) other=$(numbers 500 64)
    printf '{"system":[%s],"documents":[{"text":[%s,%s],"kind":"prefix"},
        {"text":[%s],"behind":[%s]},{"text":[%s],"behind":[%s],"kind":"segment"},[%s]],
        "prompt":[[%s],[%s],[%s],[%s],[9,8,7]]}\n' "$system" "$system" "$(numbers 1000 96)" \
        "$(numbers 2000 200)" "$system" "$(numbers 3000 200)" "$other" "$(numbers 4000 200)" \
        "$(numbers 1000 96)" "$(numbers 4000 200)" "$(numbers 3000 200)" "$(numbers 2000 200)" \
        >"$tmp/prompt"
}

each_match_tells_how_it_was_found_and_what_it_saw() {
    every_way
    t inspect --chunk_size=64 "$tmp/prompt"
    exits 0 && is_silent || return
    local row
    for row in '64 +0..63 +1 +0..63 of 160 +full +prefix +same' \
        '64 +64..127 +1 +64..127 of 160 +full +prefix +same' \
        '200 +160..359 +4 +0..199 of 200 +full +segment +pure' \
        '200 +360..559 +3 +0..199 of 200 +full +anywhere +other' \
        '200 +560..759 +2 +0..199 of 200 +full +segment +same'; do
        grep -qE "^ *$row\$" <<<"$out" || fail "no row $row: $out" || return
    done
    says 'document 1: 160 tokens, match partial' || return
    says '200 of them were computed after other text' && says 'prompt: 763 tokens, 728 found'
}

json_has_ways_and_contexts() {
    needs_python || return
    every_way
    t inspect --json --chunk_size=64 "$tmp/prompt"
    exits 0 || return
    is "$(json '[(m["document"], m["way"], m["context"]) for m in x["matches"]]')" \
        "[(1, 'prefix', 'same'), (1, 'prefix', 'same'), (4, 'segment', 'pure'), (3, 'anywhere', 'other'), (2, 'segment', 'same')]" ||
        return
    is "$(json 'x["found_behind_other_text"]')" 200
}

copies_of_a_document_are_all_found() {
    printf '{"documents":[[%s]],"prompt":[%s,1,%s,2,%s]}\n' "$(numbers 1000 100)" \
        "$(numbers 1000 100)" "$(numbers 1000 100)" "$(numbers 1000 100)" >"$tmp/prompt"
    t inspect "$tmp/prompt"
    exits 0 && says 'prompt: 302 tokens, 300 found' && says '0..99 ' && says '101..200' &&
        says '202..301'
}

nothing_found_is_no_failure() {
    printf '{"prompt":[1,2,3]}' >"$tmp/prompt"
    t inspect "$tmp/prompt"
    exits 0 && is_silent && says 'prompt: 3 tokens, 0 found (0.0 %)'
}

documents_that_do_not_fit_are_named() {
    printf '{"documents":[[%s]],"prompt":[1]}' "$(numbers 1 200000)" >"$tmp/prompt"
    t inspect --host_size=1M "$tmp/prompt"
    exits 1 && complains 'document 1: '
}

run matches_are_named_with_their_places
run short_runs_are_found_around_edits
run json_has_the_same
run the_prompt_is_shown_with_what_was_found_in_it
run a_terminal_gets_colours
run each_match_tells_how_it_was_found_and_what_it_saw
run json_has_ways_and_contexts
run copies_of_a_document_are_all_found
run nothing_found_is_no_failure
run documents_that_do_not_fit_are_named
test_end
