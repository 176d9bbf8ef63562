#!/usr/bin/env bash
# What one setting does to one question, measured on a random model: nothing where everything is
# computed anew, something where not.
# shellcheck source=tests/cli/ask_kit.sh
. "$(dirname "$0")/../cli/ask_kit.sh"

calibrate_init() {
    ask_init llama || return
    needs_python || return
    python3 - "$tmp" <<'END'
import json, sys
tmp = sys.argv[1]
docs = [open(tmp + "/docs/a.md").read(), open(tmp + "/docs/b.txt").read()]
with open(tmp + "/q.jsonl", "w") as f:
    for i, question in enumerate(("why", "how")):
        f.write(json.dumps({"set": "s", "id": str(i), "documents": docs, "question": question, "answers": ["abc"]}) + "\n")
END
}

calibrate() {
    lab calibrate --model="$model" --threads=1 --prompts="$tmp/q.jsonl" --csv="$tmp/rows.csv" \
        --out="$tmp/profile.yaml" --disk_enabled=false "$@"
}

recomputing_everything_changes_nothing_and_nothing_changes_something() {
    calibrate_init || return
    printf 'context: primer\nprimer: "%s\\n\\n"\n' "$(letters 60 c)" >"$tmp/primer.yaml"
    calibrate --limit=1 --ratio=0 --ratios=0,0.1,1 --biases=0,-0.5 --selectors=none,query,hkvd,link --answers=4 \
        --contexts=same,pure,primer --profile="$tmp/primer.yaml"
    exits 0 || return
    python3 - "$tmp/rows.csv" <<'END' || fail "$(cat "$tmp/rows.csv")"
import csv, math, sys
rows = list(csv.DictReader(open(sys.argv[1])))
assert len(rows) == 1 + 3 * (2 + 2 * 2 + 2 + 2), len(rows)
seen = set()
for r in rows:
    kl, ratio, bias = float(r["kl"]), float(r["ratio"]), float(r["bias"])
    assert kl >= 0 and float(r["blend_s"]) > 0 and 0 <= float(r["f1"]) <= 1
    if r["selector"] == "full" or (ratio == 1 and bias == 0): assert kl < 1e-6 and float(r["same_answer"]) == float(r["says_same"]) == 1, r
    assert float(r["same_answer"]) in (0, 1) and float(r["says_same"]) in (0, 1), r
    if r["selector"] == "none": assert kl > 1e-9 and float(r["recomputed"]) == 0, r
    if r["selector"] == "query" and ratio == 0.1:
        assert 0 < float(r["mass"]) < 1 and not math.isnan(float(r["moved"])), r
        share = float(r["recomputed"]) / (378 if r["context"] == "same" else 753)  # the first one is exact behind
        assert 0.09 < share < 0.12, r
    seen.add((r["selector"], r["context"]))
assert ("query", "pure") in seen and ("hkvd", "same") in seen and ("query", "primer") in seen, seen
END
}

rounds_are_measured_one_after_the_other() {
    calibrate_init || return
    calibrate --limit=1 --rounds=0.1,0.3,0.6 --ratios=0,0.1 --biases=0 --selectors=none,query --contexts=same --answers=4
    exits 0 || return
    python3 - "$tmp/rows.csv" <<'END' || fail "$(cat "$tmp/rows.csv")"
import csv, sys
rows = [r for r in csv.DictReader(open(sys.argv[1])) if r["selector"] == "query"]
assert [(r["rounds"], r["ratio"]) for r in rows] == [("0", "0.1"), ("2", "0.3"), ("3", "0.6")], rows
share = [float(r["recomputed"]) / 378 for r in rows]
assert all(abs(s - w) < 0.02 for s, w in zip(share, (0.1, 0.3, 0.6))), share
assert float(rows[0]["mass"]) > float(rows[1]["mass"]) > float(rows[2]["mass"]), rows
END
    [[ $(cat "$tmp/profile.yaml") == *$'\nratio: 0.1\n'*$'\nrounds: [0.1, 0.3, 0.6]\n'* ]] || fail "$(cat "$tmp/profile.yaml")"
}

int8_entries_are_measured_beside_the_others() {
    calibrate_init || return
    calibrate --limit=1 --ratio=0.1 --ratios=0,0.1 --biases=0 --selectors=none,query --contexts=same --int8
    exits 0 || return
    says "int8 entries: KL"
    python3 - "$tmp/rows.csv" <<'END' || fail "$(cat "$tmp/rows.csv")"
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1])))
kl = {r["stored"]: float(r["kl"]) for r in rows if r["selector"] == "query"}
assert len(rows) == 4 and kl["int8"] != kl["plain"] and abs(kl["int8"] / kl["plain"] - 1) < 0.5, rows
END
}

a_plain_prompt_is_its_texts_and_nothing_else() {
    calibrate_init || return
    printf '{"id":"1","plain":true,"system":"%s","documents":["%s","%s"],"question":"%s","answers":["abc"]}\n' \
        "$(letters 20 s)" "$(letters 300 a)" "$(letters 310 b)" "$(letters 7 q)" >"$tmp/q.jsonl"
    calibrate --ratio=0 --ratios=0 --biases=0 --selectors=none --contexts=pure --answers=4
    exits 0 || return
    # At most a token for each letter of ours; a template and names would be 100 more.
    awk -F, '$3 == "none" { ok = $31 == 2 && $30 <= 305 && $21 - 2 * $30 <= 28 } END { exit !ok }' "$tmp/rows.csv" ||
        fail "$(cat "$tmp/rows.csv")"
}

run recomputing_everything_changes_nothing_and_nothing_changes_something
run rounds_are_measured_one_after_the_other
run int8_entries_are_measured_beside_the_others
run a_plain_prompt_is_its_texts_and_nothing_else
test_end
