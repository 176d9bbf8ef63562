"""A client of its own that asks the cache about whole prompts, in the spaces of all ranks and
groups: for what the scheduler's side does beside its half of the connector."""

from __future__ import annotations

import ctypes
from array import array
from dataclasses import dataclass
from typing import Any

from .. import _c as c
from .._connector import ModelShape, space_of
from .._lib import check, library

__all__ = ["PromptClient", "Text"]


@dataclass(frozen=True)
class Text:
    """Tokens, and what else their keys are made of."""

    tokens: array[int]
    extra: Any


class PromptClient:
    """Used by one thread at a time. Spaces of states are left out: they have no chunks."""

    def __init__(self, cache: ctypes.c_void_p, shape: ModelShape, chunk_tokens: int) -> None:
        self._lib = library()
        self.handle = ctypes.c_void_p()
        self.spaces: list[ctypes.c_void_p] = []
        try:
            self._open(cache, shape, chunk_tokens)
        except BaseException:
            self.close()
            raise

    def _open(self, cache: ctypes.c_void_p, shape: ModelShape, chunk_tokens: int) -> None:
        check(self._lib.tsr_client_open(ctypes.byref(self.handle), cache))
        for rank in range(shape.ranks):
            for g, group in enumerate(shape.groups):
                if group.states:
                    continue
                desc, _keep = space_of(shape, g, rank)
                desc.block_tokens = chunk_tokens
                space = ctypes.c_void_p()
                check(self._lib.tsr_space_open(ctypes.byref(space), cache, ctypes.byref(desc)))
                self.spaces.append(space)

    def prompt(self, text: Text) -> Any:
        """For as long as the text lives."""
        address, n_tokens = text.tokens.buffer_info()
        return c.Prompt(
            size=ctypes.sizeof(c.Prompt),
            tokens=address,
            n_tokens=n_tokens,
            flags=c.PROMPT_PREFIX,
            extra=text.extra,
            n_extra=len(text.extra),
        )

    def close(self) -> None:
        """May be called twice; before the cache is closed."""
        while self.spaces:
            self._lib.tsr_space_close(self.spaces.pop())
        self._lib.tsr_client_close(self.handle)
        self.handle = ctypes.c_void_p()
