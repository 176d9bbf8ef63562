"""Whether a blend is faster than computing the prompt, on this machine and with this model.

A blend has costs that do not depend on its length: the question's pass, a gate's drafts. With a
small model on a fast GPU they are more than a short prompt takes. Both are measured while the
engine runs, by the time in which the device computes: steps of vLLM that compute prompts, and what
a worker computes for blends. Waiting is not weighed: a tier that is late for a while says nothing
about computing, and others compute meanwhile.

Requests whose client says how to blend them are not weighed.
"""

from __future__ import annotations

import functools
import statistics
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ..blend_job import BlendOutcome
from .stopwatch import Stopwatch

__all__ = ["TOKENS_MIN", "StepTime", "Worth", "device_events", "prompt_tokens"]

TOKENS_MIN = 256  # of a step that is measured: with fewer, all but the tokens decides
_EACH_MIN = 32  # of these, for each request in the step: others are mostly decoding
_KEPT = 9  # steps, of which the median counts: the first ones compile kernels
_STEPS_MIN = 3  # before anything is said
_QUEUED_MAX = 64  # steps that a device may be behind with
_BLENDS_KEPT = 64
_BLENDS_MIN = 3  # of about the same length, before anything is weighed
_NEAR = 2.0  # about the same length: up to so many times as long or as short
_PLAIN_EACH = 8  # while no step of vLLM was measured, each such request is computed plainly
# What is declined is tried again: in this share of the time that it takes computed, and after so
# many in a row.
_TRIES_SHARE, _DECLINED_MAX = 0.01, 1000


def device_events(device: torch.device) -> Callable[[], Any] | None:
    """Makes events that have a time, for the device's current stream; None: the processor
    computes, and its clock is right."""
    if device.type != "cuda":
        return None
    return functools.partial(torch.cuda.Event, enable_timing=True)


def prompt_tokens(n_tokens: int, n_requests: int) -> int:
    """What a step of so many tokens computes of prompts, if that is nearly all that it does; else
    0."""
    return n_tokens if n_tokens >= max(TOKENS_MIN, _EACH_MIN * n_requests) else 0


class StepTime:
    """The worker's side: seconds that vLLM computes for each token of a prompt."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._open: tuple[int, Any] | None = None
        self._queued: deque[tuple[int, Any, Any]] = deque(maxlen=_QUEUED_MAX)
        self._found: deque[float] = deque(maxlen=_KEPT)
        self._changed = False
        self._told = 0.0

    def begin(self, n_tokens: int) -> None:
        """A step of vLLM begins, which computes so many tokens of prompts; 0: it does not count.
        Again: it begins only now."""
        self._open = (n_tokens, self._watch.mark()) if n_tokens else None

    def end(self) -> None:
        """May be called twice."""
        if self._open is not None:
            self._queued.append((*self._open, self._watch.mark()))
            self._open = None
        while self._queued:
            n_tokens, first, last = self._queued[0]
            seconds = self._watch.between(first, last)
            if seconds is None:
                return
            self._queued.popleft()
            self._found.append(seconds / n_tokens)
            self._changed = True

    def news(self) -> float:
        """Seconds a token, if known and changed by a tenth since it was told; otherwise 0."""
        if not self._changed or len(self._found) < _STEPS_MIN:
            return 0.0
        self._changed = False
        row_s = statistics.median(self._found)
        if abs(row_s - self._told) <= 0.1 * self._told:
            return 0.0
        self._told = row_s
        return row_s


class Worth:
    """The scheduler's side. Used by one thread at a time."""

    def __init__(self) -> None:
        self.row_s = 0.0  # of vLLM, for a token of a prompt; 0: not known
        self._seen: deque[tuple[int, float]] = deque(maxlen=_BLENDS_KEPT)  # tokens, seconds
        self._unknown = self._declined = 0  # in a row
        self._owed_s = 0.0  # that blending one again may take

    def note(self, n_tokens: int, outcome: BlendOutcome) -> None:
        """What a blend of so many tokens took. One that pays after all, where others did not, is
        believed: tries are few."""
        if not outcome.ok or outcome.stopped or not outcome.busy_s:
            return
        n_tokens = max(n_tokens, TOKENS_MIN)
        known = self._blend_s(n_tokens)
        whole_s = n_tokens * self.row_s
        if known is not None and outcome.busy_s < whole_s <= known:
            old = [one for one in self._seen if not _near(one[0], n_tokens)]
            self._seen.clear()
            self._seen.extend(old)
        self._seen.append((n_tokens, outcome.busy_s))

    def pays(self, n_tokens: int) -> bool:
        """Whether a blend of so many tokens is faster than computing them, as far as known."""
        measurable = n_tokens >= TOKENS_MIN
        n_tokens = max(n_tokens, TOKENS_MIN)
        blend_s = self._blend_s(n_tokens)
        if blend_s is None:
            return True
        if not self.row_s:
            self._unknown += measurable
            return not measurable or self._unknown % _PLAIN_EACH != 0
        whole_s = n_tokens * self.row_s
        if blend_s < whole_s:
            self._declined = 0
            return True
        self._declined += 1
        self._owed_s += _TRIES_SHARE * whole_s
        if self._owed_s < blend_s and self._declined < _DECLINED_MAX:
            return False
        self._owed_s, self._declined = 0.0, 0
        return True

    def _blend_s(self, n_tokens: int) -> float | None:
        """None: too few of about this length are known."""
        near = [seconds for n, seconds in self._seen if _near(n, n_tokens)][-_KEPT:]
        return statistics.median(near) if len(near) >= _BLENDS_MIN else None


def _near(one: int, other: int) -> bool:
    return max(one, other) <= _NEAR * min(one, other)
