#!/usr/bin/env bash
# What tessera ask says about the cost of an answer.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/ask_kit.sh"

an_answer_comes_and_then_lines_about_its_cost() {
    ask_init llama || return
    ask --doc="$tmp/docs/a.md" 'why'
    exits 0 || return
    [ -n "$out" ] || fail 'no answer' || return
    local line
    read -r line < <(grep '^first token' <<<"$err")
    [[ $line == 'first token after '*' s; exactly the answer of a full read'* ]] || fail "$err" || return
    [[ $err == *$'\n'*' tokens: 0 reused, 0 recomputed, '*' new'* ]] || fail "$err"
}

# The number before a word of the second line.
told() { sed -nE "s/^[0-9]+ tokens:.*[ :]([0-9]+) $1.*/\1/p; s/^([0-9]+) $1:.*/\1/p" <<<"$err"; }

the_line_tells_what_was_recomputed_when_something_was_filled() {
    ask_init llama || return
    needs_python || return
    letters 300 c >"$tmp/c.txt"
    ask --disk_path="$tmp/one" --docs="$tmp/docs" 'why'
    cp -r "$tmp/one" "$tmp/two"
    # Two documents are known, the third one is not: less unknown than known text is filled.
    local flags=(--doc="$tmp/docs/b.txt" --doc="$tmp/docs/a.md" --doc="$tmp/c.txt" --ratio=0.2)
    ask --json --disk_path="$tmp/one" "${flags[@]}" 'how'
    exits 0 || return
    local recomputed
    recomputed=$(count recomputed)
    [ "$(count filled)" -gt 250 ] && [ "$recomputed" -gt 20 ] || fail "$out" || return
    is "$(json 'x["first"]')" False || return
    ask --disk_path="$tmp/two" "${flags[@]}" 'how'
    is "$(told recomputed)" "$recomputed" || return
    is $(($(told reused) + $(told recomputed) + $(told new))) "$(told tokens)" || return
    # Of the documents that were known, all but what was computed again was reused.
    [ "$(told reused)" -gt 500 ] || fail "$err"
}

how_much_faster_is_guessed_from_a_full_read_before() {
    ask_init llama || return
    needs_python || return
    ask --json --docs="$tmp/docs" 'why'
    # Nothing was read before: nothing is said.
    is "$(json '[x["full_estimate_s"], x["speedup"]]')" '[None, None]' || return
    ask --json --doc="$tmp/docs/b.txt" --doc="$tmp/docs/a.md" 'why'
    is "$(json 'x["full_estimate_s"] > 0 and x["speedup"] > 0')" True || return
    # Documents that were stored ahead tell it too.
    "$tessera" ingest --model="$model" --threads=1 --disk_path="$tmp/new" "$tmp/docs" >"$tmp/out" 2>&1
    ask --disk_path="$tmp/new" --doc="$tmp/docs/b.txt" --doc="$tmp/docs/a.md" 'why'
    [[ $err == *'faster than a full read (estimated); same answer as a full read: not calibrated'* ]] ||
        fail "$err"
}

run an_answer_comes_and_then_lines_about_its_cost
run the_line_tells_what_was_recomputed_when_something_was_filled
run how_much_faster_is_guessed_from_a_full_read_before
test_end
