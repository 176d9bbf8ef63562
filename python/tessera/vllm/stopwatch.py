"""A clock for what a device or the processor computes. A device computes after it was asked to:
what it took is known later."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["Stopwatch"]


class Stopwatch:
    """Times of the device, or of the processor where that computes."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        event: Callable[[], Any] | None = None,
    ) -> None:
        """`event`: makes one for the device's current stream, as torch.cuda.Event(
        enable_timing=True); None: the processor computes, and its clock is right."""
        self._clock, self._event = clock, event

    def mark(self) -> Any:
        if self._event is None:
            return self._clock()
        event = self._event()
        event.record()
        return event

    def between(self, first: Any, last: Any) -> float | None:
        """Seconds; None: the device is not there yet."""
        if self._event is None:
            return float(last - first)
        return float(first.elapsed_time(last)) / 1000 if last.query() else None
