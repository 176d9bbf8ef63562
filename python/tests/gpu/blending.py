"""Blended prompts in real vLLM on a GPU: what the cases of cases.py check.

Documents are blocks of the engine, so that a document's pages are the same tokens wherever it is.
Plain vLLM in the same engine is what everything is compared with.
"""

from __future__ import annotations

import math
import time
from array import array
from typing import Any

from small_engine import CPU, VOCABULARY, Engine, Pages, Seen, tokens_of, torch

SIZE = 32 if CPU else 16  # of a block
SYSTEM, DOCUMENTS, QUESTION = 2 * SIZE, (20 * SIZE, 7 * SIZE, 33 * SIZE, 12 * SIZE), 21
CONTEXT = SYSTEM + sum(DOCUMENTS)
ORDERS = ((0, 1, 2, 3), (2, 0, 3, 1))
PATIENCE_S = 60
RESET_S = 3  # a reset engine saves nothing until what was under way has ended, at most 2 s
BLEND: dict[str, Any] = dict(host_size="2G", blend={"min_tokens": 1})


class Prompt:
    def __init__(self, order: tuple[int, ...], question: int = 900) -> None:
        texts = [tokens_of(800, SYSTEM)] + [tokens_of(801 + i, DOCUMENTS[i]) for i in order]
        self.tokens: list[int] = []
        self.segments: list[tuple[int, int]] = []
        for text in texts:
            self.segments.append((len(self.tokens), len(text)))
            self.tokens += text
        self.tokens += tokens_of(question, QUESTION)

    def wishes(self, ratio: float, selector: str) -> dict[str, Any]:
        return dict(segments=self.segments, system=True, ratio=ratio, selector=selector)


class Blended:
    """An engine that blends, and what became of each request."""

    def __init__(self, options: dict[str, Any] = BLEND, **more: Any) -> None:
        from tessera.vllm import plugin

        plugin.register()  # as vLLM does by itself where the package is installed
        self.engine = Engine("llama", options, max_model_len=4096, **more)
        blending = self.engine.scheduler.connector._blending
        assert blending is not None and blending.ready, (
            f"blending is off: {self.engine.llm.llm_engine.vllm_config.kv_transfer_config}"
        )
        self.dtype = next(iter(self.engine.tensors.values())).dtype
        strong_weights(plugin.loaded_model())

    def ask(self, prompt: Prompt, ratio: float, selector: str, n_out: int = 4) -> Seen:
        before = dict(self.counters)
        seen = self.engine.ask(prompt.tokens, n_out, prompt.wishes(ratio, selector))
        failed = self.counters.get("blend_failed", 0) - before.get("blend_failed", 0)
        assert not failed, "the blend failed: see the warning above"
        assert seen.found >= CONTEXT, f"{seen.found} of {CONTEXT} tokens were not computed"
        return seen

    @property
    def counters(self) -> dict[str, float]:
        return dict(self.engine.scheduler.connector._blending.counters.values)

    def values(self, pages: Pages) -> dict[int, Any]:
        """By token of the context: K and V of all layers, [layer, head, K and V]."""
        layers = sorted({layer for layer, _end in pages}, key=lambda name: (len(name), name))
        found: dict[int, Any] = {}
        for end in sorted({end for _layer, end in pages}):
            rows = [torch.from_numpy(pages[layer, end].copy()).view(self.dtype) for layer in layers]
            block = torch.stack(rows).view(len(layers), 2, SIZE, -1)
            for i in range(SIZE):
                found[end - SIZE + i] = block[:, :, i]
        return found


