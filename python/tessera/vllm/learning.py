"""Documents that are stored after the answer.

The first question about a document is computed by vLLM like any other: blending would be slower,
and not exact. When it has its answer its blocks, which no other request shares (marks.isolate),
stay with the worker, which computes the documents alone in them and stores them, beside other
requests or when there are none. The second question is blended.

Nobody waits for that, so it must not be in the way of anybody: few requests' blocks are kept, and
they are given back at once when vLLM lacks blocks. Beside other requests it takes a tenth of the
time.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ..blend_job import BlendJob, BlendOutcome
from .stopwatch import Stopwatch

__all__ = ["LearnTime", "Learning"]

_REQUESTS_MAX = 8
_SHARE_MAX = 0.25  # of vLLM's blocks
_LEARN_SHARE = 0.1  # of the time, beside other requests
_PIECES_MAX = 1024  # that a device may be behind with; of older ones only the asking counts


class LearnTime:
    """The worker's side: how long documents may be computed now, beside other requests, which would
    otherwise wait for that in every step. A piece that takes longer than it may is paid for by the
    next ones.

    A device computes after it was asked to: what it took is known later, and counts then."""

    def __init__(
        self,
        most_s: float,
        clock: Callable[[], float] = time.perf_counter,
        event: Callable[[], Any] | None = None,
    ) -> None:
        """`most_s`: that a step may be held. `event`: makes one for the device's current stream, as
        torch.cuda.Event(enable_timing=True); None: the processor computes."""
        self._most_s = self._left_s = most_s
        self._clock = clock
        self._watch = Stopwatch(clock, event)
        self._on_device = event is not None
        self._last = clock()
        self._queued: deque[tuple[Any, Any, float]] = deque(maxlen=_PIECES_MAX)

    def left_s(self) -> float:
        while self._queued:
            first, last, asked_s = self._queued[0]
            seconds = self._watch.between(first, last)
            if seconds is None:
                break
            self._queued.popleft()
            self.spend(max(seconds - asked_s, 0.0))
        now = self._clock()
        more_s = (now - self._last) * _LEARN_SHARE
        self._last = now
        self._left_s = min(self._left_s + more_s, self._most_s)
        return self._left_s

    def spend(self, seconds: float) -> None:
        self._left_s -= seconds

    @contextlib.contextmanager
    def piece(self) -> Iterator[None]:
        """Around what is computed."""
        begin = self._clock()
        first = self._watch.mark() if self._on_device else None
        try:
            yield
        finally:
            asked_s = self._clock() - begin
            self.spend(asked_s)
            if first is not None:
                self._queued.append((first, self._watch.mark(), asked_s))


class Learning:
    """The scheduler's side. Used by one thread at a time."""

    def __init__(self, n_blocks: int) -> None:
        self._blocks_max = int(n_blocks * _SHARE_MAX)
        self._blocks: dict[int, int] = {}  # kept by request
        self._stops: list[int] = []

    @property
    def busy(self) -> bool:
        """A worker has blocks that vLLM waits for."""
        return bool(self._blocks)

    def has_room(self, n_blocks: int) -> bool:
        kept = sum(self._blocks.values())
        return len(self._blocks) < _REQUESTS_MAX and kept + n_blocks <= self._blocks_max

    def begin(self, job: BlendJob) -> None:
        self._blocks[job.number] = len(job.blocks)

    def stop(self) -> None:
        """The workers give back all blocks as soon as they can, and keep what is stored."""
        self._stops = list(self._blocks)

    def take_stops(self) -> list[int]:
        stops, self._stops = self._stops, []
        return stops

    def ended(self, outcome: BlendOutcome) -> bool:
        """False: it is no outcome of ours."""
        return self._blocks.pop(outcome.number, None) is not None
