"""Finds what other machines have stored: asks the tiers that they share for the prompt of a request
when it comes.

A lookup never waits for a network, so it finds only what this cache has stored or met. A thread of
its own asks here, in one round trip, for all chunks that are not known, while the request is in the
engine's queue. The scheduler leaves the request there for a moment, and then looks up whatever is
known by then. Nobody waits for a server that is slow or away: while one question takes longer than
that moment, no other request is asked for.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from collections.abc import Callable

from . import _c as c
from ._lib import library

__all__ = ["WAIT_MS", "Asked", "Discovery", "Patience", "has_shared_tier"]

WAIT_MS = 50
_SHARED = ("redis", "s3")
_WAITING_MAX = 256
_WAITING_SHARE = 0.02  # of the time


def has_shared_tier(cache: ctypes.c_void_p) -> bool:
    """Whether a cache, perhaps a server's, has a tier that other machines fill. A server that is
    away has none."""
    row = c.Stats(size=ctypes.sizeof(c.Stats))
    if library().tsr_cache_stats(cache, ctypes.byref(row)) < 0:
        return False
    return any(bytes(name.text).decode() in _SHARED for name in row.tier_names)


class Asked:
    """A prompt that was asked for. `question` asks, and returns how many chunks there are."""

    __slots__ = ("_answered", "_until", "question")

    def __init__(self, question: Callable[[], int], wait_s: float) -> None:
        self.question = question
        self._answered = threading.Event()
        self._until = time.monotonic() + wait_s

    @property
    def pending(self) -> bool:
        """Whether its request should wait on."""
        return not self._answered.is_set() and time.monotonic() < self._until

    def answered(self) -> None:
        self._answered.set()

    def wait(self, limit_s: float = threading.TIMEOUT_MAX) -> bool:
        """False: it is not answered after this time, or after its own."""
        return self._answered.wait(max(min(self._until - time.monotonic(), limit_s), 0))


class Patience:
    """How long an engine waits whose requests cannot wait by themselves: everything stands still
    meanwhile. A moment, and after that a small share of the time, however many requests come and
    however slowly a server answers."""

    def __init__(self, wait_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_s = self._left_s = wait_ms / 1000
        self._needed_s = 0.0  # the last time; with less it is not worth waiting
        self._clock = clock
        self._last = clock()

    def wait(self, asked: Asked) -> bool:
        """Whether it was answered."""
        begin = self._clock()
        self._left_s = min(self._left_s + (begin - self._last) * _WAITING_SHARE, self._most_s)
        self._last = begin
        if self._left_s < self._needed_s:
            return asked.wait(0)
        answered = asked.wait(self._left_s)
        self._last = self._clock()
        self._left_s = max(self._left_s - (self._last - begin), 0)
        self._needed_s = min(self._last - begin, self._most_s) if answered else self._most_s
        return answered


class Discovery:
    """Of one engine. ask() is the scheduler's thread's."""

    def __init__(self, wait_ms: int) -> None:
        self._wait_s = wait_ms / 1000
        self._queue: queue.Queue[Asked | None] = queue.Queue(_WAITING_MAX)
        self._began = 0.0  # the question under way; 0: there is none
        self.counters = {"discovered": 0.0, "discoveries_skipped": 0.0}
        self._thread = threading.Thread(target=self._run, name="tessera-discovery", daemon=True)
        self._thread.start()

    def ask(self, question: Callable[[], int]) -> Asked | None:
        """None: there is nothing to wait for. The question is asked in a thread of its own."""
        began = self._began
        if began and time.monotonic() - began > self._wait_s:  # the server does not answer
            self.counters["discoveries_skipped"] += 1
            return None
        asked = Asked(question, self._wait_s)
        try:
            self._queue.put_nowait(asked)
        except queue.Full:
            self.counters["discoveries_skipped"] += 1
            return None
        return asked

    def _run(self) -> None:
        while True:
            asked = self._queue.get()
            if asked is None:
                return
            if asked.pending:  # else nobody waits for it
                self._began = time.monotonic()
                try:
                    self.counters["discovered"] += asked.question()
                except Exception:
                    self.counters["discoveries_skipped"] += 1
                self._began = 0.0
            asked.answered()

    def close(self) -> None:
        """Waits for the question under way. Before what it asks with is closed."""
        while True:  # those that wait are not asked any more
            try:
                self._queue.get_nowait()
            except queue.Empty:
                break
        self._queue.put(None)
        self._thread.join()
