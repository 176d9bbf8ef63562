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
import hashlib
import zlib
from collections import Counter, OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
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
from .graphs import BEHIND, LayerGraphs, cuda_graphs
from .kernels import OwnKernels
from .learning import LearnTime
from .model import ModelParts, model_info, take_apart
from .places import Pages, Staging
from .primer import primer_tokens
from .shape import Refused
from .stopwatch import Stopwatch
from .turns import HELD_S, Steps, Turns
from .worth import device_events

__all__ = ["BlendWorker"]

logger = init_logger("vllm.tessera")
_SALTS_MAX = 16  # tenants whose spaces are kept open; more than lanes
_GRAPHS_ROOM = 3 << 30  # bytes that must be free for graphs: ours take a few hundred MB
_BEGIN, _LAYER, _DEVIATION, _NARROW, _END, _DONE, _FAILED, _LOGITS = range(1, 9)


@dataclass(frozen=True)
class _Lane:
    """Where one blend at a time is computed."""

    place: Pages | Staging
    executor: BlendExecutor


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
        self._kernels = OwnKernels(self._parts)
        place = self._open_place(n_blocks)
        lane = _Lane(place, BlendExecutor(self._parts, place, self._open_attention()))
        self._lanes = self._open_graphs(vllm_config, lane) or [lane]  # that are free
        self._ranks: _Agreed | None = None
        if self._world > 1:
            lane.executor.needs_logits = self._rank == 0
            self._ranks = _Agreed(lane.executor, group.cpu_group, self._world)
        self._blends: OrderedDict[bytes, Blend] = OrderedDict()
        self._used: Counter[Blend] = Counter()  # by blends under way
        self._old: set[Blend] = set()  # to be cleared and closed when they are not used any more
        self._era = b""
        self._complaints: set[str] = set()
        learn_time = LearnTime(HELD_S, event=device_events(self._parts.device))
        n, n_layers = len(self._lanes), len(self._parts.layers)
        watch = Stopwatch(event=device_events(self._parts.device))
        self._turns = Turns(self._steps, n, n_layers, learn_time, self._complain, watch)
        self._ended: list[BlendOutcome] = []  # that nobody has asked for yet
        self._threads = ThreadPoolExecutor(n, "tessera-blend")
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

    def _open_graphs(self, vllm_config: Any, lane: _Lane) -> list[_Lane] | None:
        """Lanes in place of this one, whose layers of small passes are recorded and computed
        together; None: each kernel is queued by itself. Ranks queue all of them: their layers wait
        for each other. An engine that was told to have no graphs has none of ours; nor has one that
        can sleep: it opens us while torch allocates from a pool that it puts to sleep, and graphs
        are not to be recorded in there."""
        pages, parts = lane.place, self._parts
        if not isinstance(pages, Pages) or self._world > 1 or len(parts.layers) < 2:
            return None
        if getattr(vllm_config.model_config, "enable_cumem_allocator", False):
            return None
        mode = vllm_config.compilation_config.cudagraph_mode
        if lane.executor.attention.fused is None or mode is None or mode.name == "NONE":
            return None
        # Before vLLM records its own graphs, which an engine without us has room for.
        free, _all = torch.cuda.mem_get_info(parts.device)
        if free < _GRAPHS_ROOM:
            logger.warning(
                "tessera: blending without CUDA graphs, which is slower: %d MiB of the device are "
                "free, less than %d",
                free >> 20,
                _GRAPHS_ROOM >> 20,
            )
            return None
        try:
            with self._kernels.used(), torch.inference_mode():
                places = pages.lanes(self._settings.at_once, BEHIND)
                made = LayerGraphs(parts, places, cuda_graphs(parts.device))
                executors = [BlendExecutor(parts, one, lane.executor.attention) for one in places]
                why = made.off(executors)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        if why is not None:
            logger.warning("tessera: blending without CUDA graphs, which is slower: %s", why)
            return None
        for executor, recorded in zip(executors, made.lanes):
            executor.recorded = recorded
        logger.info("tessera: layers of blends recorded in %.1f s", made.seconds)
        return [_Lane(*one) for one in zip(places, executors)]

    @property
    def model(self) -> bytes:
        """struct tsr_model_info, to open the same space."""
        return bytes(self._info)

    def close(self) -> None:
        """Before the cache is closed. May be called twice."""
        self._turns.close()
        self._threads.shutdown()
        while self._blends:
            self._blends.popitem()[1].close()

    def run(self, job: BlendJob) -> BlendOutcome:
        """All of it, now. Never raises."""
        self.add(job)
        outcomes = self.advance(learn=False)
        (mine,) = [one for one in outcomes if one.number == job.number]
        self._ended += [one for one in outcomes if one is not mine]
        return mine

    def add(self, job: BlendJob) -> None:
        """A blend to be done by advance()."""
        self._turns.add(job)

    def drop(self, number: int) -> bool:
        """Nobody waits for this blend any more. True: nothing writes into its blocks from now on.
        False: it is not there, or it waits for a tier, and advance() says when it has stopped.
        Passes that it has ended are stored. Several ranks drop none: all of them must do the same,
        and do all of a blend in one step."""
        if self._world > 1:
            return False
        with torch.inference_mode():
            return self._turns.drop(number)

    @property
    def busy(self) -> bool:
        return bool(self._turns or self._ended)

    def advance(
        self, budget: int | None = None, wait_s: float = 0, learn: bool = True
    ) -> list[BlendOutcome]:
        """Goes on with what was added, for so many tokens through all layers, and waits so long for
        loads and stores; None: to the end, `learn` False: of what somebody waits for. wait_s is 0
        beside other requests: what takes longer than a moment goes on in another step. Returns what
        has ended. Never raises.

        Ranks do all of it at once: they would have to stop at the same step, and what one of them
        waits for the others do not know."""
        ended, self._ended = self._ended, []
        if not self._turns:
            return ended
        with self._kernels.used(), torch.inference_mode():
            return ended + self._turns.advance(None if self._world > 1 else budget, wait_s, learn)

    def _steps(self, job: BlendJob) -> Steps:
        lane = self._lanes.pop()
        try:
            report = yield from self._blend(job, lane)
            if not job.learn:
                lane.place.hand_over(job.given)
            return report
        finally:
            lane.place.rest()
            self._lanes.append(lane)

    def _complain(self, error: Exception) -> None:
        what = f"{type(error).__name__}: {error}"
        if len(self._complaints) < 16 and what not in self._complaints:
            self._complaints.add(what)
            logger.warning("tessera: a blend failed, vLLM computes the prompt: %s", what)

    def _blend(self, job: BlendJob, lane: _Lane) -> Steps:
        question = job.given > job.n_context
        lane.executor.question = job.n_context if question else None
        selector = job.selector or self._settings.selector
        ratio = job.ratio if job.ratio is not None else self._settings.ratio
        try:
            blend = self._opened(job.salt)
            more = max(blend.n_primer, blend.n_draft if question else 0)
            n_behind = len(job.tokens) // 4 - job.n_context + more
            blocks = job.context_blocks(self._block)
            lane.place.prepare(blocks, self._block, job.n_context, n_behind)
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
            # Others compute meanwhile, and passes that followed their loads would hold the step.
            loaded=self._settings.at_once > 1 and self._turns.beside,
        )
        self._used[blend] += 1
        try:
            return (yield from self._run(blend, ask, lane))
        except _Apart:
            # What one rank has lost the others would keep, and so be apart forever.
            self._forget(blend, ask)
            return (yield from self._run(blend, ask, lane))
        finally:
            self._used -= Counter([blend])
            if blend in self._old and blend not in self._used:
                self._drop(blend)

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

    def _run(self, blend: Blend, ask: Ask, lane: _Lane) -> Steps:
        layout, ranks, paged = lane.place.layout(), self._ranks, lane.place.paged()
        if ranks is None:
            return (yield from self._in_pieces(blend.start(ask, layout, lane.executor, paged)))
        try:
            report = blend.run(ask, layout, ranks, paged)
        except _Apart:
            raise
        except Exception:
            ranks.agree(_FAILED)
            raise
        ranks.agree(_DONE)
        return report

    def _in_pieces(self, run: BlendRun) -> Steps:
        """What takes long without computing is waited for by a thread: documents that arrive while
        nothing is computed, and what is stored after a pass."""
        waiting: Future[bool] | None = None
        try:
            while True:
                if run.in_pass:
                    more = run.next()
                else:
                    waiting = self._threads.submit(run.next)
                    yield waiting
                    more = waiting.result()
                    if more:
                        yield None
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
                self._drop(self._blends.popitem()[1])
        blend = self._blends.get(salt)
        if blend is None:
            if len(self._blends) >= _SALTS_MAX:
                idle = next(key for key, one in self._blends.items() if one not in self._used)
                self._blends.pop(idle).close()
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

    def _drop(self, blend: Blend) -> None:
        """Now, or when the last blend that uses it has ended. What cannot be cleared is found by
        nobody."""
        if blend in self._used:
            self._old.add(blend)
            return
        self._old.discard(blend)
        with contextlib.closing(blend), contextlib.suppress(Exception):
            blend.clear()


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
