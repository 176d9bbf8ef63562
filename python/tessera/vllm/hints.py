"""What an orchestrator says about a request's KV: pin it, let it live for some time, prefetch it.

vLLM 0.32 carries such hints as actions (request.kv_hints), which it leaves to connectors. Clients
may have them in kv_transfer_params if the setting `hints` allows it. Everything in them is checked
and has a limit, and what is refused is counted: a hint never fails its request.

A thread of its own does the work, with a client of its own: the scheduler only reads a hint and
puts it into a queue. A pin is a lease of the prompt's chunks, which ends by itself. At the end of a
time to live, the chunks that its request has added are dropped from every tier.
"""

from __future__ import annotations

import ctypes
import functools
import heapq
import itertools
import math
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _c as c
from .._connector import ModelShape, prompt_spaces
from .._lib import TesseraError, check, library
from ..prompts import PromptClient, Text

__all__ = ["BadHint", "Hint", "Hints", "Text", "read_hints"]

PREFIX = "tessera."
VERSION = "1"
HINTS_MAX = 16  # of one request
LIVE_MAX = 4096  # of all requests
WAITING_TOKENS_MAX = 1 << 24  # of them
SECONDS_MAX = 86400.0
PIN_SECONDS = 300.0
TOKENS_MAX = 1 << 18  # of a prompt to prefetch
PIN_SHARE = 0.5  # of host memory
_RETRY_S = 0.25  # until what a request has computed is saved
_RETRIES = 40
_CLOSE_S = 5.0
_FIELDS = {"pin": ("seconds", "tokens"), "ttl": ("seconds",), "prefetch": ("tokens",)}


class BadHint(ValueError):
    """A hint that is not one, or that asks for more than it may."""


@dataclass(frozen=True)
class Hint:
    kind: str  # pin, ttl or prefetch
    seconds: float = 0.0
    n_tokens: int = 0  # pin: the first tokens of the prompt; 0: all of them
    tokens: tuple[int, ...] = ()  # prefetch: another prompt; empty: that of the request


def read_hints(kv_hints: Any, params: Any, allowed: bool) -> tuple[list[Hint], int]:
    """(those that are sound, how many are not): of an envelope of vLLM's, where actions of others
    are left alone, and of kv_transfer_params, if clients are allowed to."""
    hints: list[Hint] = []
    n_bad = 0
    for kind, fields in itertools.islice(_actions(kv_hints, params), 2 * HINTS_MAX):
        try:
            if len(hints) >= HINTS_MAX:
                raise BadHint(f"more than {HINTS_MAX} hints")
            if fields is None:
                raise BadHint(f"{kind}: not an object, or another version")
            if kind.startswith("client ") and not allowed:
                raise BadHint("hints of clients are off; setting hints")
            hints.append(_checked(kind.removeprefix("client "), fields))
        except (BadHint, TypeError, ValueError, OverflowError):
            n_bad += 1
    return hints, n_bad


def _actions(kv_hints: Any, params: Any) -> Any:
    for action in getattr(kv_hints, "actions", None) or ():
        kind = action.action_type
        if not isinstance(kind, str) or not kind.startswith(PREFIX):
            continue
        sound = action.action_version == VERSION and isinstance(action.payload, Mapping)
        yield kind.removeprefix(PREFIX), action.payload if sound else None
    wishes = params.get("tessera") if isinstance(params, Mapping) else None
    given = wishes.get("hints") if isinstance(wishes, Mapping) else None
    if given is None:
        return
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        yield "client hints", None
        return
    for one in given:
        sound = isinstance(one, Mapping) and isinstance(one.get("action"), str)
        kind = one["action"] if sound else "hints"
        fields = {key: value for key, value in one.items() if key != "action"} if sound else None
        yield "client " + kind, fields


