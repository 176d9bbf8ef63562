"""Where the K and V of a prompt are in vLLM while it is blended (compute/places.py).

Pages: those that vLLM has given to the request. The library's device writes into them, vLLM's own
kernel does for rows that were computed, and one layer at a time is gathered for the attention,
unless that reads pages itself (paged.py). Only what follows the context, the question and the
primer, has memory of ours; the usual amount of it stays where it is, for graphs (graphs.py).
Several prompts at a time are in lanes.

Staging: a contiguous copy of the whole prompt, for pages whose format is not known here (vLLM on a
CPU packs them for the processor). vLLM's own attention writes it into the pages afterwards.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import _c as c
from .._connector import Strides
from ..blend import Paged
from ..compute.parts import ModelParts, Refused
from ..compute.places import Contiguous, Place, Rows, kv_layout, sent
from .paged import Keys
from .planes import check_forms, find_strides

__all__ = ["Pages", "Place", "Places", "Rows", "Staging"]

_DEFAULT_STREAM = 1  # as CUDA names it where 0 stands for none


@dataclass(frozen=True)
class Places:
    """Where rows are in pages: the first n in slots of the caches, the others behind them."""

    of: torch.Tensor  # the request's slots that this was made from
    n: int
    inside: torch.Tensor
    after: torch.Tensor


class Staging(Contiguous):
    """A contiguous copy, which vLLM's own attention writes into the pages."""

    def __init__(self, parts: ModelParts) -> None:
        super().__init__(parts)
        self._slots = torch.empty(0, dtype=torch.int64)

    def prepare(
        self, blocks: Sequence[int], block_tokens: int, n_context: int, n_behind: int
    ) -> None:
        """The next request: its blocks, and how many slots it needs."""
        self._slots = _slots_of(blocks, block_tokens)
        self.fit(n_context + n_behind)

    def hand_over(self, n_tokens: int) -> None:
        """Writes so many tokens into the request's pages, the way that vLLM does."""
        if len(self._slots) < n_tokens:
            raise ValueError(f"{len(self._slots)} slots for {n_tokens} tokens")
        slots = self._slots[:n_tokens]
        for layer, (keys, values) in zip(self._parts.layers, self.kv):
            attn: Any = layer.self_attn.attn
            rows = keys[:n_tokens], values[:n_tokens]
            attn.impl.do_kv_cache_update(attn, *rows, attn.kv_cache, slots)


@dataclass
class _Scratch:
    """K and V of a layer, gathered: valid until the next call, so that lanes share it."""

    kv: torch.Tensor


