#!/usr/bin/env python3
"""fit_gate.py - fits a gate to rounds that were measured, as lines for a profile.

  fit_gate.py [--method rounds@0.15] [--floor X] [--features LIST] [--want P] [--nested N]
              answers.csv ...

Tables are those of `tessera-lab answers --csv --methods=rounds@...`, of one model: one round each,
whatever a gate would have said of it. Without --method, each method of the tables has its turn.

The gate is the regression of tsr_gate_fit(): logistic, over standardised values, with a ridge of 1
and Platt's targets. It learns from the half `tune` whether an answer says what the prefill's says.
The limit is the smallest at which the accepted answers of that half say the same with the share
--want, each predicted by a gate that has not seen it (ten folds). Results are of the half `test`.

--nested compares sets of features without the half `test`: each answer of the half `tune` is judged
by a gate and a limit that were both chosen without it (ten folds, divided anew N times). Nothing of
the half `test` is printed then. Nothing but Python is needed."""

import argparse
import csv
import hashlib
import math
import statistics
import sys
from dataclasses import dataclass

from halves import half_of
from plot_answers import wilson

# Names of weights whose column is another one, and those that count as logarithms
# (src/blend/gate.c).
COLUMNS = {"n_chunks": "chunks"}
LOGARITHMS = ("moved", "chunk_tokens", "n_chunks")
NAMES = """moved changed mass fresh entropy top margin chunk_tokens n_chunks agree worst doubt low
draft""".split()
DEFAULT = "agree,worst,doubt,low,chunk_tokens,draft"
LOG_MIN = 1e-4
RIDGE, CONSTANT_RIDGE = 1.0, 1e-6
STEPS_MAX, HALVINGS_MAX, GAIN_MIN, WIDTH_MIN = 50, 30, 1e-9, 1e-9
FOLDS = 10
LIMITS = [i / 100 for i in range(1, 100)]
SHOWN = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
BINS = (0.0, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)

Numbers = list[float]


@dataclass
class Case:
    """A question, answered by a prefill and by one round."""

    set: str
    id: str
    values: Numbers  # of the features; NAN: not known
    same: bool
    right: float
    full_right: float
    f1_more: float  # than the prefill's; NAN: no right answer is known
    draft: float
    computed: float  # share of the prompt, by the round
    asked: float  # and by the question alone
    blended: bool  # else the prompt was too short for it: computed whole, no gate

    def half(self) -> str:
        return half_of(self.set, self.id)

    def known(self) -> bool:
        return self.blended and all(math.isfinite(v) for v in self.values)

    def fold(self, division: str = "") -> int:
        return hashlib.sha256(f"{division}{self.set}/{self.id}".encode()).digest()[0] % FOLDS


# ---- tables ----

Rows = dict[tuple[str, str], dict[str, dict[str, str]]]


def read(paths: list[str]) -> Rows:
    """{(set, id): {method: row}}; the first row of a question by a method counts."""
    out: Rows = {}
    models = set()
    for path in paths:
        with open(path, newline="", errors="replace") as f:
            for r in csv.DictReader(f):
                models.add(r["model"])
                out.setdefault((r["set"], r["id"]), {}).setdefault(r["method"], r)
    if len(models) > 1:
        raise SystemExit(f"tables of different models: {', '.join(sorted(models))}")
    return out


def value(row: dict[str, str], name: str) -> float:
    v = float(row[COLUMNS.get(name, name)])
    return math.log(max(v, 0) + LOG_MIN) if name in LOGARITHMS else v


def cases_of(rows: Rows, method: str, features: list[str]) -> list[Case]:
    out = []
    for (name, number), methods in rows.items():
        own, full = methods.get(method), methods.get("prefill")
        if not own or not full:
            continue
        if "draft" not in own:
            raise SystemExit("a table of an older version: it lacks what the gate saw")
        tokens, computed = float(own["tokens"]), float(own["computed"])
        out.append(
            Case(
                set=name,
                id=number,
                values=[value(own, f) for f in features],
                same=float(own["says_same"]) == 1,
                right=float(own["right"]),
                full_right=float(full["right"]),
                f1_more=float(own["f1"]) - float(full["f1"]),
                draft=float(own["draft"]),
                computed=computed / tokens,
                asked=(computed - float(own["recomputed"])) / tokens,
                blended=float(own["chunks"]) > 0,
            )
        )
    return out


# ---- the fit, as src/blend/gate.c does it ----


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def ridge(k: int) -> float:
    return RIDGE if k else CONSTANT_RIDGE


def dot(a: Numbers, b: Numbers) -> float:
    return sum(x * y for x, y in zip(a, b))


def loss(xs: list[Numbers], ys: Numbers, w: Numbers) -> float:
    total = sum(0.5 * ridge(k) * v * v for k, v in enumerate(w))
    for x, y in zip(xs, ys):
        s = dot(x, w)
        total += max(s, 0) + math.log1p(math.exp(-abs(s))) - y * s
    return total


