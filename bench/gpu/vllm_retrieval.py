"""The rows `trace` and `beside` of bench/gpu/vllm: what clients of a retrieval service see.

trace: clients ask the queries of a trace one after the other, each a system prompt, the passages
that a retriever returned, and a question. First with nothing known, as the engine does by default;
then, when all passages are known, again with other questions and the passages of each query in
another order. vLLM alone has its prefix cache.

beside: plain requests decode while prompts of known documents arrive, each in an order of its own.
vLLM alone computes the same prompts in chunks.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vllm_rows import Report
from vllm_side import prompt_tokens

SYSTEM, QUESTION = 32, 32
CLIENTS = 8
PASSAGES = 10  # of a prompt
FASTER = 2.0  # requests per second, over vLLM alone
SLOWEST = 1.5  # time between tokens, p99, over that beside vLLM's own chunked prefill
Passages = list[tuple[int, int]]  # number and tokens of each


def read_trace(path: str | None, n_queries: int, scale: float) -> list[Passages]:
    """Queries of PASSAGES passages each: consecutive lines of the file are joined until there are
    enough. `scale`: of the lengths. Without a file a made-up trace, by Zipf's law."""
    lines: Iterator[Passages]
    if path is None:
        lines = _made_up()
    else:
        rows = (json.loads(line)["chunks"] for line in Path(path).read_text().splitlines())
        lines = iter([[(int(i), int(n)) for i, n in row] for row in rows])
    queries: list[Passages] = []
    found: dict[int, int] = {}
    for line in lines:
        found.update(line)  # a passage comes once, where it came first
        if len(found) >= PASSAGES:
            chosen = list(found.items())[:PASSAGES]
            queries.append([(i, max(int(n * scale), 1)) for i, n in chosen])
            found = {}
        if len(queries) == n_queries:
            break
    return queries


def _made_up() -> Iterator[Passages]:
    chance = random.Random(1)
    numbers = range(2000)
    weights = [1 / (i + 1) for i in numbers]
    lengths = [chance.randrange(100, 200) for _ in numbers]
    while True:
        yield [(i, lengths[i]) for i in chance.choices(numbers, weights, k=PASSAGES)]


def trace_prompts(
    queries: list[Passages],
    seed: int,
    turn: int,
    vocabulary: int,
    wishes: dict[str, Any] | None,
) -> list[dict[str, Any]]:
    """The requests of one turn. Passages keep their order in turn 0."""
    made = []
    for number, passages in enumerate(queries):
        if turn:
            passages = random.Random(f"{turn} {number}").sample(passages, len(passages))
        tokens = prompt_tokens(seed, SYSTEM, vocabulary)
        segments = [(0, len(tokens))]
        for i, n in passages:
            segments.append((len(tokens), n))
            tokens += prompt_tokens(seed + 1 + i, n, vocabulary)
        tokens += prompt_tokens(seed - 1 - number - turn * len(queries), QUESTION, vocabulary)
        marks = None if wishes is None else {**wishes, "segments": segments, "system": True}
        made.append({"tokens": tokens, "wishes": marks})
    return made


def _hits(name: str, prompts: list[dict[str, Any]], answers: list[dict[str, Any]]) -> float:
    """Share of the tokens that nobody computed."""
    n_all = sum(len(one["tokens"]) for one in prompts)
    if name == "alone":
        return sum(one["found"] for one in answers) / n_all
    told = [one["told"] or {} for one in answers]
    n_hits = sum(
        one.get("n_exact", 0) + one.get("n_reused", 0) - one.get("n_filled_reused", 0)
        for one in told
    )
    return float(n_hits) / n_all


def _wishes(ratio: float | None) -> dict[str, Any]:
    """None: what the engine does by default."""
    return {} if ratio is None else {"ratio": ratio, "selector": "query" if ratio else "none"}


