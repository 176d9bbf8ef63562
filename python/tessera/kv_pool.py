"""KV by slots, for engines with a pool of tokens (connector.h): exact prefixes, in whole chunks.

    pool = KvPool(space, k_pool, v_pool)          # of each layer [slot, head, dim]
    pool.store_kv(token_ids, slot_mapping)        # token i is in slot_mapping[i]
    n_pad = n_cached % pool.chunk_size()          # the engine has n_cached tokens, and `free` slots
    n = pool.load_kv(token_ids, [-1] * n_pad + free, offset=n_cached - n_pad)
    pool.reset()
    pool.close()

Pools are numpy arrays, torch tensors in host memory or on CUDA (open the cache with device="cuda"),
or any buffer. `space` finds what they store, too, and the other way round. Tensors on a device are
read and written in the order that KvCache describes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ._buffers import as_tokens
from ._kvpool import open_pool, slots_desc
from ._lib import check, library
from ._slot_memory import SlotMemory
from .cache import Space, _extras

__all__ = ["KvPool"]


class KvPool:
    """An engine's token pool, registered with a space. Calls may come from any thread; close() only
    when no other thread is inside one, and before the cache is closed."""

    def __init__(
        self, space: Space, k_pool: Sequence[Any], v_pool: Sequence[Any] | None = None
    ) -> None:
        """One plane for each layer. Without `v_pool`, `k_pool` has the latent rows of MLA."""
        planes = [k_pool] if v_pool is None else [k_pool, v_pool]
        n_layers = space._desc.n_layers
        if len(planes) != space._planes or any(len(layers) != n_layers for layers in planes):
            what = "K and V" if space._planes == 2 else "the latent rows"
            raise ValueError(f"{what} of {n_layers} layers are required")
        self._lib = library()
        self._handle = ctypes.c_void_p()
        self._memory = memory = SlotMemory(space, planes)
        cache = space._cache._open()
        self._handle = open_pool(
            cache, space._desc, memory.layout, memory.device, memory.device_number
        )

    def __enter__(self) -> KvPool:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """What was stored stays in the cache. May be called twice."""
        self._lib.tsr_kvpool_close(self._handle)
        self._handle = ctypes.c_void_p()

    def _open(self) -> ctypes.c_void_p:
        if not self._handle:
            raise ValueError("the KV pool is closed")
        return self._handle

    def chunk_size(self) -> int:
        """Tokens that are stored and found together: block_tokens of the space, or the option
        chunk_size."""
        return int(self._lib.tsr_kvpool_chunk_size(self._open()))

    def load_kv(
        self,
        token_ids: Any,
        slot_mapping: Any,
        offset: int = 0,
        adapter: str | None = None,
        salt: str | None = None,
    ) -> int:
        """Loads what is cached of token_ids[offset:], up to the first chunk that is not, and
        returns how many tokens that is: whole chunks, 0 for a miss. `slot_mapping` has the slots of
        these tokens; -1: not to be written, but counted. `offset` is a multiple of chunk_size()."""
        return self._move("tsr_kvpool_load_kv", token_ids, slot_mapping, offset, 0, adapter, salt)

    def store_kv(
        self,
        token_ids: Any,
        slot_mapping: Any,
        offset: int = 0,
        adapter: str | None = None,
        salt: str | None = None,
    ) -> int:
        """Stores the whole chunks of token_ids[offset:] that are not cached yet, and returns how
        many tokens are new. `slot_mapping` has the slots of all tokens, also of those before
        `offset`, a multiple of chunk_size()."""
        return self._move(
            "tsr_kvpool_store_kv", token_ids, slot_mapping, offset, offset, adapter, salt
        )

    def reset(self) -> int:
        """Drops everything that the space has in the cache, on every tier; returns how many
        entries."""
        return check(self._lib.tsr_kvpool_reset(self._open()))

    def _move(
        self,
        call: str,
        token_ids: Any,
        slot_mapping: Any,
        offset: int,
        skipped: int,
        adapter: str | None,
        salt: str | None,
    ) -> int:
        handle = self._open()
        _address, count, tokens = as_tokens(token_ids)
        if not 0 <= offset <= count:
            raise ValueError(f"offset {offset} in {count} tokens")
        places = self._memory.places(slot_mapping)
        if len(places) != count - offset + skipped:
            raise ValueError(f"{len(places)} slots for {count - offset + skipped} tokens")
        places = places[skipped:]
        x = slots_desc(tokens, count, offset, places, _extras(adapter, salt, ()))
        self._memory.follow_stream()
        return check(getattr(self._lib, call)(handle, ctypes.byref(x)))
