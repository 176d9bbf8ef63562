#!/usr/bin/env python3
"""plot_sure.py - how sure the gate was, and how often it was right: a reliability diagram, as SVG.

  plot_sure.py --profile FILE [--half tune|test|all] [--given TABLE ...] [--free TABLE ...]
               [--method rounds@0.15] > sure.svg

A panel for each order of the documents, of one model. --given: tables of `tessera-lab answers` with
method tessera. What the gate refused was read in full, so only accepted answers are there; those
that only a later round accepted are left out. --free: tables of `--order=free` with rounds. Every
answer that passes draft_floor is there, judged by the gate in the profile's section lead, which may
be newer than the table. A point is a range of probabilities: their mean, and the share of answers
that say what the prefill says, with its interval of 95 % (Wilson). On the curve a gate is as sure
as it is right. Nothing but Python is needed, and nothing is fetched from elsewhere."""

import argparse
import csv
import math
import re
import statistics
from dataclasses import dataclass
from html import escape

from fit_gate import Gate, cases_of, predict
from fit_gate import read as read_rounds
from halves import HALVES, half_of, wanted
from plot_answers import STYLE, wilson

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360, 340, 48, 16, 44, 62
LEGEND = 44
EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
TICKS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
SURE_MIN, SURE_MAX = 0.2, 0.997
ACCEPTED, REFUSED = "#d55e00", "#8a8a8a"
MORE_STYLE = """<style>
.n { font-size: 10px; fill: #777 } .c { stroke: #777; fill: none; stroke-dasharray: 4 3 }
</style>"""

Judged = list[tuple[float, bool]]  # how sure, and whether it says the same


@dataclass
class Bin:
    n: int
    sure: float
    share: float
    low: float
    high: float
    accepted: bool


@dataclass
class Section:
    """What a profile says of its gate, at its top or in a section."""

    limit: float
    floor: float
    weights: dict[str, float]


def section(text: str, name: str) -> Section:
    """Our profiles have a value or a list on a line, so that no YAML parser is needed."""
    if name:
        after = text.partition(f"\n{name}:\n")[2]
        part = re.split(r"\n(?! )", after)[0]
    else:
        part = re.sub(r"^ .*", "", text, flags=re.M)

    def one(key: str) -> str:
        found = re.search(rf"^ *{key}: *(.*)$", part, re.M)
        if not found:
            raise SystemExit(f"profile: no {key}{' in ' + name if name else ''}")
        return found[1]

    pairs = re.findall(r"(\w+): *(-?[0-9.e-]+)", one("gate"))
    weights = {key: float(value) for key, value in pairs}
    return Section(float(one("gate_limit")), float(one("draft_floor")), weights)


def read_given(paths: list[str], half: str) -> Judged:
    out, seen = [], set()
    for path in paths:
        with open(path, newline="", errors="replace") as f:
            for r in csv.DictReader(f):
                key, sure = (r["set"], r["id"]), float(r["sure"] or "nan")
                if r["method"] != "tessera" or key in seen or not wanted(half, *key):
                    continue
                seen.add(key)
                if sure < 1 and int(r["rounds"]) == 1:
                    out.append((sure, float(r["says_same"]) == 1))
    return out


def read_free(paths: list[str], half: str, method: str, own: Section) -> Judged:
    features = [key for key in own.weights if key != "constant"]
    weights = [own.weights.get("constant", 0.0), *(own.weights[key] for key in features)]
    gate = Gate(features, weights, own.limit, own.floor)
    cases = cases_of(read_rounds(paths), method, features)
    half_has = [c for c in cases if half in ("all", half_of(c.set, c.id))]
    return [(predict(weights, c), c.same) for c in half_has if gate.judges(c)]


def bins(judged: Judged, limit: float) -> list[Bin]:
    """A range never has answers of both sides of the limit."""
    edges = sorted({*EDGES, limit})
    out = []
    for low, high in zip(edges, [*edges[1:-1], math.inf]):
        some = [(p, same) for p, same in judged if low <= p < high]
        if some:
            k, n = sum(same for _, same in some), len(some)
            out.append(
                Bin(n, statistics.fmean(p for p, _ in some), k / n, *wilson(k, n), low >= limit)
            )
    return out


