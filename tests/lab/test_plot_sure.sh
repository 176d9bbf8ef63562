#!/usr/bin/env bash
# bench/quality/plot_sure.py: the reliability diagram.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"

plot() { PYTHONDONTWRITEBYTECODE=1 python3 "$(dirname "$0")/../../bench/quality/plot_sure.py" "$@"; }

# ID METHOD SAME SURE ROUNDS WORST DRAFT, one line a row
table() {
    echo 'model,set,id,method,tokens,computed,recomputed,seconds,exact,f1,right,same_tokens,same_words,says_same,kl,kl_answer,sure,rounds,reasons,moved,changed,mass,fresh,entropy,top,margin,chunk_tokens,chunks,agree,worst,doubt,low,draft,answer'
    while read -r id method same sure rounds worst draft; do
        echo "m,s,$id,$method,100,10,5,1,0,0,1,$same,$same,$same,0,0,$sure,$rounds,0,0,0,0,0,0,0,0,80,4,1,$worst,0,0,$draft,\"a\""
    done
}

# What is as sure as worst - 1 in logits; the gate at the top is another one.
a_profile() {
    printf '%s\n' 'version: 1' 'gate_limit: 0.9' 'draft_floor: 0' 'gate: {constant: 7}' 'lead:' '  rounds: [0.15]' \
        '  draft_floor: 0.05' '  gate_limit: 0.75' '  gate: {constant: -1, worst: 1}' 'frontier:' '  - {gate_limit: 0.1}' >"$tmp/p.yaml"
}

each_order_shows_what_its_gate_said() {
    needs_python || return
    a_profile
    # Of the first order: one is refused (1), one needed a second round, and one is not of this method.
    table <<'END' >"$tmp/given.csv"
1 tessera 1 0.96 1 0 0
2 tessera 0 0.96 1 0 0
3 tessera 1 1 1 0 0
4 tessera 1 0.97 2 0 0
5 reuse 0 0.5 1 0 0
END
    # Of the other one: .95 and .5 by the profile, whatever the table says; the third has a low draft.
    table <<'END' >"$tmp/free.csv"
1 prefill 1 nan 0 0 nan
1 rounds@0.15 1 0.1 1 3.944 0.5
2 prefill 1 nan 0 0 nan
2 rounds@0.15 0 0.1 1 1 0.5
3 prefill 1 nan 0 0 nan
3 rounds@0.15 0 0.1 1 5 0.01
END
    plot --profile "$tmp/p.yaml" --given "$tmp/given.csv" --free "$tmp/free.csv" >"$tmp/a.svg" || fail 'no plot' || return
    python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$tmp/a.svg" || fail 'no XML' || return
    is "$(grep -o '>[0-9]* accepted answers[^<]*' "$tmp/a.svg" | tr -d '\n')" '>2 accepted answers>1 accepted answers, 1 refused' || return
    is "$(grep -o 'limit 0[.0-9]*' "$tmp/a.svg" | tr '\n' ' ')" 'limit 0.9 limit 0.75 ' || return
    # One point of the first order, two of the other one, and two in the legend.
    is "$(grep -c '<circle' "$tmp/a.svg") $(grep -c '<rect width="720"' "$tmp/a.svg")" '5 1'
}

a_range_ends_at_the_limit() {
    needs_python || return
    a_profile
    table <<'END' >"$tmp/free.csv"
1 prefill 1 nan 0 0 nan
1 rounds@0.15 1 nan 1 2.0 0.5
2 prefill 1 nan 0 0 nan
2 rounds@0.15 1 nan 1 2.2 0.5
END
    # .731 and .769 are both between .7 and .8, one below the limit and one above it.
    plot --profile "$tmp/p.yaml" --free "$tmp/free.csv" >"$tmp/a.svg" || fail 'no plot' || return
    is "$(grep -c '<circle' "$tmp/a.svg")" 4 || return
    grep -q '1 accepted answers, 1 refused' "$tmp/a.svg"
}

what_is_missing_is_named() {
    needs_python || return
    a_profile
    table </dev/null >"$tmp/a.csv"
    ! plot --profile "$tmp/p.yaml" --given "$tmp/a.csv" >/dev/null 2>"$tmp/err" && grep -q 'no answers of this half' "$tmp/err" || return
    sed -i '/^lead:/,/^  gate:/d' "$tmp/p.yaml"
    ! plot --profile "$tmp/p.yaml" --free "$tmp/a.csv" >/dev/null 2>"$tmp/err" && grep -q 'profile: no gate in lead' "$tmp/err"
}

run each_order_shows_what_its_gate_said
run a_range_ends_at_the_limit
run what_is_missing_is_named
test_end
