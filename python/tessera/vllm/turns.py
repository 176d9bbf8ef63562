"""Whose turn it is among a worker's blends: several are under way at once, cut into pieces that
share steps with other requests.

Loads and stores of all of them go on side by side, by threads. What is computed begins together and
goes on layer by layer: those that stand before a pass wait for each other, as far as a moment is
enough, and then each takes one step in turn (graphs.py computes such a layer once for all). Whoever
comes later waits until that pass is over.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from ..blend_job import BlendJob, BlendOutcome
from .learning import LearnTime
from .stopwatch import Stopwatch

__all__ = ["HELD_S", "Report", "Steps", "Turns"]

Report = dict[str, "float | int | str"]
# What a blend does between two places where it may pause: rows through a layer, something that it
# waits for, or None, before it begins a pass. Its end is the report.
Steps = Generator["int | Future[bool] | None", None, Report]

HELD_S, _HELD_ALONE_S = 0.025, 0.1  # that a step may be held, beside other requests and alone
# That a step beside others waits for what blends wait for: shorter than a step, which they would
# lose at each of their passes otherwise.
GRACE_S = 0.004
_LEARN_TOKENS = 512  # of a step that other requests are in, for text that nobody waits for


class Turns:
    """Used by one thread. `steps`: those of a job; `lanes`: how many may be under way."""

    def __init__(
        self,
        steps: Callable[[BlendJob], Steps],
        lanes: int,
        n_layers: int,
        learn_time: LearnTime,
        complain: Callable[[Exception], None],
        watch: Stopwatch | None = None,
    ) -> None:
        self._steps = steps
        self._held = _Held(watch or Stopwatch())
        self._lanes = lanes
        self._n_layers = n_layers
        self.learn_time = learn_time
        self._complain = complain
        self._queue: deque[_Begun] = deque()
        self.beside = False  # other requests are in the step of now

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, job: BlendJob) -> None:
        """A blend to be done by advance(), after those before it. Nobody waits for documents that
        are stored after an answer: they come last. One that is begun gives way, and begins anew
        with what it has not stored."""
        at = len(self._queue)
        if not job.learn:
            at = self._first_learner()
            for begun in self._queue:
                begun.paused |= begun.job.learn and begun.started
        self._queue.insert(at, _Begun(job, self._steps(job)))

    def _first_learner(self) -> int:
        """Those that are begun and stop keep their place."""
        return sum(begun.started or not begun.job.learn for begun in self._queue)

    def drop(self, number: int) -> bool:
        """Nobody waits for this blend any more. True: nothing writes into its blocks from now on.
        False: it is not there, or it waits for a tier, and advance() says when it has stopped."""
        for begun in self._queue:
            if begun.job.number == number:
                begun.unwanted = True
                return self._stopped(begun, 0)
        return False

    def _stopped(self, begun: _Begun, wait_s: float | None) -> bool:
        """Ends a blend that nobody wants, unless it waits for longer than wait_s."""
        if not begun.rests(wait_s):
            return False
        begun.close()
        self._queue.remove(begun)
        if begun.paused and not begun.unwanted:
            self._queue.insert(self._first_learner(), _Begun(begun.job, self._steps(begun.job)))
        return True

    def close(self) -> None:
        while self._queue:
            self._queue.popleft().close()

    def advance(self, budget: int | None, wait_s: float, learn: bool) -> list[BlendOutcome]:
        """See BlendWorker.advance()."""
        turn = _Turn(budget, wait_s, self._n_layers)
        self.beside = turn.beside
        while self._queue and turn.goes_on:
            active = self._stop_some(turn)
            active += self._begin_some(turn, learn, self._lanes - len(active))
            active = [one for one in active if not one.stops]
            late = [one for one in active if one.waits]
            movable = [one for one in active if not one.waits]
            going = [one for one in movable if not one.passing and not one.ready]
            going = going or [one for one in movable if one.passing]
            if not going:
                self._held.stop()
                ready = [one for one in movable if one.ready]
                if turn.wait(late, bool(ready)):
                    continue
                going = ready
                if not going:
                    break
            for begun in going:
                self._held.by(begun)
                self._go_on(begun, turn)
        self._held.stop()
        return turn.outcomes

    def _stop_some(self, turn: _Turn) -> list[_Begun]:
        """Those that are under way, less those that could be stopped."""
        for begun in [one for one in self._queue if one.stops]:
            stopped = self._stopped(begun, turn.patience_s)
            if stopped and begun.unwanted:
                turn.end(begun, False, {}, stopped=True)
        return [one for one in self._queue if one.started]

    def _begin_some(self, turn: _Turn, learn: bool, n: int) -> list[_Begun]:
        """The next ones, as far as there are lanes; documents are learned one at a time, while
        nobody waits for anything."""
        wanted = [one for one in self._queue if not one.started and not one.job.learn]
        if wanted or n < self._lanes or not learn:
            return wanted[:n]
        learners = [one for one in self._queue if one.job.learn][:1]
        if turn.beside and self.learn_time.left_s() <= 0:
            return []
        return learners

    def _go_on(self, begun: _Begun, turn: _Turn) -> None:
        beside = begun.job.learn and turn.beside
        if beside and begun.started and self.learn_time.left_s() <= 0:
            turn.left = 0
            return
        if beside:
            turn.left = min(turn.left, _LEARN_TOKENS * self._n_layers)
        try:
            with self.learn_time.piece() if beside else contextlib.nullcontext():
                turn.left -= begun.go_on()
        except StopIteration as end:
            self._held.stop()
            turn.end(begun, True, end.value)
        except Exception as error:
            self._complain(error)
            turn.end(begun, False, {})
        else:
            return
        self._queue.remove(begun)


class _Turn:
    """What a call of advance() may still do, and what has ended in it."""

    def __init__(self, budget: int | None, wait_s: float, n_layers: int) -> None:
        self.left = math.inf if budget is None else float(budget * n_layers)
        self.beside = budget is not None and not wait_s  # other requests
        self.patience_s = None if budget is None else wait_s
        held_s = _HELD_ALONE_S if wait_s else HELD_S
        self._until = math.inf if budget is None else time.perf_counter() + held_s
        self.outcomes: list[BlendOutcome] = []

    @property
    def goes_on(self) -> bool:
        return self.left > 0 and time.perf_counter() < self._until

    def wait(self, late: Sequence[_Begun], hurries: bool) -> bool:
        """Waits until one of these can go on; `hurries`: somebody else could. False: it takes too
        long."""
        if not late:
            return False
        limit_s = None if hurries else self.patience_s
        if limit_s is not None or hurries:
            fresh = any(not one.waited_for and not one.job.learn for one in late)
            limit_s = max(limit_s or 0, GRACE_S if fresh else 0)
        done, _late = wait([one.future for one in late], limit_s, FIRST_COMPLETED)
        if not done:
            for one in late:
                one.waited_for = True  # a moment was not enough
        return bool(done)

    def end(self, begun: _Begun, ok: bool, report: Report, stopped: bool = False) -> None:
        self.outcomes.append(
            BlendOutcome(begun.job.number, ok, report, begun.seconds, stopped, begun.busy_s)
        )


class _Held:
    """How long the device computes for whom: those that go on together share the time, because
    their layers may be computed at once."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._first: tuple[Any, float] | None = None
        self._who: list[_Begun] = []

    def by(self, begun: _Begun) -> None:
        if self._first is None:
            self._first = self._watch.mark(), time.perf_counter()
        if begun not in self._who:
            self._who.append(begun)

    def stop(self) -> None:
        if self._first is None:
            return
        mark, begin = self._first
        span = _Span(self._watch, mark, self._watch.mark(), time.perf_counter() - begin)
        for begun in self._who:
            begun.spans.append((span, len(self._who)))
        self._first, self._who = None, []