class Panel:
    """Doubts are on a scale of powers, because most answers are surer than 90 %."""

    def __init__(self, x: float, title: str, made: list[Bin], limit: float, bottom: float) -> None:
        self.x0, self.title, self.made, self.limit, self.bottom = x, title, made, limit, bottom
        self.first = max(SURE_MIN, min(min(b.sure for b in made) - 0.1, limit - 0.1))

    def x(self, sure: float) -> float:
        low, high = math.log(1 - self.first), math.log(1 - SURE_MAX)
        share = (math.log(1 - min(max(sure, self.first), SURE_MAX)) - low) / (high - low)
        return self.x0 + LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, share: float) -> float:
        part = (share - self.bottom) / (1.02 - self.bottom)
        return LEGEND + HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)

    def axes(self) -> list[str]:
        left, right = self.x0 + LEFT, self.x0 + WIDTH - RIGHT
        top, bottom = LEGEND + TOP, LEGEND + HEIGHT - BOTTOM
        out = [f'<text x="{left}" y="{LEGEND + 20}" class="t">{escape(self.title)}</text>']
        for i in range(round(10 * self.bottom), 11):
            y = self.y(i / 10)
            out.append(f'<path d="M{left} {y:.1f}H{right}" class="g"/>')
            out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" class="e">{10 * i} %</text>')
        for t in (t for t in TICKS if t > self.first):
            x = self.x(t)
            out.append(f'<path d="M{x:.1f} {top}V{bottom}" class="g"/>')
            out.append(f'<text x="{x:.1f}" y="{bottom + 16}" class="m">{100 * t:g}</text>')
        middle = (left + right) / 2
        out.append(f'<text x="{middle}" y="{bottom + 34}" class="m d">how sure, in %</text>')
        n, total = sum(b.n for b in self.made if b.accepted), sum(b.n for b in self.made)
        counts = f"{n} accepted answers" + (f", {total - n} refused" if total > n else "")
        out.append(f'<text x="{middle}" y="{bottom + 52}" class="m d">{counts}</text>')
        return out

    def marks(self) -> list[str]:
        first = max(self.first, self.bottom)
        sures = [first + i / 60 * (SURE_MAX - first) for i in range(61)]
        curve = "L".join(f"{self.x(s):.1f} {self.y(s):.1f}" for s in sures)
        limit, top = self.x(self.limit), LEGEND + TOP
        out = [
            f'<path d="M{curve}" class="c"/>',
            f'<path d="M{limit:.1f} {top}V{LEGEND + HEIGHT - BOTTOM}" class="c"/>',
            f'<text x="{limit:.1f}" y="{top - 4}" class="m n">limit {self.limit:g}</text>',
        ]
        for b in self.made:
            x, y, color = self.x(b.sure), self.y(b.share), ACCEPTED if b.accepted else REFUSED
            low, high = self.y(b.low), self.y(b.high)
            out.append(f'<path d="M{x:.1f} {high:.1f}V{low:.1f}" class="w" stroke="{color}"/>')
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{color}"/>')
            out.append(f'<text x="{x:.1f}" y="{low + 12:.1f}" class="m n">{b.n}</text>')
        return out


def legend() -> list[str]:
    out, x = [], LEFT + 6
    for name, color in (("accepted", ACCEPTED), ("refused: read in full", REFUSED)):
        out.append(f'<circle cx="{x}" cy="16" r="4.5" fill="{color}"/>')
        out.append(f'<text x="{x + 12}" y="20">{name}</text>')
        x += 36 + 7 * len(name)
    out.append(f'<path d="M{x - 6} 16H{x + 18}" class="c"/>')
    out.append(f'<text x="{x + 26}" y="20">as sure as it is right</text>')
    note = "answers that say what the full read says; bars: 95 %; small numbers: answers"
    return [*out, f'<text x="{LEFT}" y="40" class="d">{note}</text>']


def draw(panels: list[tuple[str, Judged, float]]) -> str:
    shown = [p for p in panels if p[1]]
    if not shown:
        raise SystemExit("no answers of this half that a gate has judged")
    width, height = max(WIDTH * len(shown), 560), LEGEND + HEIGHT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">',
        "<title>How sure the gate was, and how often it was right</title>",
        STYLE,
        MORE_STYLE,
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *legend(),
    ]
    made = [bins(judged, limit) for _, judged, limit in shown]
    lowest = min(b.low for panel in made for b in panel) - 0.05  # with room for a number
    for i, (title, _, limit) in enumerate(shown):
        panel = Panel(i * WIDTH, title, made[i], limit, max(0.0, math.floor(10 * lowest) / 10))
        out += panel.axes() + panel.marks()
    return "\n".join([*out, "</svg>"])


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--profile", required=True, help="of the model")
    p.add_argument("--given", nargs="+", default=[], metavar="TABLE")
    p.add_argument("--free", nargs="+", default=[], metavar="TABLE")
    p.add_argument("--method", default="rounds@0.15", help="of --free; default: %(default)s")
    p.add_argument("--half", choices=HALVES, default="all")
    a = p.parse_args()
    with open(a.profile) as f:
        text = f.read()
    panels = []
    if a.given:
        limit = section(text, "").limit
        panels.append(("documents in a given order", read_given(a.given, a.half), limit))
    if a.free:
        own = section(text, "lead")
        judged = read_free(a.free, a.half, a.method, own)
        panels.append(("the order is free", judged, own.limit))
    print(draw(panels))


if __name__ == "__main__":
    main()
