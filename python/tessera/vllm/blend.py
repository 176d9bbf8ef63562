"""A worker's blends: contexts put into vLLM's KV cache from documents that were computed once.

For each BlendJob the library plans and loads (tessera.blend), and the model's own modules compute
what must be computed (executor.py): on a GPU in the pages of the request themselves, on a CPU in a
copy that vLLM's own attention writes into them afterwards (places.py). vLLM goes on with the
question as if it had computed all of it.

Whatever goes wrong costs the blend, never the request: the outcome is not ok, the caller names the
blocks as invalid, and vLLM computes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import math
import time
import zlib
from collections import OrderedDict, deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from vllm.distributed.parallel_state import get_tp_group
from vllm.logger import init_logger

from .. import _c as c
from .._connector import ModelShape
from ..blend import Ask, Blend, BlendRun, Executor, pass_table
from ..blend_job import BadBlend, BlendJob, BlendOutcome, BlendSettings, space_salt
from ..compute.attention import Attention
from ..compute.executor import BlendExecutor
from ..owner import EngineCache
from . import fused, plugin
from .learning import LearnTime
from .model import ModelParts, model_info, take_apart
from .places import Pages, Staging
from .primer import primer_tokens
from .shape import Refused

__all__ = ["BlendWorker"]

logger = init_logger("vllm.tessera")
_SALTS_MAX = 16  # tenants whose spaces are kept open
_LEARN_TOKENS = 512  # of a step that other requests are in, for text that nobody waits for
_HELD_S, _HELD_ALONE_S = 0.025, 0.1  # that a step may be held, beside other requests and alone
# What a blend does between two places where it may pause: rows through a layer, or something that
# it waits for. Its end is the report.
_Report = dict[str, "float | int | str"]
_Steps = Generator["int | Future[bool]", None, _Report]
_BEGIN, _LAYER, _DEVIATION, _NARROW, _END, _DONE, _FAILED, _LOGITS = range(1, 9)


class BlendWorker:
    """Opened when the KV cache is there. Refused: this engine cannot blend, and why."""

    def __init__(
        self,
        vllm_config: Any,
        shape: ModelShape,
        settings: BlendSettings,
        cache: EngineCache,
        n_blocks: int,
    ) -> None:
        """`n_blocks`: of the engine's KV memory."""
        if not plugin.supported():
            known = ", ".join(version + "*" for version in plugin.VERSIONS)
            raise Refused(f"a vLLM version other than {known}")
        model = plugin.loaded_model()
        if model is None:
            raise Refused(
                "the plug-in was not installed when the model was loaded: run pip install"
            )
        if len(shape.groups) > 1:
            raise Refused("several KV cache groups")
        self._parts = take_apart(model, vllm_config)
        if self._parts.device.type not in ("cpu", "cuda"):
            raise Refused(f"models on {self._parts.device.type}, which was never tested")
        self._block = shape.groups[0].block_tokens
        self._settings = settings
        self._cache = cache
        self._engine_salt = shape.salt
        self._timeout_ms = shape.load_timeout_ms
        group = get_tp_group()
        self._rank, self._world = group.rank_in_group, group.world_size
        self._info = model_info(
            self._parts,
            shape.model,
            hashlib.sha256(shape.weights).digest(),
            hashlib.sha256(shape.identity.encode()).digest()[:16],
        )
        try:
            self._primer = primer_tokens(
                settings.profile, vllm_config.model_config, settings.any_system
            )
        except BadBlend as error:
            raise Refused(str(error)) from error
        self._place = self._open_place(n_blocks)
        self._executor = BlendExecutor(self._parts, self._place, self._open_attention())
        self._ranks: _Agreed | None = None
        if self._world > 1:
            self._executor.needs_logits = self._rank == 0
            self._ranks = _Agreed(self._executor, group.cpu_group, self._world)
        self._blends: OrderedDict[bytes, Blend] = OrderedDict()
        self._era = b""
        self._complaints: set[str] = set()
        self._queue: deque[_Begun] = deque()
        event = functools.partial(torch.cuda.Event, enable_timing=True)
        on_cuda = self._parts.device.type == "cuda"
        self._learn_time = LearnTime(_HELD_S, event=event if on_cuda else None)
        self._thread = ThreadPoolExecutor(1, "tessera-blend")
        # The space in which plain requests are kept as K and V, and what it points to.
        self.traffic: tuple[c.SpaceDesc, Any] | None = None

    @property
    def parts(self) -> ModelParts:
        return self._parts

    def _open_place(self, n_blocks: int) -> Pages | Staging:
        if self._parts.device.type == "cpu":
            return Staging(self._parts)
        layers: Any = self._parts.layers
        caches = [layer.self_attn.attn.kv_cache for layer in layers]
        with torch.inference_mode():
            return Pages.of(self._parts, caches, n_blocks, self._block)

    def _open_attention(self) -> Attention:
        parts = self._parts
        attention = Attention(parts.n_kv_heads, parts.scale)
        if parts.device.type == "cpu":
            return attention
        like = torch.empty((parts.n_heads, parts.head_dim), dtype=parts.dtype, device=parts.device)
        with torch.inference_mode():
            why = fused.usable(attention, like, parts.n_kv_heads)
        if why is None:
            attention.fused = fused.attend
        else:
            logger.warning("tessera: blending with torch's attention, which is slower: %s", why)
        return attention

    @property
    def model(self) -> bytes:
        """struct tsr_model_info, to open the same space."""
        return bytes(self._info)

    def close(self) -> None:
        """Before the cache is closed. May be called twice."""
        while self._queue:
            with contextlib.suppress(Exception):
                self._queue.popleft().close()
        self._thread.shutdown()
        while self._blends:
            self._blends.popitem()[1].close()

    def run(self, job: BlendJob) -> BlendOutcome:
        """All of it, now. Never raises."""
        self.add(job)
        outcomes = self.advance(learn=False)
        return outcomes[-1]

    def add(self, job: BlendJob) -> None:
        """A blend to be done by advance(), after those before it. Nobody waits for documents that
        are stored after an answer: they come last. One that is begun leaves its place, and begins
        anew with what it has not stored."""
        at = len(self._queue)
        if not job.learn:
            at = sum(not begun.job.learn for begun in self._queue)
            if self._queue and self._queue[0].job.learn and self._queue[0].started:
                self._queue[0].paused = True
                at += 1
        self._queue.insert(at, _Begun(job, self._steps(job)))

    def drop(self, number: int) -> bool:
        """Nobody waits for this blend any more. True: nothing writes into its blocks from now on.
        False: it is not there, or it waits for a tier, and advance() says when it has stopped.
        Passes that it has ended are stored. Several ranks drop none: all of them must do the same,
        and do all of a blend in one step."""
        for begun in self._queue if self._world == 1 else ():
            if begun.job.number == number:
                begun.unwanted = True
                return self._stopped(begun, 0)
        return False

    def _stopped(self, begun: _Begun, wait_s: float | None) -> bool:
        """Ends a blend that nobody wants, unless it waits for longer than wait_s."""
        if not begun.rests(wait_s):
            return False
        with torch.inference_mode(), contextlib.suppress(Exception):
            begun.close()
        self._queue.remove(begun)
        if begun.paused and not begun.unwanted:
            at = sum(not one.job.learn for one in self._queue)
            self._queue.insert(at, _Begun(begun.job, self._steps(begun.job)))
        if begun.started:
            self._place.rest()
        return True

    @property
    def busy(self) -> bool:
        return bool(self._queue)

    def advance(
        self, budget: int | None = None, wait_s: float = 0, learn: bool = True
    ) -> list[BlendOutcome]:
        """Goes on with what was added, for so many tokens through all layers, and waits so long for
        loads and stores; None: to the end, `learn` False: of what somebody waits for. wait_s is 0
        beside other requests. Returns what has ended. Never raises.

        Ranks do all of it at once: they would have to stop at the same step, and what one of them
        waits for the others do not know."""
        outcomes = []
        if self._world > 1:
            budget = None
        left = math.inf if budget is None else float(budget * len(self._parts.layers))
        held_s = _HELD_ALONE_S if wait_s else _HELD_S
        until = math.inf if budget is None else time.perf_counter() + held_s
        while self._queue and left > 0 and time.perf_counter() < until:
            begun = self._queue[0]
            if begun.unwanted or begun.paused:
                if not self._stopped(begun, None if budget is None else wait_s):
                    break
                if begun.unwanted:
                    outcomes.append(
                        BlendOutcome(begun.job.number, False, {}, begun.seconds, stopped=True)
                    )
                continue
            beside = begun.job.learn and budget is not None and not wait_s
            if begun.job.learn and not learn:
                break
            if beside:
                if self._learn_time.left_s() <= 0:
                    break
                left = min(left, _LEARN_TOKENS * len(self._parts.layers))
            watch = self._learn_time.piece() if beside else contextlib.nullcontext()
            try:
                with watch, torch.inference_mode():
                    spent = begun.go_on(None if budget is None else wait_s)
            except StopIteration as end:
                outcomes.append(BlendOutcome(begun.job.number, True, end.value, begun.seconds))
            except Exception as error:
                self._complain(error)
                outcomes.append(BlendOutcome(begun.job.number, False, {}, begun.seconds))
            else:
                if spent is None:
                    break
                left -= spent
                continue
            self._queue.popleft()
            self._place.rest()
        return outcomes

    def _steps(self, job: BlendJob) -> _Steps:
        report = yield from self._blend(job)
        if not job.learn:
            self._place.hand_over(job.given)
        return report

    def _complain(self, error: Exception) -> None:
        what = f"{type(error).__name__}: {error}"
        if len(self._complaints) < 16 and what not in self._complaints:
            self._complaints.add(what)
            logger.warning("tessera: a blend failed, vLLM computes the prompt: %s", what)

    def _blend(self, job: BlendJob) -> _Steps:
        question = job.given > job.n_context
        self._executor.question = job.n_context if question else None
        selector = job.selector or self._settings.selector
        ratio = job.ratio if job.ratio is not None else self._settings.ratio
        try:
            blend = self._opened(job.salt)
            more = max(blend.n_primer, blend.n_draft if question else 0)
            n_behind = len(job.tokens) // 4 - job.n_context + more
            blocks = job.context_blocks(self._block)
            self._place.prepare(blocks, self._block, job.n_context, n_behind)
        except Exception:
            self.decline()
            raise
        ask = Ask(
            job.tokens,
            job.segments,
            system=job.system,
            n_context=job.n_context,
            selector=selector,
            ratio=ratio,
            any_offset=job.any_offset,
            timeout_ms=self._timeout_ms,
            plain_salt=job.plain_salt,
            question=question,
            gate=question and selector is None and ratio is None,
            learn=job.learn,
        )
        try:
            return (yield from self._run(blend, ask))
        except _Apart:
            # What one rank has lost the others would keep, and so be apart forever.
            self._forget(blend, ask)
            return (yield from self._run(blend, ask))

    def _forget(self, blend: Blend, ask: Ask) -> None:
        try:
            blend.forget(ask)
        except Exception:
            assert self._ranks is not None
            self._ranks.agree(_FAILED)
            raise

    def decline(self) -> None:
        """This rank will not do what the others are about to, and would wait for it with: nobody
        does it then. Also of a worker that has been closed."""
        if self._ranks is None:
            return
        try:
            self._ranks.agree(_FAILED)
        except _Apart:
            with contextlib.suppress(_Apart):
                self._ranks.agree(_FAILED)  # they try it once more

    def _run(self, blend: Blend, ask: Ask) -> _Steps:
        layout, ranks, paged = self._place.layout(), self._ranks, self._place.paged()
        if ranks is None:
            return (yield from self._in_pieces(blend.start(ask, layout, self._executor, paged)))
        try:
            report = blend.run(ask, layout, ranks, paged)
        except _Apart:
            raise
        except Exception:
            ranks.agree(_FAILED)
            raise
        ranks.agree(_DONE)
        return report

    def _in_pieces(self, run: BlendRun) -> _Steps:
        """What takes long without computing is waited for by a thread: documents that arrive while
        nothing is computed, and what is stored after a pass."""
        waiting: Future[bool] | None = None
        try:
            while True:
                if run.in_pass:
                    more = run.next()
                else:
                    waiting = self._thread.submit(run.next)
                    yield waiting
                    more = waiting.result()
                if not more:
                    break
                yield run.take()
        finally:
            if waiting is not None:
                wait([waiting])
            report = run.end()
        return report

    def _opened(self, salt: bytes) -> Blend:
        era = salt.rpartition(b"/")[0]
        if era != self._era:  # nobody asks for the old ones again (Blending.reset)
            self._era = era
            while self._blends:
                _salt, old = self._blends.popitem()
                with contextlib.closing(old):
                    old.clear()
        blend = self._blends.get(salt)
        if blend is None:
            if len(self._blends) >= _SALTS_MAX:
                self._blends.popitem(last=False)[1].close()
            settings = self._settings
            blend = Blend(
                self._cache.handle,
                self._info,
                settings.profile,
                settings.min_tokens,
                space_salt(self._engine_salt, salt, self._rank, self._world),
                self._primer,
                self.traffic[0] if self.traffic is not None else None,
                settings.any_system,
            )
            self._blends[salt] = blend
        self._blends.move_to_end(salt)
        return blend


