"""Time for the control loop: the machine's, or one that only moves when somebody sleeps."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

SPIN_S = 0.004
"""The last stretch before a tick is spent looking at the clock: on a busy machine a sleeper wakes this much late."""

PRIORITY: Final = 10
"""Above everything that has none, below what a robot's own driver asks for."""


class Clock(Protocol):
    """A clock that does not go back, in seconds."""

    def now(self) -> float:
        """The present time."""
        ...

    def sleep_until(self, when: float) -> None:
        """Return at ``when``, or at once if that has passed."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """The present time."""
        return time.monotonic()

    def sleep_until(self, when: float) -> None:
        """Return at ``when``, or at once if that has passed."""
        while (left := when - time.monotonic()) > 0:
            time.sleep(max(left - SPIN_S, 0))


class VirtualClock:
    """A clock whose sleeps take no time: the same run, whatever the machine does meanwhile."""

    def __init__(self, start: float = 0.0):
        self._now = start

    def now(self) -> float:
        """The present time."""
        return self._now

    def sleep_until(self, when: float) -> None:
        """Make it ``when``, unless it is later already."""
        self._now = max(self._now, when)


@contextmanager
def before_others(priority: int = PRIORITY, inherited: bool = False) -> Iterator[bool]:
    """The calling thread runs before all without real-time priority, where the system allows it; yields whether it
    does (Linux: as root, or with an ``rtprio`` limit). Threads and processes begun inside do not inherit it, unless
    ``inherited``."""
    if not hasattr(os, "sched_setscheduler"):
        yield False
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        for_others = 0 if inherited else os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, os.SCHED_FIFO | for_others, os.sched_param(priority))
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, policy, parameters)
