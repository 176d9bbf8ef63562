#!/usr/bin/env bash
# bench/quality/fit_gate.py: a gate from measured rounds.
# shellcheck source=tests/cli/tessera.sh
. "$(dirname "$0")/../cli/tessera.sh"

tree=$(cd "$(dirname "$0")/../.." && pwd)
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$tree/bench/quality:$tree/python

fit() {
    out=$(python3 "$tree/bench/quality/fit_gate.py" "$@" 2>"$tmp/err")
    status=$?
    err=$(cat "$tmp/err")
}

heading=model,set,id,method,tokens,computed,recomputed,seconds,exact,f1,right,same_tokens,same_words,says_same
heading+=,kl,kl_answer,sure,rounds,reasons,moved,changed,mass,fresh,entropy,top,margin,chunk_tokens,chunks,agree
heading+=,worst,doubt,low,draft,answer

# Answers of $1 questions. Those with a large margin say the same, the others do not. Of every ten one
# is too short to be blended, and one has a draft below .05.
clear_cut() {
    echo "$heading"
    awk -v n="$1" 'BEGIN {
        for (i = 0; i < n; i++) {
            at = "m," (i % 3 ? "nq-short" : "facts") "," i
            print at ",prefill,100,100,0,1,0,0.5,1,1,1,1,0,0,nan,0,0,nan,nan,nan,nan,nan,nan,nan,nan,nan,nan,nan,nan,nan,nan,\"x\""
            short = i % 10 == 3; low = i % 10 == 7; good = i % 2
            if (short) good = 1
            print at ",rounds@0.15,100," (short ? 100 : 30) "," (short ? 0 : 20) ",1,0," (good ? 0.75 : 0.25) "," good "," \
                good "," good "," good ",0,0,nan,1,0,0,0,0,0,0,0,0," (short ? "nan,0" : 100 + i % 7 ",4") "," good "," \
                (good ? 0.8 : 0.1) + i % 5 / 100 ",-0.5,0," (low ? 0.01 : 0.5) ",\"x, y\""
        }
    }'
}

the_unseen_half_shows_what_the_gate_does() {
    needs_python || return
    clear_cut 400 >"$tmp/a.csv"
    fit --floor 0.05 "$tmp/a.csv"
    is_silent && exits 0 || return
    # Accepted are the odd ones but for those of i % 10 = 3 and 7; refused are the even ones.
    local expected
    expected=$(
        python3 - <<'END'
from halves import half_of

test = [i for i in range(400) if half_of("nq-short" if i % 3 else "facts", str(i)) == "test"]
short = [i for i in test if i % 10 == 3]
low = [i for i in test if i % 10 == 7]
accepted = [i for i in test if i % 2 and i not in short and i not in low]
cost = len(short) + 1.1 * len(low) + 0.3 * len(accepted) + 1.3 * sum(i % 2 == 0 for i in test)
share = f"{100 * len(accepted) / len(test):.1f} %"
print("all", len(test), len(short), len(low), share, "100.0 %", "100.0 %", end=" ")
print(f"{0.25 * len(accepted) / len(test):+.4f} {cost / len(test):.3f}")
END
    )
    is "$(sed -n 's/ ([0-9]* to [0-9]*)//g; s/  */ /g; /^all /p' <<<"$out")" "$expected" || return
    says 'rounds@0.15, floor 0.05: fitted to' || return
    [[ $out == *$'\nlead:\n  rounds: [0.15]\n  draft_floor: 0.05\n  gate_limit: 0.'*$'\n  gate: {constant: '*worst:* ]] || fail "$out" || return
    # A profile takes these lines as they are.
    sed -n '/^lead:/,$p' <<<"$out" >"$tmp/p.yaml"
    python3 - "$tmp/p.yaml" <<'END' || fail "$(cat "$tmp/p.yaml")"
import re, sys
text = open(sys.argv[1]).read()
names = re.findall(r"(\w+): -?[0-9.]", text.partition("gate: {")[2])
sys.exit(not {"constant", "agree", "worst"} <= set(names))
END
}

