"""Finds stored text anywhere in a prompt, before a blend.

The scheduler of an engine must know whether a prompt will be blended before a worker sees it. So it
looks into the space that the worker's blend will use, for text that was computed alone or after the
primer. Entries are not leased: what is evicted before the worker needs it is computed.
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

_ROWS = 1024
_SPACES_MAX = 64  # tenants whose spaces are kept open


class KnownText:
    """Used by one thread at a time."""

    def __init__(
        self,
        cache: ctypes.c_void_p,
        model: bytes,
        engine_salt: str | None,
        world: int,
        primer: Sequence[int] = (),
    ) -> None:
        self._lib = library()
        self._cache = cache
        self._model = c.ModelInfo.from_buffer_copy(model)
        self._engine_salt = engine_salt
        self._world = world
        self._primer = array("I", primer)
        self._blends: OrderedDict[bytes, Blend] = OrderedDict()
        self._rows = (c.Match * _ROWS)()
        self._client = ctypes.c_void_p()
        check(self._lib.tsr_client_open(ctypes.byref(self._client), cache))

    def close(self) -> None:
        """May be called twice; before the cache is closed."""
        for blend in self._blends.values():
            blend.close()
        self._blends.clear()
        self._lib.tsr_client_close(self._client)
        self._client = ctypes.c_void_p()

    def find(self, tokens: array[int], salt: bytes) -> tuple[int, int]:
        """(number of tokens covered by stored text, end of the last match)."""
        address, count = tokens.buffer_info()
        context, n_context = self._primer.buffer_info()
        prompt = c.Prompt(
            size=ctypes.sizeof(c.Prompt),
            tokens=address,
            n_tokens=count,
            flags=c.PROMPT_ANY,
            context=context if n_context else None,
            n_context=n_context,
        )
        spaces = (ctypes.c_void_p * 1)(self._space(salt))
        order = c.LookupDesc(
            size=ctypes.sizeof(c.LookupDesc),
            spaces=spaces,
            n_spaces=1,
            matches_max=_ROWS,
            matches=self._rows,
        )
        lookup = self._lib.tsr_client_lookup
        covered = check(lookup(self._client, ctypes.byref(prompt), ctypes.byref(order)))
        if order.n_matches == 0:
            return 0, 0
        last = self._rows[order.n_matches - 1]
        return covered, last.prompt_offset + last.n_tokens

    def _space(self, salt: bytes) -> int | None:
        blend = self._blends.get(salt)
        if blend is None:
            if len(self._blends) >= _SPACES_MAX:
                self._blends.popitem(last=False)[1].close()
            name = space_salt(self._engine_salt, salt, 0, self._world)
            blend = self._blends[salt] = Blend(self._cache, self._model, salt=name)
        self._blends.move_to_end(salt)
        space: int | None = self._lib.tsr_blend_space(blend._handle)
        return space
