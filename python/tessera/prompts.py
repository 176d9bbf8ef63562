"""A client of its own that asks the cache about whole prompts, in given spaces: for what the side
of an engine's scheduler does beside its half of the connector."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import _c as c
from ._lib import check, library

__all__ = ["PromptClient", "Text"]


@dataclass(frozen=True)
class Text:
    """Tokens, and what else their keys are made of."""

    tokens: array[int]
    extra: Any


class PromptClient:
    """Used by one thread at a time."""

    def __init__(self, cache: ctypes.c_void_p, spaces: Iterable[c.SpaceDesc]) -> None:
        self._lib = library()
        self.handle = ctypes.c_void_p()
        self.spaces: list[ctypes.c_void_p] = []
        try:
            check(self._lib.tsr_client_open(ctypes.byref(self.handle), cache))
            for desc in spaces:
                space = ctypes.c_void_p()
                check(self._lib.tsr_space_open(ctypes.byref(space), cache, ctypes.byref(desc)))
                self.spaces.append(space)
        except BaseException:
            self.close()
            raise

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

    def discover(self, text: Text) -> int:
        """Asks the tiers that other machines fill; how many chunks were found in all spaces."""
        prompt = ctypes.byref(self.prompt(text))
        discover = self._lib.tsr_client_discover
        return sum(check(discover(self.handle, space, prompt)) for space in self.spaces)

    def close(self) -> None:
        """May be called twice; before the cache is closed."""
        while self.spaces:
            self._lib.tsr_space_close(self.spaces.pop())
        self._lib.tsr_client_close(self.handle)
        self.handle = ctypes.c_void_p()
