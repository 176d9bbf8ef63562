"""Finds what other machines have stored: asks the tiers that they share for the prompt of a request
when it comes.

A lookup never waits for a network, so it finds only what this cache has stored or met. A thread of
its own asks here, in one round trip, for all chunks that are not known, while the request is in the
engine's queue. The scheduler leaves the request there for a moment, and then looks up whatever is
known by then. A request that stays in the queue for longer, because others are computed first, is
still asked for, and finds the answer when it is looked up again. Nobody waits for a server that is
slow or away: while one question takes longer than that moment, no other request waits.

A tesserad may start after its engine, or start again with other tiers. So an engine that uses one
looks again, at most once a second and in the same thread, whether there is a tier to ask.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from . import _c as c
from ._lib import library

__all__ = ["WAIT_MS", "Asked", "Discovery", "Patience", "close_discovery", "has_shared_tier"]

logger = logging.getLogger(__name__)
WAIT_MS = 50
_SHARED = ("redis", "s3")
_WAITING_MAX = 4096
_WAITING_SHARE = 0.02  # of the time
_LOOK_S = 1.0

Closer = Callable[[], object]


def has_shared_tier(cache: ctypes.c_void_p) -> bool:
    """Whether a cache, perhaps a server's, has a tier that other machines fill. A server that is
    away has none."""
    row = c.Stats(size=ctypes.sizeof(c.Stats))
    if library().tsr_cache_stats(cache, ctypes.byref(row)) < 0:
        return False
    return any(bytes(name.text).decode() in _SHARED for name in row.tier_names)


class Asked:
    """A prompt that was asked for. `question` asks, and returns how many chunks there are; it is
    called by a thread of its own, unless the request was forgotten before."""

    __slots__ = ("_answered", "_until", "_wanted", "question")

    def __init__(self, question: Callable[[], int], wait_s: float) -> None:
        self.question: Callable[[], int] | None = question
        self._answered = threading.Event()
        self._wanted = True
        self._until = time.monotonic() + wait_s

    @property
    def pending(self) -> bool:
        """Whether its request should wait on."""
        return not self._answered.is_set() and time.monotonic() < self._until

    @property
    def answered(self) -> bool:
        """Whether a lookup finds now what there is. Also true for a question that failed."""
        return self._answered.is_set()

    @property
    def wanted(self) -> bool:
        return self._wanted

    def forget(self) -> None:
        """Its request has left the queue: what is not asked by now is not asked."""
        self._wanted = False

    def end(self) -> None:
        self.question = None  # with the tokens it holds
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
    """Of one engine. ask() and close() are the scheduler's thread's."""

    def __init__(
        self,
        wait_ms: int,
        look: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look`: whether there is a tier to ask, where that may change: a server's, which is
        perhaps not there yet. None: there is one."""
        self._wait_s = wait_ms / 1000
        self._look = look
        self._clock = clock
        self._shared = look is None or look()
        self._looked_at = clock()
        self._changed = threading.Condition()  # with its lock: all below
        self._queue: deque[Asked] = deque()
        self._began = 0.0  # the question or look under way; 0: there is none
        self._wants_look = self._closed = False
        self._closers: list[Closer] = []
        self._ender: threading.Thread | None = None  # runs them, after a question under way
        self.counters = {"discovered": 0.0, "discoveries_skipped": 0.0}
        self._thread = threading.Thread(target=self._run, name="tessera-discovery", daemon=True)
        self._thread.start()

    def is_ready(self) -> bool:
        """Whether there is a tier to ask, so that a question is worth its making."""
        with self._changed:
            if self._closed:
                return False
            self._look_again()
            return self._shared

    def ask(self, question: Callable[[], int]) -> Asked | None:
        """None: there is nothing to ask. The question is asked in a thread of its own."""
        if not self.is_ready():
            return None
        with self._changed:
            slow = self._began and time.monotonic() - self._began > self._wait_s
            if len(self._queue) >= _WAITING_MAX:
                self._drop_unwanted()
            if len(self._queue) >= _WAITING_MAX:
                self.counters["discoveries_skipped"] += 1
                return None
            asked = Asked(question, 0 if slow else self._wait_s)
            self._queue.append(asked)
            self._changed.notify()
            return asked

    def _look_again(self) -> None:
        """At most once a second, and never in the scheduler's thread: a server may be slow."""
        if self._look is None or self._wants_look:
            return
        if self._clock() - self._looked_at >= _LOOK_S:
            self._wants_look = True
            self._changed.notify()

    def _drop_unwanted(self) -> None:
        wanted = [asked for asked in self._queue if asked.wanted]
        self._queue.clear()
        self._queue.extend(wanted)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._closed or self._queue or self._wants_look):
                    self._changed.wait()
                if self._closed:
                    return
                looks = self._wants_look
                asked = None if looks else self._queue.popleft()
                self._began = time.monotonic()
            if asked is None:
                self._look_now()
            else:
                self._answer(asked)
            with self._changed:
                self._began = 0.0

    def _look_now(self) -> None:
        try:
            shared = self._look is None or self._look()
        except Exception:
            shared = False
        with self._changed:
            self._shared = shared
            self._wants_look = False
            self._looked_at = self._clock()

    def _answer(self, asked: Asked) -> None:
        question = asked.question
        if asked.wanted and question is not None:
            try:
                self.counters["discovered"] += question()
            except Exception:
                self.counters["discoveries_skipped"] += 1
        elif not asked.wanted:  # it was computed before its turn came
            self.counters["discoveries_skipped"] += 1
        asked.end()

    def close(self, closers: Sequence[Closer] = ()) -> None:
        """Asks no more, then calls `closers`, which close what questions are asked with. Nobody
        waits for a question under way: a thread calls them when it has ended, and Python does not
        exit before. May be called again, with more to close: in that order."""
        with self._changed:
            self._closed = True
            for asked in self._queue:
                asked.end()
            self._queue.clear()
            self._changed.notify()
            if self._ender is not None or (self._began and self._start_ender()):
                self._closers.extend(closers)
                return
        self._thread.join()
        _call(closers)

    def _start_ender(self) -> bool:
        """False: Python is about to exit and starts no threads."""
        ender = threading.Thread(target=self._end, name="tessera-discovery-end", daemon=False)
        try:
            ender.start()
        except RuntimeError:
            return False
        self._ender = ender
        return True

    def _end(self) -> None:
        self._thread.join()
        while True:
            with self._changed:
                closers, self._closers = self._closers, []
                if not closers:
                    self._ender = None
                    return
            _call(closers)


def close_discovery(discovery: Discovery | None, closers: Sequence[Closer]) -> None:
    """Closes what a discovery asks with, now or when a question under way has ended. Of an engine
    that ends, the cache is the last of them."""
    if discovery is None:
        _call(closers)
    else:
        discovery.close(closers)


def _call(closers: Sequence[Closer]) -> None:
    for closer in closers:
        try:
            closer()
        except Exception as error:
            logger.warning("tessera: %s", error)
