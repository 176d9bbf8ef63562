"""Whether a blend is faster than computing the prompt, on this machine and with this model.

A blend has a part that does not depend on its length (the question's pass, a gate's drafts) and one
that does (loads, and what is recomputed). With a small model on a fast GPU the first part alone is
more than a short prompt takes. Both are measured while the engine runs: steps of vLLM that compute
prompts, by the worker, and what became of blends, by the scheduler. Requests whose client says how
to blend them are not weighed.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ..blend_job import BlendOutcome

__all__ = ["TOKENS_MIN", "StepTime", "Worth", "device_events"]

TOKENS_MIN = 256  # of a step, and of a prompt: with fewer, all but the tokens decides
_KEPT = 9  # measurements, of which the median counts: the first ones compile kernels
_QUEUED_MAX = 64  # steps that a device may be behind with
_BLENDS_MIN = 3  # before anything is weighed
_PLAIN_EACH = 8  # while no step of vLLM was measured, each such request is computed plainly
_TRIES_SHARE = 0.01  # of the time that requests take which are not blended, for blending one again
# Of a report: what does not grow with the prompt, and what does.
_FIXED = ("query_s", "draft_s", "select_s", "judge_s")
_GROWING = ("blend_s", "wait_s")


def device_events(device: torch.device) -> Callable[[], Any] | None:
    """Makes events that have a time, for the device's current stream; None: the processor
    computes, and its clock is right."""
    if device.type != "cuda":
        return None
    return functools.partial(torch.cuda.Event, enable_timing=True)


class StepTime:
    """The worker's side: seconds that vLLM computes for each token of a prompt."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        event: Callable[[], Any] | None = None,
    ) -> None:
        """`event`: see device_events()."""
        self._clock, self._event = clock, event
        self._open: tuple[int, Any] | None = None
        self._queued: deque[tuple[int, Any, Any]] = deque(maxlen=_QUEUED_MAX)
        self._found: deque[float] = deque(maxlen=_KEPT)
        self._told = 0.0

    def begin(self, n_tokens: int) -> None:
        """A step of vLLM begins, which computes so many tokens."""
        self._open = (n_tokens, self._mark()) if n_tokens >= TOKENS_MIN else None

    def drop(self) -> None:
        """Something else is computed in it, too."""
        self._open = None

    def end(self) -> None:
        if self._open is not None:
            self._queued.append((*self._open, self._mark()))
            self._open = None
        while self._queued:
            n_tokens, first, last = self._queued[0]
            if self._event is None:
                seconds = last - first
            elif last.query():
                seconds = first.elapsed_time(last) / 1000
            else:
                return
            self._queued.popleft()
            self._found.append(seconds / n_tokens)

    def _mark(self) -> Any:
        if self._event is None:
            return self._clock()
        event = self._event()
        event.record()
        return event

    def news(self) -> float:
        """Seconds a token, if known and changed by a tenth since it was told; otherwise 0."""
        if not self._found:
            return 0.0
        row_s = statistics.median(self._found)
        if abs(row_s - self._told) <= 0.1 * self._told:
            return 0.0
        self._told = row_s
        return row_s


class Worth:
    """The scheduler's side. Used by one thread at a time."""

    def __init__(self) -> None:
        self.row_s = 0.0  # of vLLM, for a token of a prompt; 0: not known
        self._fixed_s: deque[float] = deque(maxlen=_KEPT)
        self._growing_s: deque[float] = deque(maxlen=_KEPT)  # for each token
        self._asked = 0
        self._owed_s = 0.0  # that blending one again may take

    def note(self, n_tokens: int, outcome: BlendOutcome) -> None:
        """What a blend of so many tokens took."""
        if not outcome.ok or outcome.stopped or n_tokens < TOKENS_MIN or not outcome.report:
            return
        self._fixed_s.append(_sum(outcome, _FIXED))
        self._growing_s.append(_sum(outcome, _GROWING) / n_tokens)

    def pays(self, n_tokens: int) -> bool:
        """Whether a blend of so many tokens is faster than computing them, as far as known."""
        if n_tokens < TOKENS_MIN or len(self._fixed_s) < _BLENDS_MIN:
            return True
        if not self.row_s:
            self._asked += 1
            return self._asked % _PLAIN_EACH != 0
        whole_s = n_tokens * self.row_s
        blend_s = self._blend_s(n_tokens)
        if blend_s < whole_s:
            return True
        self._owed_s += _TRIES_SHARE * whole_s
        if self._owed_s < blend_s:
            return False
        self._owed_s = 0.0
        return True

    def _blend_s(self, n_tokens: int) -> float:
        return statistics.median(self._fixed_s) + n_tokens * statistics.median(self._growing_s)


def _sum(outcome: BlendOutcome, names: tuple[str, ...]) -> float:
    return sum(float(outcome.report.get(name, 0.0)) for name in names)