def strong_weights(model: Any) -> None:
    """vLLM's random weights are so small that a token hardly depends on those before it, less than
    bf16 rounds."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() < 2:
                weight.fill_(1.0)
                continue
            size = 1.0 if weight.shape[0] >= VOCABULARY else 1.25 * weight.shape[1] ** -0.5
            weight.copy_(torch.randn(weight.shape, generator=generator) * size)


def apart(got: dict[int, Any], want: dict[int, Any], tokens: range) -> float:
    """How far K and V are from others, as a share of their size."""
    a = torch.stack([got[i] for i in tokens]).float()
    b = torch.stack([want[i] for i in tokens]).float()
    return math.sqrt(float((a - b).square().sum() / b.square().sum()))


def reuse(it: Blended) -> None:
    """Everything computed is a prefill; documents are filled, loaded in another order, and bring
    the same V; more recomputed rows are nearer to a prefill."""
    first, second = (Prompt(order) for order in ORDERS)
    plain = it.engine.ask(second.tokens)
    want = it.values(plain.pages)
    it.engine.scribble()
    full = it.ask(second, 1.0, "full")
    off = apart(it.values(full.pages), want, range(CONTEXT))
    print(f"all computed: {off:.4f} from a prefill, answers {full.answer} and {plain.answer}")
    assert off < 0.05, "a prefill of ours is not one of vLLM"
    it.engine.scribble()
    filled = it.ask(first, 0.0, "none")
    print(f"filled: {it.counters}")
    it.engine.scribble()
    loaded = it.ask(second, 0.0, "none")
    it.engine.scribble()
    again = it.ask(second, 0.0, "none")
    same_pages(loaded, again)
    moved_documents(it.values(filled.pages), it.values(loaded.pages), first, second)
    none = apart(it.values(loaded.pages), want, range(CONTEXT))
    for selector, ratio in (("query", 0.05), ("query", 0.5), ("hkvd", 0.5), ("link", 0.5)):
        it.engine.scribble()
        some = apart(it.values(it.ask(second, ratio, selector).pages), want, range(CONTEXT))
        print(f"{selector} {ratio}: {some:.4f} from a prefill, without {none:.4f}")
        assert some < none or ratio < 0.1, "recomputing does not help"
    it.engine.settle()


def same_pages(one: Seen, two: Seen) -> None:
    from small_engine import up_to, wrong_pages

    wrong = wrong_pages(up_to(one.pages, CONTEXT), up_to(two.pages, CONTEXT))
    assert not wrong, f"the same load gives other bytes: {wrong[:8]}"


def moved_documents(
    before: dict[int, Any], after: dict[int, Any], first: Prompt, second: Prompt
) -> None:
    """V of a document has the same bytes wherever it is; K of the first layer is turned."""
    places = {i: first.segments[1 + at] for at, i in enumerate(ORDERS[0])}
    n_wrong = 0
    for at, i in enumerate(ORDERS[1]):
        old, new = places[i][0], second.segments[1 + at][0]
        for k in range(DOCUMENTS[i]):
            a, b = before[old + k], after[new + k]
            dim = a.shape[-1] // 2
            n_wrong += not torch.equal(a[..., dim:], b[..., dim:])
            sizes = a[..., :dim].float().norm(dim=-1), b[..., :dim].float().norm(dim=-1)
            assert torch.allclose(*sizes, rtol=0.02), "K was not turned but changed"
    assert n_wrong == 0, f"V of {n_wrong} tokens is not what was stored"
    print(f"{sum(DOCUMENTS)} tokens in another order: V has the bytes that were stored")


def wait_until_known(it: Blended, tokens: list[int]) -> None:
    """vLLM has its blocks back when they were read; the cache has what was read a little later."""
    blending = it.engine.scheduler.connector._blending
    asked = array("I", tokens), blending._salt(b""), blending._plain_salt("")
    until = time.monotonic() + PATIENCE_S
    while blending.matcher(*asked)[0] < 0.8 * sum(DOCUMENTS):
        assert time.monotonic() < until, f"only {blending.matcher(*asked)} are known"
        it.engine.settle()
        time.sleep(0.01)


def unmarked(it: Blended) -> None:
    """Documents that only a plain request has had are found in another prompt."""
    first, second = Prompt(ORDERS[0]), Prompt(ORDERS[1], 907)
    second.tokens[:SYSTEM] = tokens_of(950, SYSTEM)
    want = it.values(it.engine.ask(second.tokens, 4, {"blend": False}).pages)
    it.engine.settle()
    assert it.engine.llm.reset_prefix_cache(reset_connector=True)  # it would be an exact hit
    time.sleep(RESET_S)
    it.engine.ask(first.tokens)
    wait_until_known(it, second.tokens)
    for ratio, most in ((1.0, 0.05), (0.0, math.inf)):
        it.engine.scribble()
        before = dict(it.counters)
        seen = it.engine.ask(second.tokens, 4, {"ratio": ratio})
        told = f"{it.counters}, {seen.found} tokens were not computed"
        assert it.counters.get("blend_runs", 0) == before.get("blend_runs", 0) + 1, told
        assert it.counters.get("blend_failed", 0) == before.get("blend_failed", 0), it.counters
        off = apart(it.values(seen.pages), want, range(SYSTEM, CONTEXT))
        print(f"unmarked documents, ratio {ratio}: {off:.2e} from a prefill")
        assert off < most, "a prefill of ours is not one of vLLM"
    n_other = it.counters["blend_tokens_other"]
    print(f"{n_other:.0f} of {sum(DOCUMENTS)} tokens from a plain request")
    assert n_other > 0.8 * sum(DOCUMENTS)


def beside_others(it: Blended) -> None:
    """Plain requests decode while prompts are blended: their answers are those they have alone."""
    plain = [tokens_of(300 + i, 150 + 40 * i) for i in range(4)]
    alone = [it.engine.ask(tokens, 24).answer for tokens in plain]
    prompts = [Prompt(order, 901 + i) for i, order in enumerate(ORDERS)]
    for prompt in prompts:
        it.ask(prompt, 0.0, "none")
    wishes = [None] * 4 + [prompt.wishes(0.05, "query") for prompt in prompts]
    seen = it.engine.ask_all(plain + [prompt.tokens for prompt in prompts], 24, wishes)
    n_same = sum(
        one == two.answer for one, two in zip(alone, seen)
    )  # batches round differently, so not all need to be
    print(f"{n_same} of 4 plain answers are the same beside blends")
    for one, two in zip(alone, seen):
        assert one[:4] == two.answer[:4] or n_same >= 2, "plain requests answer something else"
    for two in seen[4:]:
        assert two.found >= CONTEXT


def replayed() -> None:
    """Layers were recorded, and used."""
    lane = _worker_side()._blender._lanes[-1].executor.recorded
    assert lane is not None, "no graphs: see the warning above"
    recorded = lane.graphs
    print(
        f"{recorded.n_replayed} layers replayed, {recorded.n_shared} of them for several prompts, "
        f"recorded in {recorded.seconds:.1f} s"
    )
    assert recorded.n_replayed > 0


def failures(it: Blended) -> None:
    """Wherever a blend fails, the prompt is computed and the answer is that of plain vLLM."""
    prompt = Prompt(ORDERS[1])
    plain = it.engine.ask(prompt.tokens)
    it.ask(Prompt(ORDERS[0]), 0.0, "none")
    blender = _worker_side()._blender
    executor = blender._lanes[-1].executor  # of the next blend
    for name, at in (("begin", 1), ("layer", 1), ("layer", 3), ("end", 1)):
        original, calls = getattr(executor, name), 0

        def broken(*args: Any, _do: Any = original, _at: int = at) -> Any:
            nonlocal calls
            calls += 1
            if calls == _at:
                raise RuntimeError("made to fail")
            return _do(*args)

        setattr(executor, name, broken)
        it.engine.scribble()
        before = it.counters.get("blend_failed", 0)
        seen = it.engine.ask(prompt.tokens, 4, prompt.wishes(0.3, "query"))
        setattr(executor, name, original)
        assert it.counters.get("blend_failed", 0) == before + 1, f"{name} {at} did not fail"
        print(f"{name} {at} fails:", end=" ")
        same_as_computed(it, seen, plain, CONTEXT)
    it.engine.scribble()
    it.ask(prompt, 0.3, "query")


def failed_load(it: Blended) -> None:
    """A plain request whose load fails is computed. Tessera is off afterwards."""
    tokens = tokens_of(960, 1000)
    plain = it.engine.ask(tokens)
    it.engine.scribble()
    worker = _worker_side()
    calls = []

    def broken(*args: Any) -> Any:
        calls.append(args)
        raise OSError("made to fail")

    worker._worker.start = broken
    seen = it.engine.ask(tokens)
    assert calls and worker._trouble, "nothing was loaded"
    print("a load fails:", end=" ")
    same_as_computed(it, seen, plain, 1000 // SIZE * SIZE)


def same_as_computed(it: Blended, seen: Seen, plain: Seen, n_tokens: int) -> None:
    off = apart(it.values(seen.pages), it.values(plain.pages), range(n_tokens))
    print(f"{off:.4f} from a prefill, answers {seen.answer} and {plain.answer}")
    assert off < 0.05, "what failed leaves its bytes"
    n_sure = len(plain.answer) if CPU else 1  # bf16 rounds differently in other batches
    assert seen.answer[:n_sure] == plain.answer[:n_sure], "another answer"


def _worker_side() -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()