def _checked(kind: str, fields: Mapping[str, Any]) -> Hint:
    if kind not in _FIELDS:
        raise BadHint(f"unknown action {kind!r}")
    unknown = set(fields) - set(_FIELDS[kind])
    if unknown:
        raise BadHint(f"{kind}: unknown field {sorted(map(str, unknown))[0]!r}")
    if kind == "prefetch":
        return Hint(kind, tokens=_token_list(fields.get("tokens")))
    seconds = fields.get("seconds", PIN_SECONDS if kind == "pin" else None)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise BadHint(f"{kind}: seconds is no number")
    if not math.isfinite(seconds) or not 0 < seconds <= SECONDS_MAX:
        raise BadHint(f"{kind}: seconds must be more than 0 and at most {SECONDS_MAX:.0f}")
    n_tokens = fields.get("tokens", 0)
    if isinstance(n_tokens, bool) or not isinstance(n_tokens, int) or n_tokens < 0:
        raise BadHint(f"{kind}: tokens is no number of tokens")
    return Hint(kind, float(seconds), n_tokens)


def _token_list(given: Any) -> tuple[int, ...]:
    if given is None:
        return ()
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        raise BadHint("prefetch: tokens is no list")
    if len(given) > TOKENS_MAX:
        raise BadHint(f"prefetch: {len(given)} tokens, at most {TOKENS_MAX}")
    return tuple(array("I", given))  # refuses what is no token


