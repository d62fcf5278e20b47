"""A gripper on a thread of its own: its calls block for seconds, and the control loop must not notice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from cosmos_robot.errors import RobotError

LOOK_S: Final = 0.05
RETRY_S: Final = 0.5
CLOSE_S: Final = 3.0


class Hand(Protocol):
    """A gripper's driver. Every call may block; all come from the gripper's own thread."""

    def start(self, open: bool) -> None:
        """Begin to open, or to close with the grasping force."""
        ...

    def settled(self, wait_s: float) -> bool:
        """Whether the motion begun last has ended, after waiting for it at most ``wait_s`` if the driver can."""
        ...

    def openness(self) -> float:
        """How far it is open now, 0 to 1."""
        ...

    def close(self) -> None:
        """Let go of it. Safe to call twice."""
        ...


class Gripper:
    """Open or closed, on a thread of its own. The newest command wins; one that changes nothing is not sent again.

    make: connects to the hand; called on the thread, and again after a fault.
    """

    def __init__(self, make: Callable[[], Hand]):
        self._make = make
        self._wake = threading.Condition()
        self._wanted: bool | None = None
        self._openness: float | None = None
        self._fault = "it has not answered yet"
        self._closing = False
        self.sent: list[tuple[float, bool]] = []
        """Every command that reached the hand: its time, and whether it opens."""
        self._thread = threading.Thread(target=self._work, name="gripper", daemon=True)
        self._thread.start()

    def command(self, open: bool) -> None:
        """Open or close; returns at once."""
        with self._wake:
            if open != self._wanted:
                self._wanted = open
                self._wake.notify()

    @property
    def openness(self) -> float:
        """How far it was open when it was last read, 0 to 1. Raises RobotError before the first reading."""
        if self._openness is None:
            raise RobotError(f"gripper: {self._fault}")
        return self._openness

    @property
    def fault(self) -> str:
        """What is wrong with it now; empty if nothing is."""
        return self._fault

    def wait(self, timeout_s: float) -> None:
        """Until it has been read once. Raises RobotError after ``timeout_s``."""
        end = time.monotonic() + timeout_s
        with self._wake:
            while self._openness is None:
                if not self._wake.wait(end - time.monotonic()):
                    raise RobotError(
                        f"gripper: no state within {timeout_s:g} s: {self._fault}; is it powered and homed?"
                    )

    def close(self) -> None:
        """End the thread and let go of the hand; one that hangs is left behind. Safe to call twice."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while not self._closing:
            try:
                self._serve(self._make())
            except Exception as error:  # noqa: BLE001 - a driver may raise anything; it is connected anew
                self._fault = f"{type(error).__name__}: {error}"
                with self._wake:
                    self._wake.wait_for(lambda: self._closing, RETRY_S)

    def _serve(self, hand: Hand) -> None:
        done: bool | None = None  # after a new connection nobody knows what the hand was last told
        moving = False
        try:
            while not self._closing:
                self._look(hand)
                if moving:
                    moving = not hand.settled(LOOK_S)
                    continue
                with self._wake:
                    if self._wanted in (None, done):
                        self._wake.wait(LOOK_S)
                    wanted = self._wanted
                if not self._closing and wanted is not None and wanted != done:
                    self.sent.append((time.monotonic(), wanted))
                    hand.start(wanted)
                    done, moving = wanted, True
        finally:
            hand.close()

    def _look(self, hand: Hand) -> None:
        openness = min(1.0, max(0.0, float(hand.openness())))
        with self._wake:
            self._openness, self._fault = openness, ""
            self._wake.notify_all()
