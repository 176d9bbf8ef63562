#!/usr/bin/env bash
# bench/quality/facts.py: our own factual questions.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"

facts() { PYTHONDONTWRITEBYTECODE=1 python3 "$(dirname "$0")/../../bench/quality/facts.py" "$@"; }

every_run_gives_the_same_questions() {
    facts >"$tmp/all" && facts | cmp - "$tmp/all" && [ "$(wc -l <"$tmp/all")" -ge 480 ]
}

the_halves_are_the_whole_and_share_nothing() {
    facts >"$tmp/all"
    facts --half tune >"$tmp/tune"
    facts --half test >"$tmp/test"
    [ "$(wc -l <"$tmp/test")" -ge 200 ] &&
        sort "$tmp/tune" "$tmp/test" | cmp - <(sort "$tmp/all")
}

one_document_has_the_answer_and_another_is_of_its_kind() {
    facts >"$tmp/all"
    PYTHONDONTWRITEBYTECODE=1 python3 - "$(dirname "$0")/../../bench/quality" "$tmp/all" <<'END'
import collections, json, sys
sys.path.insert(0, sys.argv[1])
import facts
kinds = collections.Counter()
for line in open(sys.argv[2]):
    q = json.loads(line)
    kinds[q["id"].rsplit("-", 1)[0]] += 1
    assert 4 <= len(q["documents"]) <= 10, q["id"]
    assert sum(facts.holds(d, q["answers"][:1]) for d in q["documents"]) == 1, q["id"]
    assert not facts.holds(q["question"], q["answers"]), q["id"]
assert len(kinds) >= 25, kinds
END
}

run every_run_gives_the_same_questions
run the_halves_are_the_whole_and_share_nothing
run one_document_has_the_answer_and_another_is_of_its_kind
test_end