# Everything that is judged is clear, so the odd ones of the half tune are accepted in each division,
# and not a word is said about the other half.
sets_of_features_are_compared_without_the_unseen_half() {
    needs_python || return
    clear_cut 400 >"$tmp/a.csv"
    fit --floor 0.05 --features agree,worst --nested 2 "$tmp/a.csv"
    is_silent && exits 0 || return
    local expected
    expected=$(
        python3 - <<'END'
from halves import half_of

tune = [i for i in range(400) if half_of("nq-short" if i % 3 else "facts", str(i)) == "tune"]
accepted = sum(i % 2 and i % 10 not in (3, 7) for i in tune)
print(f"{100 * accepted / len(tune):.1f} % of {len(tune)} accepted, 100.0 % say the same")
END
    )
    is "$out" "rounds@0.15, floor 0.05, agree,worst: nested, 2 x 10 folds: $expected"
}

# What is not always the same is a feature here and there, so both fits are of the same numbers.
weights_are_those_of_the_library() {
    needs_python || return
    local library=$PWD/$B/lib/libtessera.so
    [[ $B == /* ]] && library=$B/lib/libtessera.so
    TESSERA_LIBRARY=$library python3 -c 'from tessera._lib import library; library()' 2>/dev/null ||
        skip 'the library cannot be loaded by Python' || return
    TESSERA_LIBRARY=$library python3 - <<'END' || fail 'other weights'
import ctypes
import math
import random

import fit_gate
from tessera import _c as c
from tessera._lib import check, library

features = fit_gate.DEFAULT.split(",")
r = random.Random(5)
lib = library()
name = lib.tsr_gate_weight_name
name.restype = ctypes.c_char_p
names = []
while text := name(len(names)):
    names.append(text.decode())
cases, gates, same = [], [], []
for i in range(300):
    raw = {f: r.random() for f in features}
    raw["chunk_tokens"] = 50 + 500 * r.random()
    raw["low"] = r.randrange(4)
    law = 4 * raw["worst"] - 1 + 2 * raw["draft"] - raw["low"]
    says = r.random() < 1 / (1 + math.exp(-law))
    row = {fit_gate.COLUMNS.get(n, n): str(raw.get(n, 0.25)) for n in names[1:]}
    values = [fit_gate.value(row, f) for f in features]
    cases.append(fit_gate.Case("s", str(i), values, says, 1, 1, 0, 1, 1, 1, True))
    gates += [raw.get(n, 0.25) for n in names[1:]]
    same.append(float(says))
profile = c.Profile(size=ctypes.sizeof(c.Profile))
lib.tsr_profile_init(ctypes.byref(profile))
doubles = lambda v: (ctypes.c_double * len(v))(*v)
check(lib.tsr_gate_fit(ctypes.byref(profile), doubles(gates), doubles(same), len(same)))
theirs = dict(zip(names, profile.gate))
ours = dict(zip(["constant", *features], fit_gate.fit(cases)))
for n in names:
    assert abs(theirs[n] - ours.get(n, 0)) < 1e-3, (n, theirs[n], ours.get(n))
assert abs(ours["worst"]) > 1
END
}

tables_without_what_is_needed_are_named() {
    needs_python || return
    clear_cut 30 >"$tmp/a.csv"
    sed 's/^m,/other,/' "$tmp/a.csv" >"$tmp/b.csv"
    fit "$tmp/a.csv" "$tmp/b.csv"
    exits 1 && is "$err" 'tables of different models: m, other' || return
    fit --method rounds@0.2 "$tmp/a.csv"
    exits 1 && is "$err" 'no rows of rounds@0.2' || return
    fit --features agree,mood "$tmp/a.csv"
    exits 1 && is "$err" '--features: unknown: mood' || return
    fit "$tmp/a.csv"
    exits 1 && [[ $err == 'rounds@0.15: '*' are too few to learn from' ]] || fail "$err" || return
    cut -d, -f1-19,34- "$tmp/a.csv" >"$tmp/old.csv"
    fit "$tmp/old.csv"
    exits 1 && is "$err" 'a table of an older version: it lacks what the gate saw'
}

run the_unseen_half_shows_what_the_gate_does
run sets_of_features_are_compared_without_the_unseen_half
run weights_are_those_of_the_library
run tables_without_what_is_needed_are_named
test_end