def solve(a: list[Numbers]) -> Numbers:
    """Gauss with the largest pivot; the last column is the right side."""
    n = len(a)
    for c in range(n):
        best = max(range(c, n), key=lambda r: abs(a[r][c]))
        a[c], a[best] = a[best], a[c]
        for r in range(n):
            if r != c:
                by = a[r][c] / a[c][c]
                a[r] = [u - by * v for u, v in zip(a[r], a[c])]
    return [a[i][n] / a[i][i] for i in range(n)]


def newton_step(xs: list[Numbers], ys: Numbers, w: Numbers) -> Numbers:
    n = len(w)
    a = [[ridge(k) if k == r else 0.0 for k in range(n)] + [-ridge(r) * w[r]] for r in range(n)]
    for x, y in zip(xs, ys):
        p = logistic(dot(x, w))
        for r in range(n):
            by = p * (1 - p) * x[r]
            row = a[r]
            for k in range(n):
                row[k] += by * x[k]
            row[n] += (y - p) * x[r]
    return solve(a)


def descend(xs: list[Numbers], ys: Numbers) -> Numbers:
    w = [0.0] * len(xs[0])
    now = loss(xs, ys, w)
    for _ in range(STEPS_MAX):
        step = newton_step(xs, ys, w)
        for halved in range(HALVINGS_MAX):
            tried = [v + s / 2**halved for v, s in zip(w, step)]
            then = loss(xs, ys, tried)
            if then < now:
                break
        else:
            return w
        w, gain, now = tried, now - then, then
        if gain < GAIN_MIN:
            break
    return w


def fit(cases: list[Case]) -> Numbers:
    """Weights: the constant, then one for each feature."""
    n_same = sum(c.same for c in cases)
    high, low = (n_same + 1) / (n_same + 2), 1 / (len(cases) - n_same + 2)
    ys = [high if c.same else low for c in cases]
    columns = list(zip(*(c.values for c in cases)))
    means = [statistics.fmean(c) for c in columns]
    widths = [math.sqrt(sum((v - m) ** 2 for v in c) / len(c)) for c, m in zip(columns, means)]
    wide = [w > WIDTH_MIN for w in widths]
    xs = [
        [1.0] + [(v - m) / w if ok else 0.0 for v, m, w, ok in zip(c.values, means, widths, wide)]
        for c in cases
    ]
    w = descend(xs, ys)
    slopes = [v / width if ok else 0.0 for v, width, ok in zip(w[1:], widths, wide)]
    return [w[0] - dot(slopes, means), *slopes]


def predict(weights: Numbers, c: Case) -> float:
    return logistic(weights[0] + dot(weights[1:], c.values))


# ---- the limit ----


def left_out(cases: list[Case]) -> list[tuple[float, Case]]:
    """Each with the probability by a gate that was fitted to the other folds."""
    out = []
    for k in range(FOLDS):
        rest = [c for c in cases if c.fold() != k]
        own = [c for c in cases if c.fold() == k]
        if own and rest:
            weights = fit(rest)
            out += [(predict(weights, c), c) for c in own]
    return out


def choose_limit(judged: list[tuple[float, Case]], want: float) -> float:
    """1: at no limit are enough of the accepted answers the same."""
    for limit in LIMITS:
        accepted = [c.same for p, c in judged if p >= limit]
        if accepted and sum(accepted) >= want * len(accepted):
            return limit
    return 1.0


def nested(cases: list[Case], want: float, division: str) -> list[Case]:
    """The accepted ones. A limit chosen on the answers it is tried on promises too much: this says
    what fit and choice together give."""
    accepted = []
    for k in range(FOLDS):
        rest = [c for c in cases if c.fold(division) != k]
        own = [c for c in cases if c.fold(division) == k]
        if own and rest:
            limit, weights = choose_limit(left_out(rest), want), fit(rest)
            accepted += [c for c in own if predict(weights, c) >= limit]
    return accepted


# ---- what becomes of a half ----


@dataclass
class Gate:
    features: list[str]
    weights: Numbers
    limit: float
    floor: float

    def hopeless(self, c: Case) -> bool:
        return c.blended and c.draft < self.floor

    def judges(self, c: Case) -> bool:
        return c.known() and not self.hopeless(c)

    def accepts(self, c: Case) -> bool:
        return self.judges(c) and predict(self.weights, c) >= self.limit

    def cost(self, c: Case) -> float:
        """Rows computed, as a share of the prompt's: refused, a whole prefill follows."""
        if self.hopeless(c):
            return c.asked + 1
        return c.computed + (0 if self.accepts(c) or not c.blended else 1)


def share(k: int, n: int) -> str:
    if not n:
        return "-"
    low, high = wilson(k, n)
    return f"{100 * k / n:.1f} % ({100 * low:.0f} to {100 * high:.0f})"


def result(name: str, cases: list[Case], g: Gate) -> list[str]:
    accepted = [c for c in cases if g.accepts(c)]
    right = [c for c in cases if c.full_right == 1]
    kept = sum(c.right == 1 or not g.accepts(c) for c in right)
    f1 = [c.f1_more if g.accepts(c) else 0.0 for c in cases if not math.isnan(c.f1_more)]
    return [
        name,
        str(len(cases)),
        str(sum(not c.blended for c in cases)),
        str(sum(g.hopeless(c) for c in cases)),
        f"{100 * len(accepted) / len(cases):.1f} %",
        share(sum(c.same for c in accepted), len(accepted)),
        share(kept, len(right)),
        f"{statistics.fmean(f1):+.4f}" if f1 else "-",
        f"{statistics.fmean(g.cost(c) for c in cases):.3f}",
    ]


