"""Where the K and V of a prompt are in vLLM while it is blended (compute/places.py).

Pages: those that vLLM has given to the request. The library's device writes into them, vLLM's own
kernel does for rows that were computed, and one layer at a time is gathered for the attention. Only
what follows the context, the question and the primer, has memory of ours.

Staging: a contiguous copy of the whole prompt, for pages whose format is not known here (vLLM on a
CPU packs them for the processor). vLLM's own attention writes it into the pages afterwards.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import _c as c
from .._connector import Strides
from ..blend import Paged
from ..compute.parts import ModelParts, Refused
from ..compute.places import Contiguous, Place, Rows, kv_layout
from .planes import check_forms, find_strides

__all__ = ["Pages", "Place", "Rows", "Staging"]

_DEFAULT_STREAM = 1  # as CUDA names it where 0 stands for none


@dataclass(frozen=True)
class _Places:
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


class Pages:
    """The pages of one request at a time. `caches`: vLLM's tensor of each layer; `strides`: where K
    and V are in all of them (planes.py), in blocks of `block` tokens."""

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
        self._block = block
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
        self.behind = Staging(parts)  # slots from n_context on
        self.n_context = 0
        self.slots = torch.empty(0, dtype=torch.int64)  # of the context's tokens, in the caches
        self._slots = self._blocks = self._gathered = torch.empty(0)

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

    def _plane(self, cache: torch.Tensor, at: Strides, dim: int) -> torch.Tensor:
        """[blocks, tokens, heads, dim]"""
        shape = (cache.shape[0], self._block, self._parts.n_kv_heads, dim)
        steps = (at.block, at.token, at.head, at.element)
        return cache.as_strided(shape, steps, cache.storage_offset() + at.first)

    def prepare(
        self, blocks: Sequence[int], block_tokens: int, n_context: int, n_behind: int
    ) -> None:
        """The next request: the engine's blocks of its context, and how many slots follow it."""
        slots = _slots_of(blocks, block_tokens)
        if len(slots) < n_context:
            raise ValueError(f"{len(blocks)} blocks for a context of {n_context} tokens")
        if n_context and int(slots.max()) >= self._caches[0].shape[0] * self._block:
            raise ValueError(f"block {max(blocks)} is not in the KV cache")
        self.n_context = n_context
        self.slots = slots[:n_context].contiguous()
        self._slots = slots.to(self._parts.device)
        # Kernels may see a block of the engine as several small ones.
        n_blocks = -(-n_context // self._block)
        self._blocks = (slots[:: self._block][:n_blocks] // self._block).to(self._parts.device)
        self.behind.fit(n_behind)
        self._gathered = torch.empty(0)

    def hand_over(self, n_tokens: int) -> None:
        """The context is there; the question's first tokens follow it, up to n_tokens of all."""
        n = n_tokens - self.n_context
        if n <= 0:
            return
        if len(self._slots) < n_tokens:
            raise ValueError(f"{len(self._slots)} slots for {n_tokens} tokens")
        slots = self._slots[self.n_context : n_tokens]
        for layer, (keys, values) in enumerate(self.behind.kv):
            self._write(layer, keys[:n], values[:n], slots)

    def rest(self) -> None:
        self.behind.rest()
        self._gathered = torch.empty(0)

    def put(self, layer: int, rows: Rows, keys: torch.Tensor, values: torch.Tensor) -> None:
        at = self._places(rows)
        n = at.n
        if n == len(rows):
            self._write(layer, keys, values, at.inside)
            return
        if n:
            self._write(layer, keys[:n], values[:n], at.inside)
        for plane, fresh in zip(self.behind.kv[layer], (keys, values)):
            plane.index_copy_(0, at.after, fresh[n:])

    def take(self, layer: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        at = self._places(rows)
        where = at.inside // self._block, at.inside % self._block
        keys, values = (
            torch.cat([plane[where], behind.index_select(0, at.after)])
            for plane, behind in zip(self._planes[layer], self.behind.kv[layer])
        )
        return keys, values

    def seen(self, layer: int, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        parts, dim, size = self._parts, self._parts.head_dim, self._block
        n_all = len(self._blocks) * size + self.behind.n_slots
        if len(self._gathered) < n_all:
            shape = (n_all, parts.n_kv_heads, 2 * dim)
            self._gathered = torch.empty(shape, dtype=parts.dtype, device=parts.device)
        a, b = first // size, -(-min(end, self.n_context) // size)
        if a < b:
            out = self._gathered[a * size : b * size].view(b - a, size, parts.n_kv_heads, 2 * dim)
            if self._both is not None:
                torch.index_select(self._both[layer], 0, self._blocks[a:b], out=out)
            else:
                for half, plane in zip(out.split(dim, -1), self._planes[layer]):
                    half.copy_(plane.index_select(0, self._blocks[a:b]))
        if end > self.n_context:  # over what the last block holds after the context
            n = end - self.n_context
            after = self._gathered[self.n_context : end].view(n, parts.n_kv_heads, 2, dim)
            after.copy_(self.behind.kv[layer][:, :n].permute(1, 2, 0, 3))
        return self._gathered[..., :dim], self._gathered[..., dim:]

    def layout(self) -> c.KvLayout:
        """The caches, for the library: slots are those of `slots`."""
        first = self._caches[0]
        item = first.element_size()
        layout = kv_layout(self._parts, first.shape[0] * self._block)
        layout.block_tokens = self._block
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

    def _places(self, rows: Rows) -> _Places:
        if rows.places is None or rows.places.of is not self._slots:
            n = int(torch.searchsorted(rows.host, self.n_context))
            inside, after = self._slots[rows.device[:n]], rows.device[n:] - self.n_context
            rows.places = _Places(self._slots, n, inside, after)
        found: _Places = rows.places
        return found

    def _write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """K and V may be parts of one tensor, as vLLM's own layers give them to its kernel."""
        attn: Any = self._parts.layers[layer].self_attn.attn
        attn.impl.do_kv_cache_update(attn, keys, values, self._caches[layer], slots)


def _slots_of(blocks: Sequence[int], block_tokens: int) -> torch.Tensor:
    ids = torch.tensor(blocks, dtype=torch.int64)
    return (ids[:, None] * block_tokens + torch.arange(block_tokens)).flatten()
