"""The five calls of a blend server, over an engine's own KV memory (deliver.h).

    kv = KvCache(space, layers, rope=Rope(theta=10000.0, dims=128))    # registers the memory
    kv.store_pre_computed(document, slots)              # computed alone, token i in slots[i]
    found = kv.lookup_pre_computed(prompt, request=7)   # leased until cache.release(7)
    kv.retrieve_pre_computed(found, slots)              # K rotated to its place in the prompt
    kv.store_final(prompt, slots, recipe=b"...")        # found again by its recipe only
    kv.unregister()

`layers` has K and V of every layer, each shaped [slot, head, dim]: numpy arrays, torch tensors in
host memory or on CUDA (open the cache with device="cuda"), or any buffer. The cache may be this
process's or a server's.

Tensors on a device: a call waits for what torch's current stream has queued before it reads or
writes slots, and what it has done is in place when it returns, for any stream. Work on other
streams is the caller's to wait for.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _c as c
from ._buffers import as_tokens
from ._lib import check, library, rope_text
from ._slot_memory import SlotMemory
from .cache import Found, Space, _extras, _Prompt

__all__ = ["KvCache", "Rope"]

_PAIRINGS = {"neox": c.ROPE_NEOX, "gptj": c.ROPE_GPTJ}
_SCALINGS = {
    "plain": c.ROPE_PLAIN,
    "linear": c.ROPE_LINEAR,
    "dynamic": c.ROPE_DYNAMIC,
    "yarn": c.ROPE_YARN,
    "llama3": c.ROPE_LLAMA3,
}


@dataclass(frozen=True)
class Rope:
    """How a model rotates K by its position: `rope_theta` and `rope_scaling` of its configuration.
    `pairing`: neox (element i with i + dims / 2) or gptj (element 2i with 2i + 1)."""

    theta: float
    dims: int
    pairing: str = "neox"
    scaling: str = "plain"
    trained: int = 0
    factor: float = 0.0
    attention_factor: float = 0.0
    beta_fast: float = 0.0
    beta_slow: float = 0.0
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0

    def _struct(self) -> c.Rope:
        if self.pairing not in _PAIRINGS or self.scaling not in _SCALINGS:
            raise ValueError(f"rope: pairing {self.pairing}, scaling {self.scaling}")
        return c.Rope(
            size=ctypes.sizeof(c.Rope),
            pairing=_PAIRINGS[self.pairing],
            scaling=_SCALINGS[self.scaling],
            dims=self.dims,
            trained=self.trained,
            theta=self.theta,
            factor=self.factor,
            attention_factor=self.attention_factor,
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
            low_freq_factor=self.low_freq_factor,
            high_freq_factor=self.high_freq_factor,
        )

    @property
    def text(self) -> str:
        """For Cache.space(rope=...): spaces with other parameters share nothing."""
        return rope_text(self._struct()).decode()


class KvCache:
    """An engine's KV memory, registered with a space. One call at a time."""

    def __init__(
        self, space: Space, layers: Sequence[tuple[Any, Any]], rope: Rope | None = None
    ) -> None:
        self._lib = library()
        self._handle = ctypes.c_void_p()
        self._space = space
        self._rope = rope._struct() if rope is not None else None
        kept_as = space._desc.rope
        if rope is not None and kept_as and kept_as != rope.text.encode():
            raise ValueError("the space is of a model with another rope, so K would be wrong")
        if len(layers) != space._desc.n_layers or any(len(pair) != 2 for pair in layers):
            raise ValueError(f"K and V of {space._desc.n_layers} layers are required")
        planes = list(zip(*layers))
        self._memory = SlotMemory(space, planes, rope.dims if rope is not None else 0)
        n_slots = self._memory.layout.n_slots
        desc = c.DeliveryDesc(
            size=ctypes.sizeof(c.DeliveryDesc),
            space=space._open(),
            layout=ctypes.pointer(self._memory.layout),
            rope=ctypes.pointer(self._rope) if self._rope is not None else None,
            tokens_max=n_slots,
            ranges_max=min(n_slots, 4096),
        )
        client = space._cache._client
        check(
            self._lib.tsr_kv_cache_register(ctypes.byref(self._handle), client, ctypes.byref(desc))
        )

    def __enter__(self) -> KvCache:
        return self

    def __exit__(self, *_error: object) -> None:
        self.unregister()

    def unregister(self) -> None:
        """Leases stay until they are released. May be called twice; before the cache is closed."""
        self._lib.tsr_kv_cache_unregister(self._handle)
        self._handle = ctypes.c_void_p()

    def _open(self) -> ctypes.c_void_p:
        if not self._handle:
            raise ValueError("the KV cache is unregistered")
        return self._handle

    def lookup_pre_computed(
        self,
        tokens: Any,
        request: int,
        segments: Sequence[tuple[int, int]] = (),
        context: Any = (),
        recipe: bytes = b"",
        adapter: str | None = None,
        salt: str | None = None,
    ) -> Found:
        """The cached parts of a prompt: `segments` and text at any offset, leased under `request`
        until Cache.release(). With `recipe`, also what store_final() has stored under it, of the
        whole prompt unless `segments` says otherwise."""
        flags = c.PROMPT_BLENDED if recipe else 0
        if recipe and not segments:
            segments = [(0, len(tokens))]
        prompt = _Prompt(tokens, adapter, salt, (), flags, segments or None, context)
        prompt.recipe = recipe
        if recipe:
            prompt.c.recipe = ctypes.cast(ctypes.c_char_p(recipe), ctypes.c_void_p)
            prompt.c.recipe_bytes = len(recipe)
        most = max(prompt.c.n_tokens, 1)
        rows = (c.Match * most)()
        order = c.LookupDesc(
            size=ctypes.sizeof(c.LookupDesc), matches_max=most, matches=rows, request_id=request
        )
        lookup = self._lib.tsr_kv_cache_lookup
        covered = check(lookup(self._open(), ctypes.byref(prompt.c), ctypes.byref(order)))
        return Found(prompt, rows, order.n_matches, covered, order.n_prefix_tokens)

    def retrieve_pre_computed(
        self, found: Found, slots: Sequence[int], position_offset: int = 0
    ) -> list[tuple[int, int]]:
        """Loads what was found into the slots of the prompt's tokens; -1: skipped. K is rotated to
        its place in the prompt, and `position_offset` further. Returns (offset, tokens) of what has
        arrived; the rest must be computed."""
        count = found._prompt.c.n_tokens
        places = self._places(slots, count)
        base = places.buffer_info()[0]
        ranges = (c.DeliveryRange * len(found.matches))()
        for i, (one, match) in enumerate(zip(ranges, found.matches)):
            one.size = ctypes.sizeof(c.DeliveryRange)
            one.match = ctypes.pointer(found._rows[i])
            one.prompt = ctypes.pointer(found._prompt.c)
            one.slots = base + places.itemsize * match.offset
            one.position_offset = position_offset
        freq_set = self._freq_set(position_offset + count)
        self._memory.follow_stream()
        retrieve = self._lib.tsr_kv_cache_retrieve
        check(retrieve(self._open(), ranges, len(ranges), freq_set))
        return [
            (match.offset, match.n_tokens)
            for one, match in zip(ranges, found.matches)
            if one.result == 0
        ]

    def store_pre_computed(
        self,
        tokens: Any,
        slots: Sequence[int],
        context: Any = (),
        base: int = 0,
        adapter: str | None = None,
        salt: str | None = None,
    ) -> int:
        """Stores a text that was computed alone, or after `context`: token i is in slots[i], its K
        rotated to position base + i. Returns how many tokens are new."""
        return self._store(
            self._lib.tsr_kv_cache_store, tokens, slots, context, base, b"", adapter, salt
        )

    def store_final(
        self,
        tokens: Any,
        slots: Sequence[int],
        recipe: bytes,
        adapter: str | None = None,
        salt: str | None = None,
    ) -> int:
        """Stores the blended KV of a whole prompt. It was computed over approximate KV, so only
        lookups with the same `recipe` find it. Returns how many tokens are new."""
        if not recipe:
            raise ValueError("store_final needs a recipe: how the KV was made")
        return self._store(
            self._lib.tsr_kv_cache_store_final, tokens, slots, (), 0, recipe, adapter, salt
        )

    def _store(
        self,
        call: Any,
        tokens: Any,
        slots: Sequence[int],
        context: Any,
        base: int,
        recipe: bytes,
        adapter: str | None,
        salt: str | None,
    ) -> int:
        address, count, _keep = as_tokens(tokens)
        context_address, n_context, _keep_context = as_tokens(context)
        extra = _extras(adapter, salt, ())
        places = self._places(slots, count)
        order = c.StoreDesc(
            size=ctypes.sizeof(c.StoreDesc),
            tokens=address,
            n_tokens=count,
            n_context=n_context,
            context=context_address if n_context else None,
            n_extra=len(extra),
            extra=extra,
            base=base,
            freq_set=self._freq_set(base + count),
        )
        if recipe:
            order.recipe = ctypes.cast(ctypes.c_char_p(recipe), ctypes.c_void_p)
            order.recipe_bytes = len(recipe)
        self._memory.follow_stream()
        return check(call(self._open(), ctypes.byref(order), places.buffer_info()[0]))

    def _places(self, slots: Sequence[int], count: int) -> array[int]:
        places = self._memory.places(slots)
        if len(places) < count:
            raise ValueError(f"{len(places)} slots for {count} tokens")
        return places

    def _freq_set(self, n_tokens: int) -> int:
        if self._rope is None:
            return 0
        freq_set = ctypes.c_uint32()
        choose = self._lib.tsr_rope_choose
        check(choose(ctypes.byref(self._rope), n_tokens, ctypes.byref(freq_set)))
        return freq_set.value
