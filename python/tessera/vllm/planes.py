"""Where K and V of a token are in vLLM's pages.

Attention backends lay out a page as they like, and say nowhere how. So vLLM's own kernel writes
single elements into scratch memory of the same strides, which shows the distances between tokens,
heads and elements, and then random rows, which show whether these hold everywhere. Pages that are
packed in another way, as for a matrix unit, are refused: they are stored as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from .. import _c as c
from .._connector import GroupShape, Planes, Strides, plane_layout
from .._lib import rope_text
from .model import ModelParts, kv_dtype
from .shape import Refused

__all__ = ["check_forms", "find_strides", "group_planes", "shard_planes"]

_BLOCKS = 2


class Rows(Protocol):
    """K and V of a token in one layer."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def n_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


@dataclass(frozen=True)
class _AttentionRows:
    dtype: torch.dtype
    n_kv_heads: int
    head_dim: int


def _group_strides(
    group: GroupShape,
    attns: Sequence[Any],
    caches: dict[str, torch.Tensor],
    n_blocks: int,
    rows: Rows,
) -> tuple[Strides, Strides]:
    """Of K and V, the same in all layers."""
    if group.window_tokens:
        raise Refused("sliding windows")
    tensors = [caches[name] for name in group.layers]
    check_forms(attns, tensors)
    return find_strides(attns[0], tensors[0], n_blocks, group.block_tokens, rows)


def _layout(
    group: GroupShape,
    tensors: Sequence[torch.Tensor],
    strides: Sequence[Strides],
    planes: Planes,
    n_blocks: int,
    rope_dims: int,
) -> tuple[c.KvLayout, Any]:
    first = tensors[0]
    return plane_layout(
        [one.data_ptr() for one in tensors],
        strides,
        planes,
        first.element_size(),
        group.block_tokens,
        n_blocks,
        first.device.type != "cpu",
        rope_dims,
    )


def shard_planes(
    group: GroupShape,
    attns: Sequence[Any],
    n_shards: int,
    caches: dict[str, torch.Tensor],
    n_blocks: int,
) -> tuple[Planes, list[tuple[c.KvLayout, Any]]]:
    """The K and V of a rank's heads in n_shards equal parts: the form of a part, and where each of
    them is."""
    tensors = [caches[name] for name in group.layers]
    heads, dim = attns[0].num_kv_heads, attns[0].head_size
    if {(attn.num_kv_heads, attn.head_size) for attn in attns} != {(heads, dim)}:
        raise Refused("KV layers with different heads")
    if heads % n_shards:
        raise Refused(f"{heads} KV heads of a rank in {n_shards} parts")
    rows = _AttentionRows(tensors[0].dtype, heads, dim)
    strides = _group_strides(group, attns, caches, n_blocks, rows)
    planes = Planes(kv_dtype(rows), heads // n_shards, dim, b"")
    layouts = []
    for shard in range(n_shards):
        first_head = shard * planes.n_heads
        parts = [replace(at, first=at.first + first_head * at.head) for at in strides]
        layouts.append(_layout(group, tensors, parts, planes, n_blocks, 0))
    return planes, layouts


def group_planes(
    group: GroupShape, parts: ModelParts, caches: dict[str, torch.Tensor], n_blocks: int
) -> tuple[Planes, tuple[c.KvLayout, Any]]:
    """The K and V of a group as they are stored, and where they are."""
    attns: list[Any] = [layer.self_attn.attn for layer in parts.layers]
    if group.layers != tuple(attn.layer_name for attn in attns):
        raise Refused("KV layers in another order than the model's")
    tensors = [caches[name] for name in group.layers]
    strides = _group_strides(group, attns, caches, n_blocks, parts)
    planes = Planes(kv_dtype(parts), parts.n_kv_heads, parts.head_dim, rope_text(parts.rope))
    return planes, _layout(group, tensors, strides, planes, n_blocks, parts.rope.dims)


def check_forms(attns: Sequence[Any], tensors: Sequence[torch.Tensor]) -> None:
    """Refused: what is true of one layer need not be true of the others."""
    forms = {(one.shape, one.stride(), one.dtype) for one in tensors}
    if len(forms) > 1 or len({type(attn.impl) for attn in attns}) > 1:
        raise Refused("KV layers of different forms")


class _Scratch:
    """Some blocks of a layer, in memory of their own that nothing else uses."""

    def __init__(self, attn: Any, tensor: torch.Tensor, n_blocks: int, parts: Rows) -> None:
        if tensor.dtype != parts.dtype or tensor.shape[0] % n_blocks:
            raise Refused(f"a KV tensor of {tensor.dtype} and shape {tuple(tensor.shape)}")
        shape = (_BLOCKS * (tensor.shape[0] // n_blocks), *tensor.shape[1:])
        n = 1 + sum((size - 1) * step for size, step in zip(shape, tensor.stride()))
        self.flat = torch.zeros(n, dtype=tensor.dtype, device=tensor.device)
        self._cache = self.flat.as_strided(shape, tensor.stride())
        self._attn = attn

    def write(self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        self.flat.zero_()
        self._attn.impl.do_kv_cache_update(self._attn, keys, values, self._cache, slots)


def find_strides(
    attn: Any, tensor: torch.Tensor, n_blocks: int, block_tokens: int, parts: Rows
) -> tuple[Strides, Strides]:
    """Of K and V. Refused: there are none."""
    scratch = _Scratch(attn, tensor, n_blocks, parts)
    found = (
        _measure(scratch, 0, block_tokens, parts),
        _measure(scratch, 1, block_tokens, parts),
    )
    generator = torch.Generator().manual_seed(1)
    n = _BLOCKS * block_tokens
    rows = torch.randn(2, n, parts.n_kv_heads, parts.head_dim, generator=generator)
    rows = rows.to(dtype=tensor.dtype, device=tensor.device)
    scratch.write(rows[0], rows[1], torch.arange(n, device=tensor.device))
    for at, written in zip(found, rows):
        shape = (_BLOCKS, block_tokens, parts.n_kv_heads, parts.head_dim)
        steps = (at.block, at.token, at.head, at.element)
        last = at.first + sum((size - 1) * step for size, step in zip(shape, steps))
        if min(steps) < 1 or last >= scratch.flat.numel():
            raise Refused("pages in which K and V have no rows")
        read = scratch.flat.as_strided(shape, steps, at.first)
        if not torch.equal(read.reshape(written.shape), written):
            raise Refused("pages in which K and V have no rows")
    return found


def _measure(scratch: _Scratch, plane: int, block_tokens: int, parts: Rows) -> Strides:
    def place(slot: int, head: int, element: int) -> int:
        rows = torch.zeros(2, 1, parts.n_kv_heads, parts.head_dim)
        rows[plane, 0, head, element] = 1
        rows = rows.to(dtype=scratch.flat.dtype, device=scratch.flat.device)
        scratch.write(rows[0], rows[1], torch.tensor([slot], device=scratch.flat.device))
        places = scratch.flat.nonzero().flatten().tolist()
        if len(places) != 1:
            raise Refused(f"pages that hold a number {len(places)} times")
        return int(places[0])

    first = place(0, 0, 0)
    return Strides(
        first=first,
        block=place(block_tokens, 0, 0) - first,
        token=place(1, 0, 0) - first if block_tokens > 1 else 1,
        head=place(0, 1, 0) - first if parts.n_kv_heads > 1 else 1,
        element=place(0, 0, 1) - first if parts.head_dim > 1 else 1,
    )