class Hints:
    """Of one engine. Its methods are the scheduler's thread's."""

    def __init__(self, cache: ctypes.c_void_p, shape: ModelShape, chunk_tokens: int) -> None:
        self._lib = library()
        self._cache = cache
        self._chunk = chunk_tokens
        self._ids = itertools.count(1)
        self._order = itertools.count()
        self._due: list[tuple[float, int, int, Callable[[], None]]] = []  # when, order, tokens
        self._n_waiting = 0  # tokens of what is due
        self._pinned: dict[int, int] = {}  # bytes by lease; under the lock
        self._drops: dict[int, Callable[[], None]] = {}  # of times to live that have not ended
        self._changed = threading.Condition()
        self._closing = False
        self.counters = {"hints": 0.0, "hints_refused": 0.0, "hints_dropped": 0.0}
        self._client = PromptClient(cache, prompt_spaces(shape, chunk_tokens))
        try:
            self._measure()
        except BaseException:
            self._client.close()
            raise
        self._thread = threading.Thread(target=self._run, name="tessera-hints", daemon=True)
        self._thread.start()

    def _measure(self) -> None:
        row = c.Stats(size=ctypes.sizeof(c.Stats))
        check(self._lib.tsr_cache_stats(self._cache, ctypes.byref(row)))
        self._pin_max = int(row.tier_bytes_max[0] * PIN_SHARE)
        self._token_bytes = sum(
            int(self._lib.tsr_space_token_bytes(one)) for one in self._client.spaces
        )

    def refused(self, n: int) -> None:
        self.counters["hints_refused"] += n

    def known(self, text: Text) -> int:
        """Tokens of a prompt that the cache has now, from the first one on."""
        return self._lookup(text, 0)

    def arrived(self, text: Text, hints: Sequence[Hint]) -> None:
        """A request with these has come: what can be done before it runs."""
        for hint in hints:
            if hint.kind == "prefetch":
                tokens = array("I", hint.tokens) if hint.tokens else text.tokens
                work = functools.partial(self._prefetch, Text(tokens, text.extra))
                self._at(0, len(tokens), work)
            elif hint.kind == "pin":
                self._pin(self._cut(text, hint), hint.seconds, _RETRIES // 2)

    def ended(self, text: Text, hints: Sequence[Hint], n_before: int) -> None:
        """It has ended; n_before of its tokens were there before it."""
        for hint in hints:
            if hint.kind == "pin":
                self._pin(self._cut(text, hint), hint.seconds, 0)
            elif hint.kind == "ttl" and len(text.tokens) // self._chunk * self._chunk > n_before:
                number = next(self._ids)
                self._drops[number] = functools.partial(self._drop, number, text, n_before)
                if not self._at(hint.seconds, len(text.tokens), self._drops[number]):
                    del self._drops[number]

    def _cut(self, text: Text, hint: Hint) -> Text:
        n = min(hint.n_tokens or len(text.tokens), len(text.tokens)) // self._chunk * self._chunk
        return Text(text.tokens[:n], text.extra)

    def _at(self, delay_s: float, n_tokens: int, work: Callable[[], None]) -> bool:
        with self._changed:
            full = self._n_waiting and self._n_waiting + n_tokens > WAITING_TOKENS_MAX
            if full or len(self._due) >= LIVE_MAX:
                self.counters["hints_refused"] += 1
                return False
            self.counters["hints"] += 1
            self._push(delay_s, n_tokens, work)
        return True

    def _push(self, delay_s: float, n_tokens: int, work: Callable[[], None]) -> None:
        when = time.monotonic() + delay_s
        heapq.heappush(self._due, (when, next(self._order), n_tokens, work))
        self._n_waiting += n_tokens
        self._changed.notify()

    # ---- in the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closing and (not self._due or self._due[0][0] > time.monotonic()):
                    wait = self._due[0][0] - time.monotonic() if self._due else None
                    self._changed.wait(wait)
                if self._closing:
                    return
                _when, _order, n_tokens, work = heapq.heappop(self._due)
                self._n_waiting -= n_tokens
            try:
                work()
            except Exception:
                self.counters["hints_refused"] += 1

    def _pin(self, text: Text, seconds: float, attempt: int) -> None:
        number = next(self._ids)
        n_bytes = len(text.tokens) * self._token_bytes
        if not n_bytes:
            return
        with self._changed:
            if sum(self._pinned.values()) + n_bytes > self._pin_max:
                self.counters["hints_refused"] += 1
                return
            self._pinned[number] = n_bytes
        end = time.monotonic() + seconds
        if not self._at(0, len(text.tokens), lambda: self._hold(number, text, end, attempt)):
            self._release(number)

    def _hold(self, number: int, text: Text, end: float, attempt: int) -> None:
        """A lease; again while the prompt is being saved, or the server is away."""
        try:
            found = self._lookup(text, number)
        except TesseraError:
            found = 0
        now = time.monotonic()
        if now < end and found < len(text.tokens) and attempt < _RETRIES:
            retry = functools.partial(self._hold, number, text, end, attempt + 1)
            self._again(_RETRY_S, len(text.tokens), retry)
        elif now < end and found:
            self._again(end - now, 0, lambda: self._release(number))
        else:
            self._release(number)
            self.counters["hints_refused"] += not found

    def _again(self, delay_s: float, n_tokens: int, work: Callable[[], None]) -> None:
        with self._changed:
            self._push(delay_s, n_tokens, work)

    def _release(self, number: int) -> None:
        self._lib.tsr_client_release(self._client.handle, number)
        with self._changed:
            self._pinned.pop(number, None)

    def _prefetch(self, text: Text) -> None:
        for space in self._client.spaces:
            prompt = self._client.prompt(text)
            check(self._lib.tsr_client_prefetch(self._client.handle, space, ctypes.byref(prompt)))

    def _drop(self, number: int, text: Text, n_before: int) -> None:
        self._drops.pop(number, None)
        for space in self._client.spaces:
            prompt = self._client.prompt(text)
            order = c.ClearDesc(
                size=ctypes.sizeof(c.ClearDesc),
                space=space,
                prompt=ctypes.pointer(prompt),
                tier=-1,
                from_=n_before,
            )
            n = check(self._lib.tsr_cache_clear(self._cache, ctypes.byref(order)))
            self.counters["hints_dropped"] += n

    def _lookup(self, text: Text, lease: int) -> int:
        prompt, own = self._client.prompt(text), self._client.spaces
        spaces = (ctypes.c_void_p * len(own))(*own)
        most = len(text.tokens) // self._chunk
        rows = (c.Match * max(most * len(own), 1))()
        order = c.LookupDesc(
            size=ctypes.sizeof(c.LookupDesc),
            spaces=spaces,
            n_spaces=len(own),
            matches_max=most,
            matches=rows,
            request_id=lease,
        )
        check(
            self._lib.tsr_client_lookup(
                self._client.handle, ctypes.byref(prompt), ctypes.byref(order)
            )
        )
        return int(order.n_prefix_tokens)

    # ---- the end

    def close(self) -> None:
        """Pins end. What has a time to live is dropped now: nobody would do it later."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        until = time.monotonic() + _CLOSE_S
        for drop in list(self._drops.values()):
            if time.monotonic() > until:
                break
            try:
                drop()
            except Exception:
                self.counters["hints_refused"] += 1
        self._client.close()
