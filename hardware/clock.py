"""Time for the control loop: the machine's, or one that only moves when somebody sleeps."""

from __future__ import annotations

import time
from typing import Protocol

SPIN_S = 0.001
"""The last stretch before a tick is spent looking at the clock, since sleeping is only exact to about this."""


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
