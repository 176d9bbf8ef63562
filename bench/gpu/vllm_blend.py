"""The row `blend` of bench/gpu/vllm: prompts of documents that are known, in a new order and with a
new question, against vLLM alone. Every part prints what it has found, and one that fails leaves the
others."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from vllm_rows import Report, ms

QUESTION = 32
# Engine, share of tokens that is recomputed, and by how much it must beat vLLM alone, by the number
# of documents; 0: measured only.
TARGETS: dict[tuple[str, float], dict[int, float]] = {
    ("blend", 0.0): {32: 9.0, 8: 0},
    ("blend-pool", 0.0): {32: 0, 8: 0},
    ("blend", 0.05): {32: 6.0, 8: 2.5},
    ("blend-pool", 0.05): {32: 9.0, 8: 0},
    ("blend", 0.15): {32: 3.5, 8: 0},
    ("blend-pool", 0.15): {32: 0, 8: 0},
}
WHERE = {"blend": "host memory", "blend-pool": "device pool"}


def row_blend(
    report: Report,
    up: dict[str, Any],
    seeds: Iterator[int],
    repeats: int,
    counts: list[int],
    document: int,
    progress: Callable[[str], None],
) -> None:
    """`counts`: of documents, each of `document` tokens."""
    for n_documents in counts:
        alone = _alone(up["alone"], seeds, repeats, n_documents, document)
        progress(f"blend: {n_documents} documents of {document}: vLLM alone {ms(alone)}")
        seed = next(seeds)
        for name in ("blend", "blend-pool"):
            if name not in up:
                continue
            try:
                _known(up[name], name, seed, n_documents, document, progress)
            except RuntimeError as error:
                progress(f"blend: {name}: filling failed: {error}")
                continue
            for (engine, ratio), targets in TARGETS.items():
                if engine != name:
                    continue
                try:
                    answers = _asked(up[name], seed, next(seeds), repeats, n_documents, document,
                                     ratio)  # fmt: skip
                except RuntimeError as error:
                    progress(f"blend: {name}, r = {ratio:g}: failed: {error}")
                    break
                _tell(report, name, ratio, n_documents, answers, alone, targets, progress)


def _alone(engine: Any, seeds: Iterator[int], repeats: int, n: int, document: int) -> list[float]:
    """New documents every time: its own prefix cache finds nothing."""
    asked = (
        engine.documents(seed=next(seeds), question=next(seeds), order=list(range(n)),
                         n_tokens=document, n_question=QUESTION)
        for _ in range(repeats)
    )  # fmt: skip
    return [one["seconds"] for one in asked]


def _known(engine: Any, name: str, seed: int, n: int, document: int, progress: Any) -> None:
    """Computes the documents, and asks until all of them are found (and are in a device pool)."""
    for turn in range(3):
        order = list(range(n)) if turn == 0 else list(reversed(range(n)))
        told = engine.documents(seed=seed, question=seed + 900 + turn, order=order,
                                n_tokens=document, n_question=QUESTION,
                                wishes={"ratio": 0.0, "selector": "none"}, pause_s=1.0)  # fmt: skip
        progress(f"blend: {name}: {n} documents, turn {turn}: {_short(told)}")


def _asked(
    engine: Any, seed: int, other: int, repeats: int, n: int, document: int, ratio: float
) -> list[dict[str, Any]]:
    """The documents in another order each time, with another question; the first is not counted:
    kernels of this size may still be compiled."""
    selector = "query" if ratio else "none"
    answers = []
    for turn in range(repeats + 1):
        order = [(7 * i + 3 + turn) % n for i in range(n)]
        if len(set(order)) < n:
            order = [(i + 1 + turn) % n for i in range(n)]
        answers.append(
            engine.documents(seed=seed, question=other + turn, order=order, n_tokens=document,
                             n_question=QUESTION, wishes={"ratio": ratio, "selector": selector})
        )  # fmt: skip
    return answers[1:]


def _short(answer: dict[str, Any]) -> str:
    told = answer.get("told") or {}
    keys = ("blended", "n_reused", "n_exact", "n_recomputed", "n_filled", "n_failed", "n_new",
            "reasons", "reason", "seconds", "wait_s")  # fmt: skip
    facts = ", ".join(f"{key} {told[key]}" for key in keys if told.get(key) not in (None, "", 0))
    return f"{1e3 * answer['seconds']:.1f} ms, {answer['found']} found; {facts or 'no report'}"


def _tell(
    report: Report,
    name: str,
    ratio: float,
    n: int,
    answers: list[dict[str, Any]],
    alone: list[float],
    targets: dict[int, float],
    progress: Any,
) -> None:
    seconds = [one["seconds"] for one in answers]
    progress(f"blend: {name}, r = {ratio:g}, {n} documents: {ms(seconds)}; {_short(answers[-1])}")
    inside = [(one.get("told") or {}).get("seconds", 0.0) for one in answers]
    report.samples[f"blend {name} {ratio:g} {n}"] = dict(answers=answers, alone=alone)
    median, base = statistics.median(seconds), statistics.median(alone)
    case = f"{n} documents in a new order, r = {ratio:g}, {WHERE[name]}"
    if not all((one.get("told") or {}).get("blended") for one in answers):
        progress(f"blend: {case}: not blended, no row")
        return
    report.add(f"{case} ({1e3 * statistics.median(inside):.0f} ms in the blend)", 1e3 * median,
               "ms", "vLLM alone", baseline=1e3 * base, ratio=base / median,
               target=targets.get(n) or None, at_least=True)  # fmt: skip