@dataclass(frozen=True)
class _Span:
    watch: Stopwatch
    first: Any
    last: Any
    asked_s: float  # by the processor, until it was queued

    @property
    def seconds(self) -> float:
        seconds = self.watch.between(self.first, self.last)
        return self.asked_s if seconds is None else seconds  # the end of a blend, which has waited


class _Begun:
    """A blend that was begun, or will be."""

    def __init__(self, job: BlendJob, steps: Steps) -> None:
        self.job = job
        self._steps = steps
        self.future: Future[bool] = Future()  # that it waits for, or has waited for
        self.future.set_result(True)
        self.waited_for = False  # and it was not there in time
        self.ready = False  # it stands before a pass
        self.passing = False  # it is in a pass
        self._start: float | None = None
        self.unwanted = False  # its request has ended
        self.paused = False  # somebody waits for another one: it begins anew later
        self.spans: list[tuple[_Span, int]] = []  # in which it went on, with how many in all

    @property
    def started(self) -> bool:
        return self._start is not None

    @property
    def stops(self) -> bool:
        return self.unwanted or self.paused

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start if self._start is not None else 0.0

    @property
    def busy_s(self) -> float:
        return sum(span.seconds / n for span, n in self.spans)

    def go_on(self) -> int:
        """Returns how many rows went through a layer. StopIteration has the report."""
        if self._start is None:
            self._start = time.perf_counter()
        self.passing |= self.ready
        self.ready = self.waited_for = False
        found = next(self._steps)
        if found is None:
            self.ready = True
        elif isinstance(found, Future):
            self.future = found
        else:
            return found
        self.passing = False
        return 0

    @property
    def waits(self) -> bool:
        return not self.future.done()

    def rests(self, wait_s: float | None) -> bool:
        """False: it still waits for something after wait_s (None: however long that takes)."""
        wait([self.future], wait_s)
        return not self.waits

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._steps.close()
