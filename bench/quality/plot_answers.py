#!/usr/bin/env python3
"""plot_answers.py - right answers against time to the first token, as an SVG.

  plot_answers.py [--half tune|test|all] [--sets LIST] [--times FILE] answers.csv ... > answers.svg

Tables are those of `tessera-lab answers --csv`, of one or more models. A row of panels is a model,
a column a set of questions. A point is a method: the median time to the first token, and the share
of right answers with its interval of 95 % (Wilson). Only questions that all methods answered count.
With --times the times come from another table, such as a few questions on another machine: of each
method and outcome (accepted, computed whole at once, computed whole after a round) it gives the
median share of the prefill's time, and each question has that of its own outcome. Models and sets
that it does not have are left out. --one-round counts answers that only a later round accepted as
computed whole.
Nothing but Python is needed, and nothing in the picture is fetched from elsewhere."""

import argparse
import csv
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, replace
from html import escape

from halves import HALVES, wanted

# Told apart also by people who see few colours (Okabe and Ito, 2008), and by their shapes.
METHODS = {
    "prefill": ("full prefill", "#444444", "M-5 -5h10v10h-10z"),
    "reuse": ("plain reuse", "#0072b2", "M0 -6.5L6 5H-6z"),
    "cacheblend": ("CacheBlend", "#009e73", "M0 -6.5L6.5 0L0 6.5L-6.5 0z"),
    "tessera": ("Tessera", "#d55e00", "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0z"),
}
SETS = {
    "facts": "short documents (facts)",
    "nq-short": "NQ, 8 passages",
    "musique-short": "MuSiQue, 10 long passages",
    "kv": "key-value retrieval",
}
COSTLY = 512  # of enum tsr_blend_reason: computed whole because a trial would not pay
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 330, 250, 48, 16, 34, 44
LEGEND, HEAD, LABEL, LABEL_WIDTH = 50, 28, 14, 30
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #333 }
.t { font-weight: 600 } .m { text-anchor: middle } .e { text-anchor: end }
.h { font-size: 15px; font-weight: 600 } .g { stroke: #e4e4e4; fill: none }
.w { stroke-width: 1.6; fill: none } .d { fill: #777 }
</style>"""


@dataclass
class Point:
    method: str
    n: int
    right: float
    low: float
    high: float
    seconds: float
    speedup: float


def wilson(k: int, n: int) -> tuple[float, float]:
    z = 1.959964
    p, w = k / n, 1 + z * z / n
    middle = (p + z * z / (2 * n)) / w
    half = z / w * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass
class Row:
    right: float
    seconds: float
    outcome: str
    rounds: int


Question = dict[str, Row]
Answers = dict[str, dict[str, dict[str, Question]]]


def outcome(r: dict[str, str]) -> str:
    whole = float(r["sure"] or "nan") == 1
    tried = int(r["rounds"]) and not int(r["reasons"]) & COSTLY
    return ("whole" if whole else "kept") + (" after a round" if tried else "")


def read(paths: list[str], half: str) -> Answers:
    """{model: {set: {id: {method: row}}}}"""
    out: Answers = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for path in paths:
        with open(path, newline="", errors="replace") as f:
            for r in csv.DictReader(f):
                right = float(r["right"])
                if r["method"] in METHODS and not math.isnan(right):
                    if wanted(half, r["set"], r["id"]):
                        question = out[r["model"]][r["set"]][r["id"]]
                        row = Row(right, float(r["seconds"]), outcome(r), int(r["rounds"]))
                        question.setdefault(r["method"], row)
    return out


def end_after_one_round(answers: Answers) -> None:
    for sets in answers.values():
        for questions in sets.values():
            for q in questions.values():
                for row in q.values():
                    if row.rounds > 1:
                        row.right, row.outcome = q["prefill"].right, "whole after a round"


def complete(questions: dict[str, Question], methods: list[str]) -> list[Question]:
    return [q for q in questions.values() if all(m in q for m in methods)]


class Times:
    """Of another machine: seconds of a prefill by set, shares of it by method and outcome."""

    def __init__(self, sets: dict[str, dict[str, Question]]) -> None:
        self.prefill = {s: [q["prefill"].seconds for q in sets[s].values()] for s in sets}
        shares: dict[tuple[str, str], list[float]] = defaultdict(list)
        for questions in sets.values():
            for q in questions.values():
                for m, row in q.items():
                    shares[m, row.outcome].append(row.seconds / q["prefill"].seconds)
        self.shares = {key: statistics.median(all_) for key, all_ in shares.items()}

    def of(self, name: str, rows: list[Question]) -> list[Question]:
        """The rows whose outcomes were timed, with times of that machine."""
        if not self.prefill.get(name):
            return []
        base = statistics.median(self.prefill[name])
        known = [q for q in rows if all((m, q[m].outcome) in self.shares for m in q)]
        return [
            {m: replace(row, seconds=base * self.shares[m, row.outcome]) for m, row in q.items()}
            for q in known
        ]


def points(name: str, questions: dict[str, Question], times: Times | None) -> list[Point]:
    methods = [m for m in METHODS if any(m in q for q in questions.values())]
    rows = complete(questions, methods)
    timed = times.of(name, rows) if times else rows
    made = []
    for m in methods if timed else []:
        k = round(sum(q[m].right for q in rows))
        seconds = statistics.median(q[m].seconds for q in timed)
        speedup = statistics.median(q["prefill"].seconds / q[m].seconds for q in timed)
        share, (low, high) = k / len(rows), wilson(k, len(rows))
        made.append(Point(m, len(rows), share, low, high, seconds, speedup))
    return made


def steps(low: float, high: float) -> list[float]:
    """Round numbers between the two, three to six of them."""
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if (high - low) / s <= 6)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def seconds_text(s: float) -> str:
    return f"{s:g} s" if s >= 1 else f"{s * 1000:g} ms"


class Panel:
    def __init__(self, x: float, y: float, made: list[Point], span: tuple[float, float]) -> None:
        self.x0, self.y0, self.points, self.span = x, y, made, span
        times = [math.log(p.seconds) for p in made]
        self.low, self.high = min(times) - 0.4, max(times) + 0.4

    def x(self, seconds: float) -> float:
        share = (math.log(seconds) - self.low) / (self.high - self.low)
        return self.x0 + LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, right: float) -> float:
        share = (right - self.span[0]) / (self.span[1] - self.span[0])
        return self.y0 + HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def axes(self, title: str) -> list[str]:
        left, right, bottom = self.x0 + LEFT, self.x0 + WIDTH - RIGHT, self.y0 + HEIGHT - BOTTOM
        out = [f'<text x="{left}" y="{self.y0 + 20}" class="t">{escape(title)}</text>']
        for v in steps(*self.span):
            y = self.y(v)
            out.append(f'<path d="M{left} {y:.1f}H{right}" class="g"/>')
            out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" class="e">{100 * v:.0f} %</text>')
        ticks = [m * 10.0**e for e in range(-4, 4) for m in (1, 2, 5)]
        shown = [t for t in ticks if self.low <= math.log(t) <= self.high]
        if len(shown) > 6:
            shown = [t for t in shown if f"{t:e}"[0] == "1"]
        for t in shown:
            x = self.x(t)
            out.append(f'<path d="M{x:.1f} {self.y0 + TOP}V{bottom}" class="g"/>')
            out.append(f'<text x="{x:.1f}" y="{bottom + 16}" class="m">{seconds_text(t)}</text>')
        n = self.points[0].n
        out.append(
            f'<text x="{(left + right) / 2}" y="{bottom + 34}" class="m d">'
            f"time to the first token, {n} questions</text>"
        )
        return out

    def marks(self) -> list[str]:
        out: list[str] = []
        taken: list[tuple[float, float]] = []
        for p in sorted(self.points, key=lambda p: -p.right):
            _, color, shape = METHODS[p.method]
            x, y = self.x(p.seconds), self.y(p.right)
            top, bottom = self.y(p.high), self.y(p.low)
            out.append(f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" class="w" stroke="{color}"/>')
            out.append(f'<path d="{shape}" fill="{color}" transform="translate({x:.1f} {y:.1f})"/>')
            if p.method == "prefill":
                continue
            label = f"{p.speedup:.{1 if p.speedup < 9.95 else 0}f}x"
            after = x + 50 <= self.x0 + WIDTH - RIGHT
            at, line = (x + 9 if after else x - 9 - LABEL_WIDTH), y + 4
            while any(abs(line - b) < LABEL and abs(at - a) < LABEL_WIDTH for a, b in taken):
                line += 2  # below the labels that are there
            taken.append((at, line))
            anchor = "" if after else ' class="e"'
            tx = x + 9 if after else x - 9
            out.append(
                f'<text x="{tx:.1f}" y="{line:.1f}"{anchor} style="fill:{color}">{label}</text>'
            )
        return out


def span_of(made: list[list[Point]]) -> tuple[float, float]:
    low = min(p.low for m in made for p in m)
    high = max(p.high for m in made for p in m)
    return max(0.0, math.floor(low * 20) / 20), min(1.02, math.ceil(high * 20) / 20)


def legend() -> list[str]:
    out, x = [], LEFT + 6
    for name, color, shape in METHODS.values():
        out.append(f'<path d="{shape}" fill="{color}" transform="translate({x} 20)"/>')
        out.append(f'<text x="{x + 12}" y="24">{name}</text>')
        x += 36 + 7 * len(name)
    note = "bars: 95 %; numbers: times faster to the first token than the prefill (median)"
    return [*out, f'<text x="{LEFT}" y="44" class="d">{note}</text>']


def draw(answers: Answers, times: Answers | None, sets: list[str]) -> str:
    made = {}
    for m in answers:
        clock = Times(times[m]) if times else None
        made[m] = {s: points(s, answers[m][s], clock) for s in sets if s in answers[m]}
    made = {m: panels for m, panels in made.items() if any(panels.values())}
    sets = [s for s in sets if any(panels.get(s) for panels in made.values())]
    if not sets:
        raise SystemExit("no answers of this half and these sets")
    spans = {s: span_of([made[m][s] for m in made if made[m].get(s)]) for s in sets}
    width = max(WIDTH * len(sets), 660)
    height = LEGEND + (HEAD + HEIGHT) * len(made)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">',
        "<title>Right answers against time to the first token</title>",
        STYLE,
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *legend(),
    ]
    for row, model in enumerate(made):
        y = LEGEND + row * (HEAD + HEIGHT)
        out.append(f'<text x="{LEFT}" y="{y + 22}" class="h">{escape(model)}: right answers</text>')
        for column, name in enumerate(sets):
            if made[model].get(name):
                panel = Panel(column * WIDTH, y + HEAD, made[model][name], spans[name])
                out += panel.axes(SETS.get(name, name)) + panel.marks()
    return "\n".join([*out, "</svg>"])


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("tables", nargs="+")
    p.add_argument("--half", choices=HALVES, default="all")
    p.add_argument("--sets", help="default: all in the tables")
    p.add_argument("--times", help="a table to take the times from")
    p.add_argument("--one-round", action="store_true", help="as if there were no second round")
    a = p.parse_args()
    answers = read(a.tables, a.half)
    found = list(dict.fromkeys(s for sets in answers.values() for s in sets))
    sets = a.sets.split(",") if a.sets else [s for s in SETS if s in found]
    sets += [] if a.sets else [s for s in found if s not in SETS]
    if a.one_round:
        end_after_one_round(answers)
    print(draw(answers, read([a.times], a.half) if a.times else None, sets))


if __name__ == "__main__":
    main()
