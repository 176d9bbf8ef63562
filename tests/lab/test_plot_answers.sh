#!/usr/bin/env bash
# bench/quality/plot_answers.py: the plot of answers.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"

plot() { PYTHONDONTWRITEBYTECODE=1 python3 "$(dirname "$0")/../../bench/quality/plot_answers.py" "$@"; }

# MODEL SET ID METHOD SECONDS RIGHT, one line a row
table() {
    echo 'model,set,id,method,tokens,computed,recomputed,seconds,exact,f1,right,same_tokens,same_words,says_same,kl,kl_answer,sure,rounds,reasons,answer'
    while read -r model set id method seconds right; do
        echo "$model,$set,$id,$method,100,10,0,$seconds,0,0,$right,1,1,1,0,0,nan,0,0,\"a \"\"b\"\", c\""
    done
}

every_model_and_set_has_a_panel_with_its_methods() {
    needs_python || return
    table <<'END' >"$tmp/a.csv"
one facts 1 prefill 4 1
one facts 1 tessera 1 1
one facts 2 prefill 4 1
one facts 2 tessera 0.5 0
one facts 3 prefill 4 1
one nq-short 1 prefill 4 1
one nq-short 1 tessera 1 1
one nq-short 1 tessera@0.05 1 1
END
    sed 's/^one,/a<b,/' "$tmp/a.csv" >"$tmp/b.csv"
    plot "$tmp/a.csv" "$tmp/b.csv" >"$tmp/a.svg" || fail 'no plot' || return
    python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$tmp/a.svg" || fail 'no XML' || return
    # Two panels of facts without the question that one method lacks, and the median of 4x and 8x.
    is "$(grep -c 'token, 2 questions' "$tmp/a.svg") $(grep -c '>6.0x<' "$tmp/a.svg")" '2 2' || return
    is "$(grep -c 'token, 1 questions' "$tmp/a.svg") $(grep -c '>4.0x<' "$tmp/a.svg")" '2 2' || return
    grep -q 'a&lt;b: right answers' "$tmp/a.svg"
}

times_can_come_from_another_table() {
    needs_python || return
    table <<'END' | sed 's/^\(one,facts,3,tessera,.*\),nan,0,0,/\1,1,1,0,/' >"$tmp/a.csv"
one facts 1 prefill 4 1
one facts 1 tessera 1 1
one facts 2 prefill 4 1
one facts 2 tessera 1 1
one facts 3 prefill 4 1
one facts 3 tessera 9 0
one nq-short 1 prefill 4 1
one nq-short 1 tessera 1 1
END
    table <<'END' | sed 's/^\(one,facts,2,tessera,.*\),nan,0,0,/\1,1,1,0,/' >"$tmp/t.csv"
one facts 1 prefill 30 0
one facts 1 tessera 10 0
one facts 2 prefill 30 0
one facts 2 tessera 60 0
END
    plot --times "$tmp/t.csv" "$tmp/a.csv" >"$tmp/a.svg" || fail 'no plot' || return
    # Two of three are accepted, so the median is a third of 30 s.
    is "$(grep -c 'token, 3 questions' "$tmp/a.svg") $(grep -c '>3.0x<' "$tmp/a.svg")" '1 1' || return
    is "$(grep -c 'NQ' "$tmp/a.svg") $(grep -c '>10 s<' "$tmp/a.svg")" '0 1'
}

# The library counts a round that was left out because a trial would not pay (512).
a_prompt_that_was_not_tried_was_computed_whole_at_once() {
    needs_python || return
    table <<'END' | sed '/tessera/ s/,nan,0,0,/,1,1,512,/' >"$tmp/a.csv"
one facts 1 prefill 4 1
one facts 1 tessera 4 1
END
    table <<'END' | sed 's/^\(one,facts,1,tessera,.*\),nan,0,0,/\1,1,0,0,/; s/^\(one,facts,2,tessera,.*\),nan,0,0,/\1,1,1,0,/' >"$tmp/t.csv"
one facts 1 prefill 30 0
one facts 1 tessera 15 0
one facts 2 prefill 30 0
one facts 2 tessera 60 0
END
    plot --times "$tmp/t.csv" "$tmp/a.csv" >"$tmp/a.svg" || fail 'no plot' || return
    is "$(grep -c '>2.0x<' "$tmp/a.svg")" 1
}

nothing_to_plot_is_an_error() {
    needs_python || return
    table </dev/null >"$tmp/a.csv"
    ! plot "$tmp/a.csv" >/dev/null 2>"$tmp/err" && grep -q 'no answers' "$tmp/err"
}

run every_model_and_set_has_a_panel_with_its_methods
run times_can_come_from_another_table
run a_prompt_that_was_not_tried_was_computed_whole_at_once
run nothing_to_plot_is_an_error
test_end
