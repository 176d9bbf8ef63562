"""The results of bench/gpu/vllm: what was measured, against what, and whether it is good enough."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

# First token in host memory, by tokens: at most this share of OffloadingConnector's time, and at
# least this many times faster than computing.
OFFLOADING_SHARE = {4096: 0.85, 8192: 0.85, 16384: 0.75, 32000: 0.75}
SPEED_UP = {4096: 2.5, 32000: 11.0}
BUS_SHARE, BUS_EXTRA_S = 1.15, 0.004
TESSERAD_SHARE = 0.1  # of the bus time, that a load from another process may add


@dataclass
class Row:
    case: str
    value: float
    unit: str
    anchor: str = ""
    baseline: float | None = None
    ratio: float | None = None
    target: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        measured = self.value if self.ratio is None else self.ratio
        return measured >= self.target if self.at_least else measured <= self.target

    def line(self) -> str:
        anchor = self.anchor
        if self.baseline is not None:
            anchor += f", {self.baseline:.4g} {self.unit}"
        ratio = "" if self.ratio is None else f"{self.ratio:.3f}"
        target = "" if self.target is None else f"{'>=' if self.at_least else '<='} {self.target:g}"
        verdict = {None: "", True: "met", False: "**missed**"}[self.met]
        value = f"{self.value:.4g} {self.unit}"
        return f"| {self.case} | {anchor} | {value} | {ratio} | {target} | {verdict} |"


@dataclass
class Report:
    facts: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)  # everything measured, for the JSON file
    lines: bool = False  # every row is printed as a JSON line when it is there

    def add(self, case: str, value: float, unit: str, anchor: str = "", **more: Any) -> None:
        row = Row(case, value, unit, anchor, **more)
        self.rows.append(row)
        if self.lines:
            print(json.dumps({**asdict(row), "met": row.met}), flush=True)

    def ratio(
        self, case: str, seconds: float, anchor: str, base: float, target: float | None
    ) -> None:
        self.add(case, 1e3 * seconds, "ms", anchor, baseline=1e3 * base, ratio=seconds / base,
                 target=target)  # fmt: skip

    def markdown(self) -> str:
        head = ", ".join(f"{name} {value}" for name, value in self.facts.items())
        lines = [head, "", "| case | against | value | ratio | target | |"]
        lines += ["| --- | --- | --- | --- | --- | --- |", *(row.line() for row in self.rows)]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        rows = [{**asdict(row), "met": row.met} for row in self.rows]
        return {"facts": self.facts, "rows": rows, "samples": self.samples}


def ms(seconds: list[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.1f} ms"


def first_token_rows(
    report: Report, mode: str, n: int, times: dict[str, list[float]], found: int, bus_s: float
) -> None:
    """`times`: of each engine, and of vLLM's own prefix cache as "hot"."""
    median = {name: statistics.median(values) for name, values in times.items()}
    case = f"first token, {n} tokens in host memory, {mode}"
    if "tessera" in median:
        ours = median["tessera"]
        if found < n - 256:
            case += f" ({found} found)"
        if "hot" in median:
            limit = median["hot"] + BUS_SHARE * bus_s + BUS_EXTRA_S
            anchor = (
                f"vLLM's own prefix cache {1e3 * median['hot']:.1f} ms"
                f" + {BUS_SHARE} x bus {1e3 * bus_s:.1f} ms + {1e3 * BUS_EXTRA_S:.0f} ms"
            )
            report.ratio(case, ours, anchor, limit, 1.0)
        if "offloading" in median:
            share = OFFLOADING_SHARE.get(n)
            report.ratio(case, ours, "OffloadingConnector", median["offloading"], share)
        if "lmcache" in median:
            report.ratio(case, ours, "LMCache", median["lmcache"], 1.0)
        if "alone" in median:
            base = median["alone"]
            report.add(case, 1e3 * ours, "ms", "computing", baseline=1e3 * base,
                       ratio=base / ours, target=SPEED_UP.get(n), at_least=True)  # fmt: skip
        if "tesserad" in median:
            # A load may take a tenth longer, and takes the bus time or more: a strict limit. What a
            # hot prefix cache leaves of the time to first token can be less than the bus time.
            limit = ours + TESSERAD_SHARE * bus_s
            case = f"first token, {n} tokens through a tesserad, {mode}"
            anchor = f"embedded {1e3 * ours:.1f} ms + {TESSERAD_SHARE} x bus {1e3 * bus_s:.1f} ms"
            report.ratio(case, median["tesserad"], anchor, limit, 1.0)


def overhead_rows(
    report: Report, what: str, rounds: dict[str, list[dict[str, Any]]], processor: bool
) -> None:
    """`rounds`: seconds and threads of each engine's batches; `processor`: also rows of processor
    time, which other processes of the machine disturb less."""
    anchors = {"alone": "vLLM alone", "noop": "a connector that does nothing"}
    labels = {"tessera": "nothing cached", "broken": "broken cache", "noop": anchors["noop"],
              "twin": "a second vLLM alone", "disk": "nothing cached, saving to disk"}  # fmt: skip

    def spent(one: dict[str, Any]) -> float:
        return float(sum(one["threads"].values()))

    def pair(name: str, against: str, target: float | None, cost: Any, suffix: str) -> None:
        if name not in rounds or against not in rounds:
            return
        ours = [cost(one) for one in rounds[name]]
        base = [cost(one) for one in rounds[against]]
        report.add(f"{what}: {labels[name]}{suffix}", statistics.median(ours), "s",
                   anchors[against], baseline=statistics.median(base),
                   ratio=statistics.median(a / b for a, b in zip(ours, base)),
                   target=target)  # fmt: skip

    kinds: list[tuple[Any, str, float | None]] = [(lambda one: one["seconds"], "", 1.01)]
    if processor:
        kinds.append((spent, ", processor time", None))
    for cost, suffix, target in kinds:
        for name in ("tessera", "disk", "broken"):
            pair(name, "alone", target, cost, suffix)
            pair(name, "noop", None, cost, suffix)
        for name in ("noop", "twin"):
            pair(name, "alone", None, cost, suffix)
