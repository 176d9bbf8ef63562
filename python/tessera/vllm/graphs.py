"""The layers of passes with few rows, as CUDA graphs.

A pass over a hundred rows computes for a few dozen microseconds in each layer, and queuing the
kernels of a layer takes ten times that. So each layer is recorded once, for a few numbers of rows,
and replayed: rows, keys and places are read on the device (paged.py), and rows that fill up a size
see nothing and are written nowhere. The last layer is left to the executor, which needs little of
it. All graphs share their memory, because they run one after the other.

A layer of several prompts is replayed once: reading the weights takes the longest with few rows.
Each prompt has a lane, and their passes begin together and go on layer by layer.

What is recorded is compared with the executor's own layers before it is used.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _c as c
from ..compute.executor import BlendExecutor, finish, project
from ..compute.parts import ModelParts
from ..compute.places import sent
from . import paged
from .places import Pages, Rows

__all__ = ["BEHIND", "Lane", "LayerGraphs", "Record", "cuda_graphs"]

SIZES = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024)  # rows
BEHIND = 1024  # slots behind a context: question, and draft or primer
_TOLERANCE = 0.05  # of the size of the numbers: bf16 rounds in every layer
Work = Callable[[], None]
Record = Callable[[Work], Work]


def cuda_graphs(device: torch.device) -> Record:
    """Records work in CUDA graphs with one memory pool. Other threads go on using the device."""
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream(device)

    def record(work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        engines = torch.cuda.current_stream(device)
        stream.wait_stream(engines)
        try:
            with torch.cuda.graph(
                graph, pool=pool, stream=stream, capture_error_mode="thread_local"
            ):
                work()
        except BaseException:
            # torch leaves its stream in place after a recording that CUDA has given up.
            torch.cuda.set_stream(engines)
            raise
        replay: Work = graph.replay
        return replay

    return record


class Lane:
    """See compute.executor.Recorded: the part of one prompt."""

    def __init__(self, graphs: LayerGraphs, number: int, pages: Pages) -> None:
        self.graphs, self._number, self._pages = graphs, number, pages
        self.n_layers = graphs.n_layers
        self._first = self._n = self._n_weighed = 0  # rows

    def begin(self, rows: Rows, positions: torch.Tensor, hidden: torch.Tensor) -> bool:
        pages = self._pages
        if pages.behind is not pages.usual:
            return False
        facts = paged.Facts(pages.n_context, rows.last + 1, 0)
        at = pages.places(rows)
        first = self.graphs.join(self._number, facts, positions, hidden, rows.device + 1)
        if first is None:
            return False
        self._first, self._n, self._n_weighed = first, len(rows), 0
        self.graphs.place(self._number, first, at.inside, at.after)
        return True

    def mass(self, n: int) -> torch.Tensor:
        return self.graphs.mass(self._number, n)

    def layer(self, layer: int, n_weighed: int) -> None:
        if n_weighed != self._n_weighed:
            self._n_weighed = n_weighed
            self.graphs.weigh(self._number, n_weighed)
        self.graphs.arrive(self._number, layer)

    def state(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.graphs.state(slice(self._first, self._first + self._n))

    def leave(self) -> None:
        self.graphs.leave(self._number, slice(self._first, self._first + self._n))


class LayerGraphs:
    """Layers for the prompts of these lanes together."""

    def __init__(
        self,
        parts: ModelParts,
        lanes: Sequence[Pages],
        record: Record,
        sizes: tuple[int, ...] = SIZES,
    ) -> None:
        """`lanes`: all of Pages.lanes()."""
        self._parts, self._pages, self._sizes = parts, lanes[0], sizes
        self.n_layers = len(parts.layers) - 1
        self._n_behind = lanes[0].usual.n_slots
        why = self._pages.keys(0).why_not
        if why is not None:
            raise ValueError(why)
        device, most = parts.device, sizes[-1]
        weight: Any = parts.embed.weight
        shape = (most, weight.shape[1])
        self._hidden = torch.zeros(shape, dtype=parts.dtype, device=device)
        self._residual = torch.zeros_like(self._hidden)
        self._positions = torch.zeros(most, dtype=torch.int64, device=device)
        self._counts = torch.zeros(most, dtype=torch.int32, device=device)
        self._lanes = torch.zeros(most, dtype=torch.int32, device=device)
        self._inside = torch.full((most,), -1, dtype=torch.int64, device=device)
        self._after = torch.full((most,), self._nowhere(0), dtype=torch.int64, device=device)
        facts = len(lanes), len(paged.Facts._fields)
        self._facts = torch.zeros(facts, dtype=torch.int32, device=device)
        self._mass = torch.zeros((len(lanes), parts.context + self._n_behind), device=device)
        self._size = self._n = self._layer = 0
        self._members: set[int] = set()  # lanes that take part in the passes of now
        self._arrived: set[int] = set()  # of these, at the next layer
        start = time.perf_counter()
        self._replays: dict[tuple[int, int], Work] = {}
        for size in reversed(sizes):  # the largest first: the others fit into its memory
            # Kernels are compiled and chosen now, not while they are recorded. Layers may differ:
            # of quantized models some are often left as they were.
            for layer in range(self.n_layers):
                self._work(layer, size)
            for layer in range(self.n_layers):
                self._replays[layer, size] = record(functools.partial(self._work, layer, size))
        self.seconds = time.perf_counter() - start
        self.n_replayed = self.n_shared = 0  # layers, of all passes; and for several prompts
        self.lanes = [Lane(self, number, pages) for number, pages in enumerate(lanes)]

    def _nowhere(self, lane: int) -> int:
        """The slot of rows that have no place behind their context: nobody's."""
        return (lane + 1) * self._n_behind - 1

    def _work(self, layer: int, n: int) -> None:
        """What is recorded: executor.BlendExecutor.layer() for n rows, in memory that stays."""
        parts, module = self._parts, self._parts.layers[layer]
        hidden, residual, counts = self._hidden[:n], self._residual[:n], self._counts[:n]
        block: Any = module
        normal, rest = block.input_layernorm(hidden, residual)
        q, k, v = (
            one.reshape(n, -1, parts.head_dim)
            for one in project(block.self_attn, parts.head_dim, normal, self._positions[:n])
        )
        self._pages.write(layer, k, v, self._inside[:n])
        at = self._pages.keys(layer)
        at.keys_behind.index_copy_(0, self._after[:n], k)
        at.values_behind.index_copy_(0, self._after[:n], v)
        seen = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        whole = paged.attend(q, at, self._lanes[:n], counts, self._facts, parts.scale, seen)
        paged.look(q, at, counts, self._facts, parts.scale, whole, self._mass)
        out, rest = finish(module, seen.view(n, -1), rest)
        hidden.copy_(out)
        if rest.data_ptr() != residual.data_ptr():
            residual.copy_(rest)

    # ---- of the lanes ---------------------------------------------------------------------------

    def join(
        self,
        lane: int,
        facts: paged.Facts,
        positions: torch.Tensor,
        hidden: torch.Tensor,
        counts: torch.Tensor,
    ) -> int | None:
        """Rows of a pass that begins together with those that have joined before. Returns the first
        of them here; None: others have gone on already, or there are too many."""
        if not self._members:
            self._n = self._size = self._layer = 0
        n = len(hidden)
        if self._size or lane in self._members or self._n + n > self._sizes[-1]:
            return None
        first, self._n = self._n, self._n + n
        rows = slice(first, self._n)
        self._hidden[rows] = hidden
        self._positions[rows] = positions
        self._counts[rows] = counts
        self._lanes[rows] = lane
        told = torch.tensor(facts._replace(end=self._n), dtype=torch.int32)
        self._facts[lane] = sent(told, self._facts.device)
        self._members.add(lane)
        return first

    def place(self, lane: int, first: int, inside: torch.Tensor, after: torch.Tensor) -> None:
        """Where rows are: the first ones in slots of the caches, the others behind the context."""
        border = first + len(inside)
        end = border + len(after)
        self._inside[first:border] = inside
        self._inside[border:end] = -1
        self._after[first:border] = self._nowhere(lane)
        self._after[border:end] = after + lane * self._n_behind

    def mass(self, lane: int, n: int) -> torch.Tensor:
        self._facts[lane, 4:].fill_(n)
        return self._mass[lane, :n].zero_()

    def weigh(self, lane: int, n: int) -> None:
        self._facts[lane, 3:4].fill_(n)

    def arrive(self, lane: int, layer: int) -> None:
        """At a layer, which is replayed when all are there."""
        if layer != self._layer or lane in self._arrived:
            raise RuntimeError(f"lane {lane} at layer {layer}, the others at {self._layer}")
        self._arrived.add(lane)
        self._go_on()

    def _go_on(self) -> None:
        if not self._members or self._arrived != self._members:
            return
        if not self._size:
            self._fill_up()
        self._replays[self._layer, self._size]()
        self.n_replayed += 1
        self.n_shared += len(self._members) > 1
        self._layer += 1
        self._arrived.clear()

    def _fill_up(self) -> None:
        """Rows that fill up a size see nothing and are written nowhere."""
        self._size = next(size for size in self._sizes if size >= self._n)
        self._residual[: self._size].zero_()  # a layer adds the rows to it
        rest = slice(self._n, self._size)
        for whole in (self._hidden, self._positions):
            whole[rest].zero_()
        self._lanes[rest] = self._lanes[self._n - 1]
        self._void(rest)

    def _void(self, rows: slice) -> None:
        self._counts[rows].zero_()
        self._inside[rows].fill_(-1)
        self._after[rows].fill_(self._nowhere(0))

    def state(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        return self._hidden[rows].clone(), self._residual[rows].clone()

    def leave(self, lane: int, rows: slice) -> None:
        """The others go on without it."""
        self._facts[lane].zero_()
        self._members.discard(lane)
        self._arrived.discard(lane)
        if self._members and self._layer < self.n_layers:
            self._void(rows)
            self._go_on()

    # ---- before they are used -------------------------------------------------------------------

    def off(self, executors: Sequence[BlendExecutor]) -> str | None:
        """None: a question behind a few pages gives what an executor gives without graphs, in the
        last lane alone and in all lanes together. Otherwise by how much they differ. `executors`:
        of each lane. Writes into vLLM's null block."""
        generator = torch.Generator().manual_seed(11)
        room = self._parts.context - 4 * self._pages.block  # positions that the model has
        for n in (5, min(self._sizes[-1] // 2, self._n_behind // 2, room)):
            n_lanes = min(len(executors), self._sizes[-1] // n)
            tokens = torch.randint(0, self._parts.n_vocab, (n,), generator=generator).tolist()
            (want,) = self._asked(executors[:1], tokens)
            try:
                for executor, lane in zip(executors, self.lanes):
                    executor.recorded = lane
                found = self._asked(executors[-1:], tokens)
                found += self._asked(executors[:n_lanes], tokens)
            finally:
                for executor in executors:
                    executor.recorded = None
            for got in found:
                for name, plain, replayed in zip(("keys and values", "weights"), want, got):
                    apart = float((replayed - plain).square().mean() / plain.square().mean()) ** 0.5
                    if not apart <= _TOLERANCE:
                        return f"{name} of {n} rows are {apart:.3f} off"
        return None

    def _asked(
        self, executors: Sequence[BlendExecutor], tokens: list[int]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of each executor, K and V of these tokens in the second layer and the last, behind pages
        of noise; and what the last of them look at."""
        parts, n = self._parts, len(tokens)
        places: list[Any] = [executor.place for executor in executors]
        block = self._pages.block
        n_context, n_layers = 3 * block + block // 2, len(parts.layers)
        generator = torch.Generator().manual_seed(12)
        shape = (block, parts.n_kv_heads, parts.head_dim)
        noise = torch.randn(shape, generator=generator).to(parts.device, parts.dtype)
        slots = torch.arange(block, device=parts.device)
        for layer in range(n_layers):
            self._pages.write(layer, noise, noise, slots)
        order = _question(tokens, n_context)
        masses = [(ctypes.c_float * n_context)() for _ in executors]
        there = Rows(torch.arange(n_context, n_context + n), parts.device)
        found = []
        try:
            for executor, pages in zip(executors, places):
                pages.prepare([0] * 4, block, n_context, n)
                executor.question = None
                executor.begin(order)
            for layer in range(n_layers):
                for executor, mass in zip(executors, masses):
                    executor.layer(layer, mass if layer else None)
            for executor, pages, mass in zip(executors, places, masses):
                executor.end()
                kv = torch.stack([torch.stack(pages.take(i, there)) for i in (1, n_layers - 1)])
                found.append((kv.float(), torch.frombuffer(bytearray(mass), dtype=torch.float32)))
        except Exception:
            for executor in executors:
                executor.abandon()
            raise
        finally:
            for layer in range(n_layers):
                self._pages.write(layer, torch.zeros_like(noise), torch.zeros_like(noise), slots)
            for pages in places:
                pages.rest()
        return found


def _question(tokens: list[int], n_context: int) -> c.ModelPass:
    """A pass of these tokens behind a context; the last of them show what they look at."""
    n = len(tokens)
    rows = [c.ModelRow(one, n_context + i, n_context + i) for i, one in enumerate(tokens)]
    group = (c.ModelGroup * 1)()
    group[0].n_rows, group[0].n_ranges = n, 1
    group[0].sees[0] = c.Range(0, n_context + n)
    return c.ModelPass(
        size=ctypes.sizeof(c.ModelPass), rows=(c.ModelRow * n)(*rows), n_rows=n, n_groups=1,
        groups=group, n_mass_rows=min(n, 3),
    )  # fmt: skip
