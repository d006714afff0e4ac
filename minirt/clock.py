"""What time means in a run: steps, real seconds, or the seconds a cost model says.

The engine asks for the time at the start of a step, tells the clock what was computed, and asks again.
Arrivals are compared with this time, so they are honoured under every clock. When there is nothing to
do, the step and model clocks jump to the next arrival and the wall clock sleeps until then.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Protocol

from .errors import ConfigError

if TYPE_CHECKING:
    from .backends.base import ForwardBatch


METHODS = ("reset", "now", "advance", "idle_until")


class Clock(Protocol):
    """name and unit ("step" or "s") go into the trace's header."""

    name: str
    unit: str

    def reset(self) -> None:
        """Start again at 0."""

    def now(self) -> float:
        """The time."""

    def advance(self, backend: Any, batches: list[ForwardBatch], swapped_blocks: int) -> None:
        """A step has computed these forwards and copied so many blocks to or from the host."""

    def idle_until(self, when: float) -> None:
        """There is nothing to do before `when`."""


class _VirtualClock:
    """A time that only moves when it is told to."""

    def __init__(self) -> None:
        self._now = 0.0

    def reset(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now


class StepClock(_VirtualClock):
    """A step is 1. The same on every machine: all compared outputs of the course use it."""

    name, unit = "step", "step"

    def advance(self, backend: Any, batches: list[ForwardBatch], swapped_blocks: int) -> None:
        self._now += 1.0

    def idle_until(self, when: float) -> None:
        self._now = max(self._now, float(math.ceil(when)))


def checked_clock(clock: Any) -> Clock:
    """The clock an engine is to use: None is a StepClock. Raises ConfigError for what is no clock."""
    if clock is None:
        return StepClock()
    if isinstance(clock, type) or not all(callable(getattr(clock, m, None)) for m in METHODS):
        raise ConfigError(f"clock={clock!r} is no clock; pass an object such as StepClock() or WallClock().")
    return clock  # type: ignore[no-any-return]


class WallClock:
    """Real seconds since the start of the run."""

    name, unit = "wall", "s"

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def reset(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def advance(self, backend: Any, batches: list[ForwardBatch], swapped_blocks: int) -> None:
        pass  # it went by itself

    def idle_until(self, when: float) -> None:
        while (left := when - self.now()) > 0:
            time.sleep(min(left, 0.2))  # short naps, so that an interrupt is felt


class ModelClock(_VirtualClock):
    """Virtual seconds: each step takes what the backend's cost model says. Needs a backend with step_cost()."""

    name, unit = "model", "s"

    def advance(self, backend: Any, batches: list[ForwardBatch], swapped_blocks: int) -> None:
        self._now += backend.step_cost(batches, swapped_blocks)

    def idle_until(self, when: float) -> None:
        self._now = max(self._now, when)
