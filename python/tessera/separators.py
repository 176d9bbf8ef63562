"""Separators between documents: how a tokenizer may spell them, and where they cut a prompt.

The tokens of a text depend on its surroundings: "##" after a blank may be one token with that
blank. So a separator is tokenised in several contexts, without the tokens that begin a prompt, and
every result counts. Blanks around a separator do not count: a tokenizer joins the one after it to
the next word. The library does the splitting.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from . import _c as c
from ._lib import TesseraError, check, library

_BEFORE = ("", "a", ".", " ", "\n", "a ", ".\n", "\n\n")
_BEHIND = ("", "a", "A", " ", "\n", " A", "\n\n", "1")
_SPELLINGS_MAX = 16  # of tsr_separators_set()
_CHUNKS_MAX = 4096


def spellings(tokenizer: Any, separator: str) -> list[tuple[int, ...]]:
    """The token sequences that stand for `separator`, those of most contexts first. One may hold
    blanks of its neighbours, nothing else. Empty: the tokenizer always merges it with more."""
    found: dict[tuple[int, ...], int] = {}
    for before in _BEFORE:
        for behind in _BEHIND:
            ids = tokenizer.encode(before + separator + behind, add_special_tokens=False)
            spelling = _shortest(tokenizer, list(ids), separator)
            if spelling:
                found[spelling] = found.get(spelling, 0) + 1
    return sorted(found, key=lambda one: (-found[one], one))


def _shortest(tokenizer: Any, ids: list[int], separator: str) -> tuple[int, ...]:
    """The shortest run of `ids` whose text is the separator, ignoring blanks around it."""
    core = separator.strip() or separator
    # Whole beginnings are decoded: tokenizers drop a blank in front of what they decode alone.
    texts = [tokenizer.decode(ids[:i]) for i in range(len(ids) + 1)]
    for n in range(1, len(ids) + 1):
        for first in range(len(ids) - n + 1):
            text = texts[first + n][len(texts[first]) :]
            if core in text and text.strip() == core.strip():
                return tuple(ids[first : first + n])
    return ()


class Separators:
    """Cuts prompts at any of some spellings. Used by one thread at a time."""

    def __init__(self, cache: ctypes.c_void_p, wanted: Iterable[Sequence[int]]) -> None:
        self._lib = library()
        rows = [array("I", row) for row in dict.fromkeys(map(tuple, wanted))][:_SPELLINGS_MAX]
        self._texts = [row.tobytes() for row in rows]
        self._space = ctypes.c_void_p()
        self._ranges = (c.Range * (_CHUNKS_MAX + 1))()
        # Separators belong to a space; nothing is ever stored in this one.
        desc = c.SpaceDesc(
            size=ctypes.sizeof(c.SpaceDesc),
            model=b"separators",
            dtype=c.DTYPE_OPAQUE,
            layout=c.LAYOUT_OPAQUE,
            n_layers=1,
            n_heads=1,
            k_dim=1,
            world=1,
        )
        check(self._lib.tsr_space_open(ctypes.byref(self._space), cache, ctypes.byref(desc)))
        tokens, lengths = array("I"), array("I", [len(row) for row in rows])
        for row in rows:
            tokens.extend(row)
        try:
            check(
                self._lib.tsr_separators_set(
                    self._space, tokens.buffer_info()[0], lengths.buffer_info()[0], len(rows)
                )
            )
        except TesseraError:
            self.close()
            raise

    def close(self) -> None:
        """May be called twice; before the cache is closed."""
        self._lib.tsr_space_close(self._space)
        self._space = ctypes.c_void_p()

    def split(self, tokens: array[int]) -> list[tuple[int, int]] | None:
        """(first, n) of every chunk, each with the separator behind it, the question last; None: no
        separator stands there. TesseraError: one that cuts nothing sensible."""
        address, count = tokens.buffer_info()
        n = self._lib.tsr_space_split(self._space, address, count, self._ranges, len(self._ranges))
        if n < 0 and not self._stands_in(tokens):
            return None
        return [(row.offset, row.n_tokens) for row in self._ranges[: check(n)]]

    def _stands_in(self, tokens: array[int]) -> bool:
        """tsr_space_split() treats a prompt without a separator like a malformed one."""
        prompt = tokens.tobytes()
        for text in self._texts:
            at = prompt.find(text)
            while at >= 0 and at % 4:
                at = prompt.find(text, at + 1)
            if at >= 0:
                return True
        return False
