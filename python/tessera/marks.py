"""Marks that come with a request: which of its tokens are documents, and how to blend them. Clients
send them, so everything in them is checked; BadBlend says what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .blend_job import BadBlend

__all__ = ["checked_segments", "read_wishes"]

_KEYS = ("blend", "segments", "system", "ratio", "selector", "any_offset", "hints")
_SEGMENTS_MAX = 4096


def read_wishes(params: Any) -> Mapping[str, Any] | None:
    """The part of a request's kv_transfer_params that is meant for Tessera."""
    wishes = params.get("tessera") if isinstance(params, Mapping) else None
    if wishes is None:
        return None
    if not isinstance(wishes, Mapping):
        raise BadBlend(f"tessera: {wishes!r} is not an object")
    unknown = sorted(set(wishes) - set(_KEYS))
    if unknown:
        raise BadBlend(f"unknown key {unknown[0]!r}; known keys: {', '.join(_KEYS)}")
    for key in ("blend", "system", "any_offset"):  # "hints" are read by vllm/hints.py
        if not isinstance(wishes.get(key, False), bool):
            raise BadBlend(f"{key} {wishes[key]!r} is neither true nor false")
    return wishes


def checked_segments(given: Any, system: bool, n_prompt: int) -> tuple[tuple[int, int], ...]:
    """(first, n) pairs as they came from a client, ascending, with a question behind them."""
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)) or not given:
        raise BadBlend("segments must be a list of [first, n]")
    if len(given) > _SEGMENTS_MAX:
        raise BadBlend(f"{len(given)} segments, at most {_SEGMENTS_MAX}")
    rows: list[tuple[int, int]] = []
    end = 0
    for i, pair in enumerate(given):
        if (
            not isinstance(pair, Sequence)
            or len(pair) != 2
            or not all(isinstance(n, int) and not isinstance(n, bool) for n in pair)
        ):
            raise BadBlend(f"segment {i} is not [first, n]")
        first, n = pair
        if first < end or n < 1:
            raise BadBlend(f"segment {i} begins at {first} with {n} tokens, behind {end}")
        end = first + n
        rows.append((first, n))
    if end >= n_prompt:
        raise BadBlend(f"the segments end at {end} of {n_prompt} tokens, so there is no question")
    if system and rows[0][0] != 0:
        raise BadBlend("the system prompt must begin at token 0")
    return tuple(rows)
