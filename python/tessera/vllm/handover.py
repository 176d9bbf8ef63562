"""Prompts that one engine computes and another one goes on with: prefill and decode apart.

An engine with kv_role kv_producer says in its answer how much of the prompt it stores, and the key
of the last chunk of that. Who sends the request on passes this with it, as proxies for vLLM do with
all kv_transfer_params, and the engine that gets it waits until so much is there: the producer
answers before its last save has ended. It waits only if it would look for that same key, so that
engines which share nothing do not wait for each other, and no longer than save_wait_ms. Whatever
has not arrived by then is computed. It has arrived when that chunk is there, on every rank: what a
request may load of it can be less, such as all but the last token, or all but a draft's block.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .._connector import SchedulerHalf
from .._lib import TesseraError

__all__ = ["KEY", "Arrival", "expected", "told"]

KEY = "tessera_handover"  # in kv_transfer_params
_TOKENS_MAX = 1 << 31
_POLL_S = 0.005  # at least, between two lookups of a request that waits
_POLL_SHARE = 8  # and this part of the time that it has waited: many may wait in vain


class Arrival:
    """What a request waits for."""

    __slots__ = ("_ask_at", "_since", "_until", "keys", "n_tokens")

    def __init__(self, n_tokens: int, keys: list[bytes], wait_ms: int) -> None:
        self.n_tokens = n_tokens
        self.keys = keys  # of its last chunk, in all spaces
        self._since = time.monotonic()
        self._until = self._since + wait_ms / 1000
        self._ask_at = 0.0

    def too_early(self) -> bool:
        """Whether it is not yet time to look again. True only while there is time to wait."""
        now = time.monotonic()
        if now < self._until and now < self._ask_at:
            return True
        self._ask_at = now + max(_POLL_S, (now - self._since) / _POLL_SHARE)
        return False

    def waits(self, n_there: int) -> bool:
        """Whether it goes on waiting with so many tokens there."""
        return n_there < self.n_tokens and time.monotonic() < self._until


def _keys(half: SchedulerHalf, number: int, n_tokens: int) -> list[bytes]:
    """Of a request's last chunk before so many tokens, in all spaces; empty: unknown, perhaps
    because the server is unreachable."""
    try:
        keys = half.keys(number, n_tokens // half.chunk_tokens - 1, 1)
    except TesseraError:
        return []
    return keys[0] if keys else []


def told(half: SchedulerHalf, number: int, n_saved: int) -> dict[str, Any] | None:
    """What a producer says of a request that has not been forgotten, once so many tokens are saved
    or being saved, as far as they are whole chunks; None: nothing is stored."""
    n_tokens = n_saved // half.chunk_tokens * half.chunk_tokens
    keys = _keys(half, number, n_tokens) if n_tokens > 0 else []
    return {KEY: {"tokens": n_tokens, "key": keys[0].hex()}} if keys else None


def expected(half: SchedulerHalf, number: int, params: Any, wait_ms: int) -> Arrival | None:
    """What a new request waits for, by what a client passes on; None: nothing."""
    given = params.get(KEY) if isinstance(params, Mapping) else None
    if not isinstance(given, Mapping):
        return None
    n_tokens, key = given.get("tokens"), given.get("key")
    if type(n_tokens) is not int or not 0 < n_tokens < _TOKENS_MAX or n_tokens % half.chunk_tokens:
        return None
    keys = _keys(half, number, n_tokens)
    if not keys or keys[0].hex() != key:
        return None
    return Arrival(n_tokens, keys, wait_ms)
