#!/usr/bin/env bash
# The page of `tessera serve` in a browser, over a server that is made up: what it shows, by keyboard,
# dark and light, narrow and wide, and what it does when answers are stopped, refused or cut off.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"

look() {
    command -v chromium chromium-browser google-chrome >/dev/null || { skip "no chromium here"; return; }
    timeout 900 python3 tests/serve/page_check.py "$@" 2>"$tmp/err" || fail "$(tail -3 "$tmp/err")"
}

it_shows_answers_passages_and_cost_as_text() { look chat; }
it_says_where_no_document_was_found_and_why_none_was_reused() { look why; }
code_and_bold_are_shown_and_their_text_is_no_markup() { look markdown; }
a_chat_is_kept_until_a_new_one_begins() { look kept; }
nothing_is_cut_off_and_only_the_chat_scrolls() { look room; }
borders_bars_and_text_have_contrast() { look colours; }
it_compares_with_a_full_read() { look compare; }
it_tells_what_is_read_and_how_long_that_takes() { look reading; }
an_answer_can_be_stopped() { look stop; }
it_takes_its_token_from_the_address_or_asks() { look token; }
what_was_written_stays_when_the_server_is_gone() { look gone; }

without_documents_it_says_so() { look bare; }

nothing_is_inline_and_nothing_becomes_markup() {
    ! grep -nE '<script>|<style| style=| on[a-z]+=' src/serve/page.html || fail 'inline in page.html' || return
    ! grep -nE 'innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function' src/serve/page.js ||
        fail 'markup in page.js'
}

run it_shows_answers_passages_and_cost_as_text
run it_says_where_no_document_was_found_and_why_none_was_reused
run code_and_bold_are_shown_and_their_text_is_no_markup
run a_chat_is_kept_until_a_new_one_begins
run nothing_is_cut_off_and_only_the_chat_scrolls
run borders_bars_and_text_have_contrast
run it_compares_with_a_full_read
run it_tells_what_is_read_and_how_long_that_takes
run an_answer_can_be_stopped
run it_takes_its_token_from_the_address_or_asks
run what_was_written_stays_when_the_server_is_gone
run without_documents_it_says_so
run nothing_is_inline_and_nothing_becomes_markup
test_end