def reliability(cases: list[Case], g: Gate) -> list[list[str]]:
    out = []
    judged = [(predict(g.weights, c), c) for c in cases if g.judges(c)]
    for low, high in zip(BINS, (*BINS[1:], math.inf)):
        some = [(p, c) for p, c in judged if low <= p < high]
        if some:
            mean = statistics.fmean(p for p, _ in some)
            same = share(sum(c.same for _, c in some), len(some))
            out.append([f"{low:.2f}", str(len(some)), f"{100 * mean:.1f} %", same])
    return out


def table(heading: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(r[i]) for r in [heading, *rows]) for i in range(len(heading))]

    def line(r: list[str]) -> str:
        return "  ".join([r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])])

    return "\n".join(line(r) for r in [heading, *rows]) + "\n"


# ---- reports ----


def profile_lines(method: str, g: Gate) -> str:
    named = zip(["constant", *g.features], g.weights)
    weights = ", ".join(f"{name}: {w:g}" for name, w in named if w)
    return (
        f"lead:\n  rounds: [{float(method.partition('@')[2]):g}]\n  draft_floor: {g.floor:g}\n"
        f"  gate_limit: {g.limit:g}\n  gate: {{{weights}}}\n"
    )


def to_learn(cases: list[Case], method: str, g: Gate) -> list[Case]:
    tune = [c for c in cases if c.half() == "tune" and g.judges(c)]
    if len(tune) < 2 * (len(g.features) + 1):
        raise SystemExit(
            f"{method}: {len(tune)} answers of the half tune are too few to learn from"
        )
    return tune


def report_nested(cases: list[Case], method: str, g: Gate, want: float, times: int) -> None:
    tune, n = to_learn(cases, method, g), sum(c.half() == "tune" for c in cases)
    accepted = [c for t in range(times) for c in nested(tune, want, f"{t}/")]
    same = share(sum(c.same for c in accepted), len(accepted)).partition(" (")[0]
    print(
        f"{method}, floor {g.floor:g}, {','.join(g.features)}: nested, {times} x {FOLDS} folds: "
        f"{100 * len(accepted) / times / n:.1f} % of {n} accepted, {same} say the same"
    )


def report(cases: list[Case], method: str, g: Gate, want: float) -> None:
    tune = to_learn(cases, method, g)
    test = [c for c in cases if c.half() == "test"]
    judged = left_out(tune)
    g.limit = choose_limit(judged, want)
    g.weights = [float(f"{w:.4g}") for w in fit(tune)]
    print(f"{method}, floor {g.floor:g}: fitted to {len(tune)} answers of the half tune\n")
    rows = []
    for limit in sorted({*SHOWN, g.limit}):
        accepted = [c.same for p, c in judged if p >= limit]
        mark = f"{limit:.2f}" + (" *" if limit == g.limit else "")
        rows.append(
            [mark, f"{100 * len(accepted) / len(tune):.1f} %", share(sum(accepted), len(accepted))]
        )
    print(table(["tune, ten folds: limit", "accepted", "say the same"], rows))
    if test:
        sets = list(dict.fromkeys(c.set for c in test))
        rows = [result(s, [c for c in test if c.set == s], g) for s in sets]
        rows.append(result("all", test, g))
        heading = ["test", "questions", "too short", "below floor", "accepted", "say the same"]
        print(table([*heading, "right stay right", "F1 more", "computed"], rows))
        heading = ["test: sure from", "answers", "predicted", "say the same"]
        print(table(heading, reliability(test, g)))
    print(profile_lines(method, g))


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("tables", nargs="+")
    p.add_argument("--method", help="such as rounds@0.15; default: all of the tables")
    p.add_argument("--floor", type=float, default=0, help="draft_floor; default: 0, none")
    p.add_argument("--features", default=DEFAULT, help="weights to fit; default: %(default)s")
    p.add_argument("--want", type=float, default=0.96, help="share that says the same")
    p.add_argument("--nested", type=int, default=0, help="only compare features, N divisions")
    a = p.parse_args()
    features = a.features.split(",")
    unknown = [f for f in features if f not in NAMES]
    if unknown:
        sys.exit(f"--features: unknown: {', '.join(unknown)}")
    rows = read(a.tables)
    found = dict.fromkeys(m for r in rows.values() for m in r if m.startswith("rounds@"))
    methods = [a.method] if a.method else list(found)
    if not methods or methods[0] not in found:
        sys.exit(f"no rows of {a.method or 'rounds@...'}")
    for method in methods:
        cases, g = cases_of(rows, method, features), Gate(features, [], 1.0, a.floor)
        if a.nested:
            report_nested(cases, method, g, a.want, a.nested)
        else:
            report(cases, method, g, a.want)


if __name__ == "__main__":
    main()