class Pages:
    """The pages of one request at a time. `caches`: vLLM's tensor of each layer; `strides`: where K
    and V are in all of them (planes.py), in blocks of `block` tokens."""

    lane = 0

    def __init__(
        self,
        parts: ModelParts,
        caches: Sequence[torch.Tensor],
        strides: tuple[Strides, Strides],
        block: int,
    ) -> None:
        self._parts = parts
        self._caches = tuple(caches)
        self._strides = strides
        self.block = block
        dim = parts.head_dim
        keys, values = strides
        self._planes = [tuple(self._plane(cache, at, dim) for at in strides) for cache in caches]
        # Side by side, K and V of a token are gathered at once.
        beside = replace(keys, first=keys.first + dim) == values and keys.element == 1
        self._both = [self._plane(one, keys, 2 * dim) for one in caches] if beside else None
        item, n = caches[0].element_size(), len(caches)
        self._bases = [
            (ctypes.c_void_p * n)(*[cache.data_ptr() + at.first * item for cache in caches])
            for at in strides
        ]
        self._scratch = _Scratch(torch.empty(0))
        self.n_context = 0
        self.slots = torch.empty(0, dtype=torch.int64)  # of the context's tokens, in the caches
        self._slots = self._blocks = torch.empty(0)
        self._kv_behind = torch.empty(0)  # of all lanes
        self._tables = torch.zeros(
            (1, -(-parts.context // block)), dtype=torch.int64, device=parts.device
        )  # of all lanes: the blocks of a request first
        # Slots from n_context on, in `usual` where they fit.
        self.usual, self._large = Staging(parts), Staging(parts)
        self.behind = self._large

    @classmethod
    def of(
        cls, parts: ModelParts, caches: Sequence[torch.Tensor], n_blocks: int, block_tokens: int
    ) -> Pages:
        """Finds out where K and V are, in memory of its own. Refused: that is not known. Kernels
        may see a block of the engine as several small ones, which the tensors then count."""
        first = caches[0]
        attns: list[Any] = [layer.self_attn.attn for layer in parts.layers]
        check_forms(attns, caches)
        n = first.shape[0]
        block = block_tokens * n_blocks // n if n and n % n_blocks == 0 else 0
        if not block or block & (block - 1):
            raise Refused(f"KV pages of shape {tuple(first.shape)}")
        return cls(parts, caches, find_strides(attns[0], first, n, block, parts), block)

    def lanes(self, n: int, n_behind: int) -> list[Pages]:
        """Places for so many requests at a time, in the same caches; each has n_behind slots behind
        its context that stay where they are."""
        parts = self._parts
        shape = (len(parts.layers), 2, n * n_behind, parts.n_kv_heads, parts.head_dim)
        behind = torch.zeros(shape, dtype=parts.dtype, device=parts.device)
        tables = self._tables.new_zeros((n, self._tables.shape[1]))
        made = []
        for lane in range(n):
            one = copy.copy(self)
            one.lane, one._kv_behind, one._tables = lane, behind, tables
            one.usual, one._large = Staging(parts), Staging(parts)
            one.usual.use(behind[:, :, lane * n_behind : (lane + 1) * n_behind])
            one.behind = one._large
            made.append(one)
        return made

    def _plane(self, cache: torch.Tensor, at: Strides, dim: int) -> torch.Tensor:
        """[blocks, tokens, heads, dim]"""
        shape = (cache.shape[0], self.block, self._parts.n_kv_heads, dim)
        steps = (at.block, at.token, at.head, at.element)
        return cache.as_strided(shape, steps, cache.storage_offset() + at.first)

    def prepare(
        self, blocks: Sequence[int], block_tokens: int, n_context: int, n_behind: int
    ) -> None:
        """The next request: the engine's blocks of its context, and how many slots follow it."""
        slots = _slots_of(blocks, block_tokens)
        if len(slots) < n_context:
            raise ValueError(f"{len(blocks)} blocks for a context of {n_context} tokens")
        if n_context and int(slots.max()) >= self._caches[0].shape[0] * self.block:
            raise ValueError(f"block {max(blocks)} is not in the KV cache")
        self.n_context = n_context
        self.slots = slots[:n_context].contiguous()
        device = self._parts.device
        self._slots = sent(slots, device)
        # Kernels may see a block of the engine as several small ones.
        n_blocks = -(-n_context // self.block)
        table = self._tables[self.lane]
        if n_blocks > len(table):
            raise ValueError(f"a context of {n_context} tokens, which is too long for the model")
        self._blocks = table[:n_blocks]
        self._blocks.copy_(sent(slots[:: self.block][:n_blocks] // self.block, device))
        # The last slot of the usual ones is nobody's: rows that have no place there go to it.
        self.behind = self.usual if n_behind < self.usual.n_slots else self._large
        self.behind.fit(n_behind)
        self._scratch.kv = torch.empty(0)

    def hand_over(self, n_tokens: int) -> None:
        """The context is there; the question's first tokens follow it, up to n_tokens of all."""
        n = n_tokens - self.n_context
        if n <= 0:
            return
        if len(self._slots) < n_tokens:
            raise ValueError(f"{len(self._slots)} slots for {n_tokens} tokens")
        slots = self._slots[self.n_context : n_tokens]
        for layer, (keys, values) in enumerate(self.behind.kv):
            self.write(layer, keys[:n], values[:n], slots)

    def rest(self) -> None:
        self._large.rest()
        self._scratch.kv = torch.empty(0)

    def keys(self, layer: int) -> Keys:
        """Those of a layer, of all lanes, where they are while what follows a context is in the
        usual place."""
        (keys, values), (keys_behind, values_behind) = self._planes[layer], self._kv_behind[layer]
        return Keys(keys, values, keys_behind, values_behind, self._tables)

    def put(self, layer: int, rows: Rows, keys: torch.Tensor, values: torch.Tensor) -> None:
        at = self.places(rows)
        n = at.n
        if n == len(rows):
            self.write(layer, keys, values, at.inside)
            return
        if n:
            self.write(layer, keys[:n], values[:n], at.inside)
        for plane, fresh in zip(self.behind.kv[layer], (keys, values)):
            plane.index_copy_(0, at.after, fresh[n:])

    def take(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        at = self.places(rows)
        where = at.inside // self.block, at.inside % self.block
        keys, values = (
            torch.cat([plane[where], behind.index_select(0, at.after)])
            for plane, behind in zip(self._planes[layer], self.behind.kv[layer])
        )
        return keys, values

    def seen(self, layer: int, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        parts, dim, size = self._parts, self._parts.head_dim, self.block
        n_all = len(self._blocks) * size + self.behind.n_slots
        if len(self._scratch.kv) < n_all:
            shape = (n_all, parts.n_kv_heads, 2 * dim)
            self._scratch.kv = torch.empty(shape, dtype=parts.dtype, device=parts.device)
        gathered = self._scratch.kv
        a, b = first // size, -(-min(end, self.n_context) // size)
        if a < b:
            out = gathered[a * size : b * size].view(b - a, size, parts.n_kv_heads, 2 * dim)
            if self._both is not None:
                torch.index_select(self._both[layer], 0, self._blocks[a:b], out=out)
            else:
                for half, plane in zip(out.split(dim, -1), self._planes[layer]):
                    half.copy_(plane.index_select(0, self._blocks[a:b]))
        if end > self.n_context:  # over what the last block holds after the context
            n = end - self.n_context
            after = gathered[self.n_context : end].view(n, parts.n_kv_heads, 2, dim)
            after.copy_(self.behind.kv[layer][:, :n].permute(1, 2, 0, 3))
        return gathered[..., :dim], gathered[..., dim:]

    def layout(self) -> c.KvLayout:
        """The caches, for the library: slots are those of `slots`."""
        first = self._caches[0]
        item = first.element_size()
        layout = kv_layout(self._parts, first.shape[0] * self.block)
        layout.block_tokens = self.block
        for i, at in enumerate(self._strides):
            plane = layout.planes[i]
            plane.layers = ctypes.cast(self._bases[i], type(plane.layers))
            plane.block_stride = at.block * item
            plane.head_stride = at.head * item
            plane.token_stride = at.token * item
            plane.element_stride = at.element * item
        return layout

    def paged(self) -> Paged:
        device, compute = self._parts.device, 0
        if device.type == "cuda":
            compute = torch.cuda.current_stream(device).cuda_stream or _DEFAULT_STREAM
        return Paged(self.slots.numpy().tobytes(), self.behind.layout(), compute)

    def places(self, rows: Rows) -> Places:
        """Where these rows are."""
        if rows.places is None or rows.places.of is not self._slots:
            n = int(torch.searchsorted(rows.host, self.n_context))
            inside, after = self._slots[rows.device[:n]], rows.device[n:] - self.n_context
            rows.places = Places(self._slots, n, inside, after)
        found: Places = rows.places
        return found

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """K and V may be parts of one tensor, as vLLM's own layers give them to its kernel. Rows
        whose slot is -1 are not written."""
        attn: Any = self._parts.layers[layer].self_attn.attn
        attn.impl.do_kv_cache_update(attn, keys, values, self._caches[layer], slots)


def _slots_of(blocks: Sequence[int], block_tokens: int) -> torch.Tensor:
    ids = torch.tensor(blocks, dtype=torch.int64)
    return (ids[:, None] * block_tokens + torch.arange(block_tokens)).flatten()
