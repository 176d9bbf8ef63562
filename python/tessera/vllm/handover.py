"""Prompts that one engine computes and another one goes on with: prefill and decode apart.

An engine with kv_role kv_producer says in its answer how much of the prompt it stores, and the key
of the last chunk of that. Who sends the request on passes this with it, as proxies for vLLM do with
all kv_transfer_params, and the engine that gets it waits until so much is there: the producer
answers before its last save has ended. It waits only if it would look for that same key, so that
engines which share nothing do not wait for each other, and no longer than save_wait_ms. Whatever
has not arrived by then is computed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .._connector import SchedulerHalf
from .._lib import TesseraError

__all__ = ["KEY", "Arrival", "expected", "told"]

KEY = "tessera_handover"  # in kv_transfer_params
_POLL_S = 0.005  # between two lookups of a request that waits


class Arrival:
    """What a request waits for."""

    __slots__ = ("_asked_at", "_until", "n_tokens")

    def __init__(self, n_tokens: int, wait_ms: int) -> None:
        self.n_tokens = n_tokens
        self._until = time.monotonic() + wait_ms / 1000
        self._asked_at = 0.0

    def too_early(self) -> bool:
        """Whether it is not yet time to look again. True only while there is time to wait."""
        now = time.monotonic()
        if now < self._until and now < self._asked_at + _POLL_S:
            return True
        self._asked_at = now
        return False

    def waits(self, n_there: int) -> bool:
        """Whether it goes on waiting with so many tokens there."""
        return n_there < self.n_tokens and time.monotonic() < self._until


def _key(half: SchedulerHalf, number: int, n_tokens: int) -> str | None:
    """Of a request's last chunk before so many tokens, in the first space; None: unknown, perhaps
    because the server is unreachable."""
    try:
        keys = half.keys(number, n_tokens // half.chunk_tokens - 1, 1)
    except TesseraError:
        return None
    return keys[0][0].hex() if keys else None


def told(half: SchedulerHalf, number: int, n_prompt: int) -> dict[str, Any] | None:
    """What a producer says of a request that has not been forgotten; None: nothing is stored."""
    n_tokens = n_prompt // half.chunk_tokens * half.chunk_tokens
    key = _key(half, number, n_tokens) if n_tokens else None
    return {KEY: {"tokens": n_tokens, "key": key}} if key is not None else None


def expected(half: SchedulerHalf, number: int, params: Any, wait_ms: int) -> Arrival | None:
    """What a new request waits for, by what a client passes on; None: nothing."""
    given = params.get(KEY) if isinstance(params, Mapping) else None
    if not isinstance(given, Mapping):
        return None
    n_tokens, key = given.get("tokens"), given.get("key")
    if type(n_tokens) is not int or n_tokens < 1 or n_tokens % half.chunk_tokens:
        return None
    if key is None or _key(half, number, n_tokens) != key:
        return None
    return Arrival(n_tokens, wait_ms)
