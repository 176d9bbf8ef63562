"""tsr_kvpool_* of connector.h: KV by slots, for engines with a pool of tokens and a radix tree."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from . import _c as c
from ._lib import check, library


@dataclass(frozen=True)
class PoolPlane:
    """K or V of all layers: layers[i] is where slot 0 of layer i begins. Strides are in bytes."""

    layers: Sequence[int]
    layer_bytes: int
    token_stride: int
    head_stride: int
    element_stride: int
    n_heads: int
    dim: int


@dataclass(frozen=True)
class PoolShape:
    """A token pool and the model whose KV it holds."""

    model: str
    weights: bytes
    identity: str  # everything else that changes KV and is not in the tokens
    dtype: int  # enum tsr_dtype
    planes: tuple[PoolPlane, ...]  # K and V, or with mla the latent rows
    n_slots: int
    device: str = "cpu"
    device_number: int = 0
    stream: int = 0
    salt: str | None = None
    mla: bool = False
    rank: int = 0  # among `world` ranks with other heads of the same tokens
    world: int = 1


def pool_space(shape: PoolShape) -> tuple[c.SpaceDesc, Any]:
    """Where the pool's tokens are kept, and what that points to."""
    weights = ctypes.create_string_buffer(shape.weights, len(shape.weights))
    keys = shape.planes[0]
    space = c.SpaceDesc(
        size=ctypes.sizeof(c.SpaceDesc),
        model=shape.model.encode(),
        weights=ctypes.addressof(weights) if shape.weights else None,
        weights_bytes=len(shape.weights),
        tokenizer=shape.identity.encode(),
        salt=shape.salt.encode() if shape.salt else None,
        dtype=shape.dtype,
        layout=c.LAYOUT_MLA if shape.mla else c.LAYOUT_STANDARD,
        n_layers=len(keys.layers),
        n_heads=keys.n_heads,
        k_dim=keys.dim,
        v_dim=0 if shape.mla else shape.planes[1].dim,
        rank=shape.rank,
        world=shape.world,
    )
    return space, weights


def open_pool(
    cache: c_void_p,
    space: c.SpaceDesc,
    layout: c.KvLayout,
    device: str,
    device_number: int,
    stream: int = 0,
) -> c_void_p:
    """A struct tsr_kvpool over memory that `layout` points to."""
    lib = library()
    handle = c_void_p()
    desc = c.KvpoolDesc(
        size=ctypes.sizeof(c.KvpoolDesc),
        space=ctypes.pointer(space),
        layout=ctypes.pointer(layout),
        device=device.encode(),
        device_number=device_number,
        stream=stream or None,
    )
    check(lib.tsr_kvpool_open(ctypes.byref(handle), cache, ctypes.byref(desc)))
    return handle


class RadixPool:
    """A struct tsr_kvpool below a radix tree, which names what is being written by its nodes. One
    load at a time, anything else from any thread. tessera.KvPool is for everybody else."""

    def __init__(self, cache: ctypes.c_void_p, shape: PoolShape) -> None:
        self._lib = library()
        self._handle = c_void_p()
        space, _weights = pool_space(shape)
        layout, _keep = _layout(shape)
        self._handle = open_pool(
            cache, space, layout, shape.device, shape.device_number, shape.stream
        )
        self.chunk_tokens = int(self._lib.tsr_kvpool_chunk_size(self._handle))
        self._written = (c_uint64 * 256)()

    def close(self) -> None:
        """Waits for the writer. May be called twice."""
        self._lib.tsr_kvpool_close(self._handle)
        self._handle = c_void_p()

    def match(self, tokens: array[int], extra: Any, lease: int) -> int:
        """The number of cached tokens from the start; they stay until the lease is released."""
        x = slots_desc(tokens, len(tokens), 0, None, extra)
        return check(self._lib.tsr_kvpool_match_prefix(self._handle, ctypes.byref(x), lease))

    def release(self, lease: int) -> None:
        self._lib.tsr_kvpool_release(self._handle, lease)

    def load(
        self, tokens: array[int], count: int, n_cached: int, slots: array[int], extra: Any
    ) -> int:
        """Loads tokens[n_cached:count] into their slots; returns how many were loaded."""
        offset = n_cached // self.chunk_tokens * self.chunk_tokens
        padded = array("q", [-1] * (n_cached - offset)) + slots
        x = slots_desc(tokens, count, offset, padded, extra)
        loaded = check(self._lib.tsr_kvpool_load_kv(self._handle, ctypes.byref(x)))
        return max(0, offset + loaded - n_cached)

    def store_start(self, tokens: array[int], slots: array[int], extra: Any, node: int) -> bool:
        """False: the writer is too busy."""
        x = slots_desc(tokens, len(tokens), 0, slots, extra)
        e = self._lib.tsr_kvpool_store_kv_start(self._handle, ctypes.byref(x), node)
        if e == c.EAGAIN:
            return False
        check(e)
        return True

    def written(self) -> list[int]:
        """Nodes whose writes have finished since the last call."""
        nodes: list[int] = []
        while True:
            count = check(
                self._lib.tsr_kvpool_take_written(self._handle, self._written, len(self._written))
            )
            nodes += self._written[:count]
            if count < len(self._written):
                return nodes

    def drain(self, timeout_ms: int) -> bool:
        """Whether the writer is idle."""
        return bool(self._lib.tsr_kvpool_drain(self._handle, timeout_ms) == 0)

    def reset(self) -> int:
        return check(self._lib.tsr_kvpool_reset(self._handle))


def _layout(shape: PoolShape) -> tuple[c.KvLayout, Any]:
    layout = c.KvLayout(
        size=ctypes.sizeof(c.KvLayout),
        memory=c.MEMORY_DEVICE if shape.device != "cpu" else c.MEMORY_HOST,
        n_layers=len(shape.planes[0].layers),
        n_planes=len(shape.planes),
        n_slots=shape.n_slots,
    )
    keep = []
    for i, plane in enumerate(shape.planes):
        pointers = (c_void_p * len(plane.layers))(*plane.layers)
        keep.append(pointers)
        layout.planes[i] = c.KvPlane(
            layers=pointers,
            layer_bytes=plane.layer_bytes,
            token_stride=plane.token_stride,
            head_stride=plane.head_stride,
            element_stride=plane.element_stride,
            dtype=shape.dtype,
            n_heads=plane.n_heads,
            dim=plane.dim,
        )
    return layout, keep


def slots_desc(
    tokens: array[int], count: int, offset: int, slots: array[int] | None, extra: Any
) -> c.SlotsDesc:
    """Tokens, and the slots of those from `offset` on; it points into both."""
    if tokens.typecode != "I" or not 0 <= offset <= count <= len(tokens):
        raise ValueError(f"tokens {offset} to {count} of {len(tokens)}")
    if slots is not None and (slots.typecode != "q" or len(slots) < count - offset):
        raise ValueError(f"{len(slots)} slots for {count - offset} tokens")
    return c.SlotsDesc(
        size=ctypes.sizeof(c.SlotsDesc),
        tokens=tokens.buffer_info()[0],
        n_tokens=count,
        offset=offset,
        slots=slots.buffer_info()[0] if slots is not None else None,
        extra=extra,
        n_extra=len(extra),
    )
