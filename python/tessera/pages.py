"""Pages with keys of the engine: memory to store or to fill.

An engine that hashes its own prompts (SGLang) passes keys, not tokens. A page is then an entry
whose eight "tokens" are the 32 bytes of its key, so that the whole key is compared on every hit,
and whose "layers" and "planes" are the pieces that the page is in. Nothing is copied in between:
the library reads and writes the engine's memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from . import _c as c
from ._lib import check, library

__all__ = ["PageShape", "Pages"]

_WORDS = 8  # a key's 32 bytes as uint32
_SEGMENT, _SEGMENTS = 2, 2
_OPAQUE_DTYPE, _OPAQUE_LAYOUT = 5, 2
_HEX = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class PageShape:
    """A page is n_layers x n_planes pieces of piece_bytes; the first stands at the page's address,
    the next plane plane_stride and the next layer layer_stride behind it."""

    piece_bytes: int
    n_layers: int = 1
    n_planes: int = 1
    layer_stride: int = 0
    plane_stride: int = 0


class Pages:
    """Pages of one shape in one space. Calls from any thread."""

    def __init__(
        self,
        cache: ctypes.c_void_p,
        model: str,
        weights: bytes,
        identity: str,
        shape: PageShape,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if shape.piece_bytes % _WORDS:
            raise ValueError(f"pieces of {shape.piece_bytes} bytes, not a multiple of {_WORDS}")
        self._lib = library()
        self._shape = shape
        self._space = ctypes.c_void_p()
        self._client = ctypes.c_void_p()
        keep = ctypes.create_string_buffer(weights, len(weights))
        desc = c.SpaceDesc(
            size=ctypes.sizeof(c.SpaceDesc),
            model=model.encode(),
            weights=ctypes.addressof(keep) if weights else None,
            weights_bytes=len(weights),
            tokenizer=identity.encode(),
            dtype=_OPAQUE_DTYPE,
            layout=_OPAQUE_LAYOUT,
            n_layers=shape.n_layers,
            n_heads=1,
            k_dim=shape.piece_bytes // _WORDS,
            v_dim=shape.piece_bytes // _WORDS if shape.n_planes == 2 else 0,
            rank=rank,
            world=world,
        )
        check(self._lib.tsr_client_open(ctypes.byref(self._client), cache))
        try:
            check(self._lib.tsr_space_open(ctypes.byref(self._space), cache, ctypes.byref(desc)))
        except Exception:
            self._lib.tsr_client_close(self._client)
            raise

    def close(self) -> None:
        self._lib.tsr_client_close(self._client)
        self._lib.tsr_space_close(self._space)
        self._client = ctypes.c_void_p()
        self._space = ctypes.c_void_p()

    def known(self, keys: Sequence[str]) -> list[bool]:
        """Which of the keys exist."""
        found = [False] * len(keys)
        for row in self._lookup(keys)[0]:
            found[row.prompt_offset // _WORDS] = True
        return found

    def load(self, keys: Sequence[str], addresses: Sequence[int]) -> list[bool]:
        """Fills each page whose key exists; leaves the others unchanged."""
        _check_pairs(keys, addresses)
        rows, prompt = self._lookup(keys)
        loaded = [False] * len(keys)
        if not rows:
            return loaded
        orders = (c.LoadDesc * len(rows))()
        for order, row in zip(orders, rows):
            order.size = ctypes.sizeof(c.LoadDesc)
            order.space = self._space
            order.match = ctypes.pointer(row)
            order.prompt = ctypes.pointer(prompt.c)
            order.view = self._view(addresses[row.prompt_offset // _WORDS])
        check(self._lib.tsr_client_load(self._client, orders, len(orders)))
        for order, row in zip(orders, rows):
            loaded[row.prompt_offset // _WORDS] = order.result == 0
        return loaded

    def store(self, keys: Sequence[str], addresses: Sequence[int]) -> list[bool]:
        """Stores each page. False: refused (no room, or the server is unreachable)."""
        _check_pairs(keys, addresses)
        words = _words(keys)
        start = words.buffer_info()[0]
        kept = []
        for i, address in enumerate(addresses):
            order = c.StoreDesc(
                size=ctypes.sizeof(c.StoreDesc),
                space=self._space,
                kind=_SEGMENT,
                n_tokens=_WORDS,
                tokens=start + i * _WORDS * words.itemsize,
                view=self._view(address),
            )
            kept.append(self._lib.tsr_client_store(self._client, ctypes.byref(order)) >= 0)
        return kept

    def _view(self, address: int) -> c.View:
        shape = self._shape
        extent = (
            (shape.n_layers - 1) * shape.layer_stride
            + (shape.n_planes - 1) * shape.plane_stride
            + shape.piece_bytes
        )
        row = shape.piece_bytes // _WORDS
        layer = shape.layer_stride or shape.piece_bytes * shape.n_planes
        return c.View(address, extent, layer, shape.plane_stride, row)

    def _lookup(self, keys: Sequence[str]) -> tuple[list[c.Match], _KeyPrompt]:
        prompt = _KeyPrompt(keys)
        rows = (c.Match * max(len(keys), 1))()
        spaces = (ctypes.c_void_p * 1)(self._space)
        order = c.LookupDesc(
            size=ctypes.sizeof(c.LookupDesc),
            spaces=spaces,
            n_spaces=1,
            matches_max=len(rows),
            matches=rows,
        )
        check(
            self._lib.tsr_client_lookup(self._client, ctypes.byref(prompt.c), ctypes.byref(order))
        )
        prompt.rows = rows
        found = [rows[i] for i in range(order.n_matches)]
        return [row for row in found if row.n_tokens == _WORDS], prompt


class _KeyPrompt:
    """Keys as a prompt whose segments they are."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._words = _words(keys)
        self._ranges = (c.Range * len(keys))(
            *[c.Range(i * _WORDS, _WORDS) for i in range(len(keys))]
        )
        self.rows: object = None
        self.c = c.Prompt(
            size=ctypes.sizeof(c.Prompt),
            tokens=self._words.buffer_info()[0],
            n_tokens=len(self._words),
            flags=_SEGMENTS,
            segments=self._ranges,
            n_segments=len(keys),
        )


def _check_pairs(keys: Sequence[str], addresses: Sequence[int]) -> None:
    if len(keys) != len(addresses):
        raise ValueError(f"{len(keys)} keys for {len(addresses)} pages")


def _words(keys: Sequence[str]) -> array[int]:
    words = array("I")
    for key in keys:
        words.frombytes(_digest(key))
    return words


def _digest(key: str) -> bytes:
    """The bytes of a key: those of its hexadecimal form, or a SHA-256 of anything else. Capitals
    and blanks, which fromhex() takes too, make another key."""
    if _HEX.fullmatch(key):
        return bytes.fromhex(key)
    return hashlib.sha256(b"tessera page\0" + key.encode()).digest()