def row_trace(
    report: Report,
    up: dict[str, Any],
    seed: int,
    queries: list[Passages],
    n_out: int,
    what: str,
    vocabulary: int,
    progress: Callable[[str], None],
) -> None:
    turns: list[tuple[int, float | None, str]] = [
        (0, None, "nothing known"), (1, 0.05, "all known"), (2, 0.0, "all known")
    ]  # fmt: skip
    rates: dict[tuple[str, int], tuple[float, float]] = {}
    n_tokens = statistics.mean(sum(n for _i, n in one) + SYSTEM + QUESTION for one in queries)
    blending = [name for name in up if name.startswith("blend")]
    for name in ("alone", *blending):
        for turn, ratio, _state in turns:
            prompts = trace_prompts(
                queries,
                seed,
                turn,
                vocabulary,
                None if name == "alone" else _wishes(ratio),
            )
            if turn == 1 and name != "alone":  # whoever says how to blend has the rest computed
                up[name].many(requests=prompts, n_out=1, in_flight=CLIENTS)
            done = up[name].many(requests=prompts, n_out=n_out, in_flight=CLIENTS)
            share = _hits(name, prompts, done["answers"])
            rates[name, turn] = len(prompts) / done["seconds"], share
            first = sorted(one["first_s"] for one in done["answers"])
            report.samples[f"trace {what} {name} {turn}"] = dict(
                seconds=done["seconds"], hits=share, first=first, n=len(prompts)
            )
            n_failed = sum(not (one["told"] or {}).get("blended") for one in done["answers"])
            note = f", {n_failed} not blended" if name != "alone" and n_failed else ""
            progress(
                f"trace, {what}, {name}, turn {turn}: {rates[name, turn][0]:.2f} requests/s, "
                f"{100 * share:.1f} % of tokens reused, first token "
                f"{1e3 * statistics.median(first):.0f} ms{note}"
            )
    for name, (turn, ratio, state) in itertools.product(blending, turns):
        (ours, hits), (base, base_hits) = rates[name, turn], rates["alone", turn]
        case = (
            f"{name}: trace of {len(queries)} retrievals ({what}), {PASSAGES} passages, "
            f"{n_tokens:.0f} tokens, {n_out} out, {CLIENTS} clients, {state}, "
            f"{'by default' if ratio is None else f'r = {ratio:g}'}, "
            f"{100 * hits:.0f} % of tokens reused"
        )
        anchor = f"vLLM with its prefix cache ({100 * base_hits:.0f} % reused)"
        report.add(case, ours, "requests/s", anchor, baseline=base, ratio=ours / base,
                   target=FASTER if turn else None, at_least=True)  # fmt: skip


def row_beside(
    report: Report,
    up: dict[str, Any],
    seeds: Iterator[int],
    rounds: int,
    n_out: int,
    n_documents: int,
    document: int,
    progress: Callable[[str], None],
) -> None:
    seed = next(seeds)
    wishes = {"ratio": 0.05, "selector": "query"}
    documents = {
        "seed": seed,
        "n": n_documents,
        "n_tokens": document,
        "n_question": QUESTION,
    }
    for turn in range(2):  # the first computes the documents
        up["blend"].documents(seed=seed, question=seed + 900 + turn,
                              order=list(range(n_documents)), n_tokens=document,
                              n_question=QUESTION, wishes=wishes, pause_s=1.0)  # fmt: skip
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "without": ("blend", {"documents": None}),
        "computed": ("alone", {"documents": documents}),
        "blended": ("blend", {"documents": documents, "wishes": wishes}),
    }
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for turn in range(rounds):
        names = list(kinds)
        for kind in names[turn % 3 :] + names[: turn % 3]:
            engine, more = kinds[kind]
            one = up[engine].beside(seed=next(seeds), n_requests=16, n_out=n_out, period_s=0.5,
                                    **more)  # fmt: skip
            found[kind].append(one)
            progress(
                f"beside, {kind}: p50 {1e3 * one['p50']:.2f} ms, p99 {1e3 * one['p99']:.2f} ms, "
                f"{one['arrived']} prompts, {one['blended']} blended, first token "
                f"{1e3 * one['first_s']:.0f} ms"
            )
    report.samples["beside"] = found
    what = f"{n_documents} documents of {document} tokens, r = 0.05"
    if not all(one["blended"] == one["arrived"] for one in found["blended"]):
        progress("beside: not all were blended, no row")
        return
    for which in ("p50", "p99"):
        median = {kind: statistics.median(one[which] for one in found[kind]) for kind in kinds}
        case = f"between tokens of 16 requests beside blends of {what}, {which}"
        limit = SLOWEST if which == "p99" else None
        report.ratio(case, median["blended"], "vLLM alone, the same prompts",
                     median["computed"], limit)  # fmt: skip
        report.ratio(case, median["blended"], "without such prompts", median["without"], None)