class _Begun:
    """A blend that was begun, or will be."""

    def __init__(self, job: BlendJob, steps: _Steps) -> None:
        self.job = job
        self._steps = steps
        self._waiting: Future[bool] | None = None
        self._start: float | None = None
        self.unwanted = False  # its request has ended
        self.paused = False  # somebody waits for another one: it begins anew later

    @property
    def started(self) -> bool:
        return self._start is not None

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start if self._start is not None else 0.0

    def go_on(self, wait_s: float | None) -> int | None:
        """Rows through a layer; None: it waits for what is not there within wait_s (None: however
        long that takes). StopIteration has the report."""
        if self._start is None:
            self._start = time.perf_counter()
        if not self.rests(wait_s):
            return None
        self._waiting = None
        found = next(self._steps)
        if isinstance(found, Future):
            self._waiting = found
            return 0
        return found

    def rests(self, wait_s: float | None) -> bool:
        """False: it still waits for something after wait_s."""
        if self._waiting is None:
            return True
        wait([self._waiting], wait_s)
        return self._waiting.done()

    def close(self) -> None:
        self._steps.close()


class _Apart(Exception):
    """Ranks that were about to do different things."""


class _Agreed:
    """An executor on one of several ranks. Each has its own heads, its own space in the cache and
    its own luck with it, but all must compute the same rows, or they would wait for each other
    forever. So before every step they compare what they are about to do, and when it differs all
    of them give up. Attention and deviation are summed over ranks, so all select the same rows; the
    first rank's logits count for all, so they draft the same answer and a gate decides the same."""

    def __init__(self, inner: Executor, group: Any, world: int) -> None:
        self._inner = inner
        self._group = group
        self._world = world
        self._n_rows = 0
        self._own: Any = None  # this rank's attention of the open pass, and where the sum goes
        self._mass: Any = None

    def agree(self, *facts: int) -> None:
        mine = zlib.crc32(repr(facts).encode())
        both = torch.tensor([mine, -mine], dtype=torch.int64)
        torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MAX, group=self._group)
        if int(both[0]) != -int(both[1]):
            raise _Apart("ranks disagree about the next step")

    def _sum(self, values: Any) -> torch.Tensor:
        total = torch.frombuffer(values, dtype=torch.float32)
        torch.distributed.all_reduce(total, group=self._group)
        return total

    def begin(self, rows: c.ModelPass) -> None:
        bias = (rows.n_bias, rows.n_bias_rows) if rows.bias else ()
        self.agree(_BEGIN, rows.n_mass_rows, zlib.crc32(pass_table(rows)), *bias)
        self._n_rows = rows.n_rows
        self._own = self._mass = None
        self._inner.begin(rows)

    def layer(self, layer: int, mass: Any) -> None:
        self.agree(_LAYER, layer)
        if mass is not None and self._own is None:
            self._own, self._mass = (ctypes.c_float * len(mass))(), mass
        self._inner.layer(layer, self._own if mass is not None else None)

    def deviation(self, layer: int, k: Any, v: Any) -> None:
        self.agree(_DEVIATION, layer)
        self._inner.deviation(layer, k, v)
        for out in (k, v):
            if out:
                address = ctypes.addressof(out.contents)
                self._sum((ctypes.c_float * self._n_rows).from_address(address))

    def narrow(self, keep: Any) -> None:
        self.agree(_NARROW, zlib.crc32(keep))
        self._n_rows = len(keep)
        self._inner.narrow(keep)

    def logits(self, keep: Any, out: Any) -> None:
        """vLLM gathers them on all ranks or on the first one alone."""
        self.agree(_LOGITS, zlib.crc32(keep))
        self._inner.logits(keep, out)
        shared = torch.frombuffer(out, dtype=torch.float32)
        torch.distributed.broadcast(shared, group=self._group, group_src=0)

    def end(self) -> None:
        self._inner.end()
        self.agree(_END)
        if self._own is not None:
            total = self._sum(self._own) / self._world
            torch.frombuffer(self._mass, dtype=torch.float32).add_(total)
        self._own = self._mass = None

    def abandon(self) -> None:
        self._inner.abandon()
