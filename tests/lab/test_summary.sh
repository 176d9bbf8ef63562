#!/usr/bin/env bash
# What tables of answers say.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"

# SET ID METHOD SECONDS F1 RIGHT SAME SAYS SURE REASONS, one line a row
table() {
    echo 'model,set,id,method,tokens,computed,recomputed,seconds,exact,f1,right,same_tokens,same_words,says_same,kl,kl_answer,sure,rounds,reasons,answer'
    while read -r set id method seconds f1 right same says sure reasons; do
        echo "tiny,$set,$id,$method,100,${computed:-10},0,$seconds,0,$f1,$right,$same,$same,$says,0.5,0.25,$sure,nan,$reasons,\"x\""
    done
}

# "  *" is any space.
shows() { grep -qE -- "$(sed 's/[+().]/\\&/g; s/  \*/ +/g' <<<"$1")" <<<"$out" || fail "'$1' is not in the output: $out"; }

some() {
    table <<'END' >"$tmp/a.csv"
facts 1 prefill 2 1 1 1 1 nan 0
facts 1 tessera 0.5 0.5 1 1 1 0.99 0
facts 2 prefill 2 1 1 1 1 nan 0
facts 2 tessera 0.25 0 0 0 0 0.6 0
nq 1 prefill 4 0 0 1 1 nan 0
nq 1 tessera 1 1 1 0 1 0.97 0
nq 2 prefill 4 0.5 0 1 1 nan 0
nq 2 tessera 5 0.5 0 1 1 1 32
END
}

every_set_and_all_of_them_are_compared_with_the_prefill() {
    some
    lab answers --summary "$tmp/a.csv"
    exits 0 || return
    shows 'facts  prefill  *2  100.0 %' || return
    shows 'facts  tessera  *2   50.0 %  -50.0 (' || return
    shows '50.0 % (9.5 to 90.5)  *25.0  -75.0 (-100.0 to -50.0)' || return
    shows 'nq     tessera  *2   50.0 %  +50.0 (' || return
    shows 'all    tessera  *4   50.0 %   +0.0 (' || return
    # The median of 4, 8, 4 and 0.8.
    shows 'all    tessera  *50.0 %  *50.0 %  *75.0 %  *0.5000  *0.2500  *10.0 %  *0.750 s  *4.0x'
}

answers_are_counted_by_how_sure_they_are() {
    some
    lab answers --summary "$tmp/a.csv"
    shows '1 of 4 prompts were computed whole' || return
    # All that the gate let pass: what they say, their tokens, and the right one of two that is kept.
    shows 'any  *3  *75.0 %  *66.7 % (20.8 to 93.9)  *33.3 % (6.1 to 79.2)  *50.0 % (9.5 to 90.5)' || return
    shows '>= 0.95  *2  *50.0 %  *100.0 % (34.2 to 100.0)  *50.0 % (9.5 to 90.5)  *100.0 % (' || return
    shows '>= 0.50  *3  *75.0 %  *66.7 % ('
}

what_the_gate_predicts_is_compared_with_what_came_true() {
    some
    lab answers --summary "$tmp/a.csv"
    shows '0.50  *1  *60.0 %  *0.0 % (' || return
    shows '0.95  *1  *97.0 %  *100.0 % (20.7 to 100.0)  *0.0 % (' || return
    shows '0.99  *1  *99.0 %  *100.0 % (' || return
    lab answers --summary --json "$tmp/a.csv"
    is "$(json "[(r['from'], r['predicted'], r['says_same'], r['same_tokens']) for r in x['reliability'] if r['shown']]")" \
        '[(0.5, 0.6, 0, 0), (0.95, 0.97, 1, 0), (0.99, 0.99, 1, 1)]' || return
    is "$(json "[x['sure'][0][k] for k in ('limit', 'whole', 'shown', 'says_same', 'right', 'stays_right')]")" \
        '[0, 1, 3, 2, 2, 1]' || return
    is "$(json "[s['says_same'] for s in x['scores'] if s['method'] == 'tessera']")" '[0.5, 1, 0.75]'
}

tables_are_joined_and_count_once() {
    some
    computed=50 table <<'END' >"$tmp/b.csv"
nq 2 tessera 1 1 1 1 1 nan 0
nq 3 prefill 4 1 1 1 1 nan 0
nq 3 tessera 4 1 1 1 1 nan 0
nq 4 tessera 4 1 1 1 1 nan 0
END
    lab answers --summary --json "$tmp/a.csv" "$tmp/b.csv"
    exits 0 || return
    # Question 2 is that of the first table; 4 has nothing to be compared with.
    is "$(json "[(s['questions'], s['right']) for s in x['scores'] if s['set'] == 'nq'][1]")" '(3, 0.666667)'
}

only_the_half_counts() {
    some
    lab answers --summary --json --half=test "$tmp/a.csv"
    local test=$out
    lab answers --summary --json --half=tune "$tmp/a.csv"
    [ "$out" != "$test" ]
}

empty_tables_are_an_error() {
    table </dev/null >"$tmp/a.csv"
    lab answers --summary "$tmp/a.csv"
    exits 1 && complains 'no answers of this half'
}

run every_set_and_all_of_them_are_compared_with_the_prefill
run answers_are_counted_by_how_sure_they_are
run what_the_gate_predicts_is_compared_with_what_came_true
run tables_are_joined_and_count_once
run only_the_half_counts
run empty_tables_are_an_error
test_end
