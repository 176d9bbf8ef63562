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
from dataclasses import dataclass
from typing import Any

import torch

from .. import _c as c
from ..blend import Paged
from ..compute.parts import ModelParts, Refused
from ..compute.places import Contiguous, Place, Rows, kv_layout

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
    """The pages of one request at a time. `caches`: vLLM's tensor of each layer, blocks of
    [heads, tokens, K and V], in any order in memory."""

    def __init__(self, parts: ModelParts, caches: Sequence[torch.Tensor]) -> None:
        self._parts = parts
        first = caches[0]
        self._block = first.shape[2] if first.dim() == 4 else 0
        for cache in caches:
            if (
                cache.dim() != 4
                or cache.shape != first.shape
                or cache.stride() != first.stride()
                or cache.shape[1] != parts.n_kv_heads
                or cache.shape[3] != 2 * parts.head_dim
                or cache.stride(3) != 1
                or cache.dtype != parts.dtype
                or self._block & (self._block - 1)
            ):
                raise Refused(f"KV pages of shape {tuple(cache.shape)} and type {cache.dtype}")
        self._caches = tuple(caches)
        self._by_token = tuple(cache.transpose(1, 2) for cache in caches)
        item, dim = first.element_size(), parts.head_dim
        n = len(caches)
        self._bases = [
            (ctypes.c_void_p * n)(*[cache.data_ptr() + i * dim * item for cache in caches])
            for i in range(2)
        ]
        self.behind = Staging(parts)  # slots from n_context on
        self.n_context = 0
        self.slots = torch.empty(0, dtype=torch.int64)  # of the context's tokens, in the caches
        self._slots = self._blocks = self._gathered = torch.empty(0)

    def check(self) -> None:
        """Refused: what vLLM writes is not where it is read here. Uses vLLM's null block, which no
        request ever has."""
        parts, device = self._parts, self._parts.device
        shape = (self._block, parts.n_kv_heads, parts.head_dim)
        slots = torch.arange(self._block)
        generator = torch.Generator().manual_seed(1)
        for layer in (0, len(self._caches) - 1):
            keys, values = (
                torch.randn(shape, generator=generator).to(parts.dtype).to(device) for _ in range(2)
            )
            page = self._by_token[layer][0]
            page.zero_()
            self._write(layer, keys, values, slots.to(device))
            if not (
                torch.equal(page[..., : parts.head_dim], keys)
                and torch.equal(page[..., parts.head_dim :], values)
            ):
                impl: Any = parts.layers[layer].self_attn.attn.impl
                raise Refused(f"KV pages as {type(impl).__name__} fills them")

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
        at, dim = self._places(rows), self._parts.head_dim
        slots = at.inside
        inside = self._by_token[layer][slots // self._block, slots % self._block]
        keys, values = self.behind.kv[layer]
        return (
            torch.cat([inside[..., :dim], keys.index_select(0, at.after)]),
            torch.cat([inside[..., dim:], values.index_select(0, at.after)]),
        )

    def seen(self, layer: int, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        parts, dim, size = self._parts, self._parts.head_dim, self._block
        n_all = len(self._blocks) * size + self.behind.n_slots
        if len(self._gathered) < n_all:
            shape = (n_all, parts.n_kv_heads, 2 * dim)
            self._gathered = torch.empty(shape, dtype=parts.dtype, device=parts.device)
        a, b = first // size, -(-min(end, self.n_context) // size)
        if a < b:
            out = self._gathered[a * size : b * size].view(b - a, size, parts.n_kv_heads, 2 * dim)
            torch.index_select(self._by_token[layer], 0, self._blocks[a:b], out=out)
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
        for i in range(2):
            plane = layout.planes[i]
            plane.layers = ctypes.cast(self._bases[i], type(plane.layers))
            plane.block_stride = first.stride(0) * item
            plane.head_stride = first.stride(1) * item
            plane.token_stride = first.stride(2) * item
            plane.element_stride = item
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
