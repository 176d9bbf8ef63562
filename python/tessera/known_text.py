"""Finds stored text anywhere in a prompt, before a blend.

The scheduler of an engine must know whether a prompt will be blended before a worker sees it. So it
looks into the space that the worker's blend will use, for text that was computed alone or after the
primer, and into the spaces of plain requests, if blends may use those. Entries are not leased: what
is evicted before the worker needs it is computed.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from . import _c as c
from ._lib import check, library
from .blend import Blend
from .blend_job import space_salt
from .cache import _extras

_ROWS = 1024
_TENANTS_MAX = 64  # whose spaces are kept open


class KnownText:
    """Used by one thread at a time."""

    def __init__(
        self,
        cache: ctypes.c_void_p,
        model: bytes,
        engine_salt: str | None,
        world: int,
        primer: Sequence[int] = (),
        traffic: Sequence[c.SpaceDesc] = (),
    ) -> None:
        self._lib = library()
        self._cache = cache
        self._model = c.ModelInfo.from_buffer_copy(model)
        self._engine_salt = engine_salt
        self._world = world
        self._primer = array("I", primer)
        self._blends: OrderedDict[bytes, list[Blend]] = OrderedDict()
        self._client = ctypes.c_void_p()
        self._traffic: list[ctypes.c_void_p] = []  # one space for each rank
        check(self._lib.tsr_client_open(ctypes.byref(self._client), cache))
        try:
            for desc in traffic:
                space = ctypes.c_void_p()
                check(self._lib.tsr_space_open(ctypes.byref(space), cache, ctypes.byref(desc)))
                self._traffic.append(space)
        except Exception:
            self.close()
            raise
        self._rows = (c.Match * (_ROWS * max(len(self._traffic), world)))()

    def close(self) -> None:
        """May be called twice; before the cache is closed."""
        for blends in self._blends.values():
            _close_all(blends)
        self._blends.clear()
        while self._traffic:
            self._lib.tsr_space_close(self._traffic.pop())
        self._lib.tsr_client_close(self._client)
        self._client = ctypes.c_void_p()

    def find(self, tokens: array[int], salt: bytes, plain_salt: str = "") -> tuple[int, int]:
        """(number of tokens that a blend would reuse, end of the last one). The exact prefix of
        plain requests does not count: exact reuse needs no blend."""
        prompt = self._primed(tokens, c.PROMPT_ANY)
        ranges, _exact = self._look(prompt, self._spaces(salt))
        exact = 0
        if self._traffic:
            prompt = self._prompt(tokens, c.PROMPT_PREFIX | c.PROMPT_ANY | c.PROMPT_OTHER)
            prompt.extra = extra = _extras(None, plain_salt, ())
            prompt.n_extra = len(extra)
            more, exact = self._look(prompt, [space.value for space in self._traffic])
            ranges += more
        covered, end = 0, exact
        for first, last in sorted(ranges):
            covered += max(last - max(first, end), 0)
            end = max(end, last)
        return (covered, end) if covered else (0, 0)

    def find_segments(
        self, tokens: array[int], segments: Sequence[tuple[int, int]], system: bool, salt: bytes
    ) -> int:
        """How many tokens of these (first, n) are stored as segments; a system prompt, which is the
        first one then, does not count."""
        prompt = self._segmented(tokens, segments, system)
        found, _exact = self._look(prompt, self._spaces(salt))
        documents = {first for first, _n in segments[1 if system else 0 :]}
        return sum(end - first for first, end in found if first in documents)

    def discover(
        self, tokens: array[int], segments: Sequence[tuple[int, int]], system: bool, salt: bytes
    ) -> int:
        """Asks the tiers that other machines fill for these segments of all ranks: with those of
        some the ranks would be apart, and drop them. How many were found."""
        prompt = ctypes.byref(self._segmented(tokens, segments, system))
        discover = self._lib.tsr_client_discover
        return sum(check(discover(self._client, one, prompt)) for one in self._spaces(salt))

    def _segmented(
        self, tokens: array[int], segments: Sequence[tuple[int, int]], system: bool
    ) -> c.Prompt:
        flags = c.PROMPT_SEGMENTS | (c.PROMPT_CONTEXT if system else 0)
        prompt = self._primed(tokens, flags)
        ranges = (c.Range * len(segments))(*[c.Range(*pair) for pair in segments])
        prompt.segments, prompt.n_segments = ranges, len(segments)
        return prompt

    def _primed(self, tokens: array[int], flags: int) -> c.Prompt:
        """Text that was computed after the primer counts, too."""
        prompt = self._prompt(tokens, flags)
        context, n_context = self._primer.buffer_info()
        prompt.context, prompt.n_context = context if n_context else None, n_context
        return prompt

    def _prompt(self, tokens: array[int], flags: int) -> c.Prompt:
        address, count = tokens.buffer_info()
        return c.Prompt(size=ctypes.sizeof(c.Prompt), tokens=address, n_tokens=count, flags=flags)

    def _look(
        self, prompt: c.Prompt, spaces: Sequence[int | None]
    ) -> tuple[list[tuple[int, int]], int]:
        """(first, end) of what all spaces have, and the end of the exact prefix."""
        order = c.LookupDesc(
            size=ctypes.sizeof(c.LookupDesc),
            spaces=(ctypes.c_void_p * len(spaces))(*spaces),
            n_spaces=len(spaces),
            matches_max=_ROWS,
            matches=self._rows,
        )
        lookup = self._lib.tsr_client_lookup
        check(lookup(self._client, ctypes.byref(prompt), ctypes.byref(order)))
        rows = [self._rows[i * len(spaces)] for i in range(order.n_matches)]
        ranges = [(row.prompt_offset, row.prompt_offset + row.n_tokens) for row in rows]
        return ranges, order.n_prefix_tokens

    def _spaces(self, salt: bytes) -> list[int | None]:
        """One for each rank."""
        blends = self._blends.get(salt)
        if blends is None:
            if len(self._blends) >= _TENANTS_MAX:
                _close_all(self._blends.popitem(last=False)[1])
            world, engine = self._world, self._engine_salt
            names = [space_salt(engine, salt, rank, world) for rank in range(world)]
            blends = [Blend(self._cache, self._model, salt=name) for name in names]
            self._blends[salt] = blends
        self._blends.move_to_end(salt)
        return [self._lib.tsr_blend_space(one._handle) for one in blends]


def _close_all(blends: list[Blend]) -> None:
    for one in blends:
        one.close()
