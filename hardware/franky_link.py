"""The connection to a Franka arm through franky, and what can go wrong with it.

A controller takes one client. Connecting while another is there, or while the controller hangs, waits for ever; and
after a second of silence a connection is dead and blocks each reading for a second. If it falls silent while a motion
begins, every call waits for ever, letting go of the connection included. So whatever may wait is done on a thread of
its own, with a timeout, and an attempt that still hangs is waited for instead of begun a second time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

from cosmos_robot.errors import DependencyError, RobotError
from cosmos_robot.hardware.clock import before_others

try:
    import franky
except ModuleNotFoundError as error:
    raise DependencyError(
        "driving a Franka arm needs franky-control: pip install 'cosmos-robot[franka]', or from a checkout: "
        "uv sync --all-extras"
    ) from error

RETRY_S: Final = 0.2
FAULTS: Final = (
    franky.Exception,
    franky.InvalidMotionTypeException,
    franky.MotionReuseException,
    franky.GripperException,
    RuntimeError,
)
"""What franky raises for a robot that cannot go on."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Faults of franky as RobotError, with ``what`` was being done."""
    try:
        yield
    except FAULTS as error:
        if isinstance(error, RobotError):
            raise
        raise RobotError(f"{what}: {type(error).__name__}: {error}") from error


class Link:
    """One connection at a time to the controller at ``host``.

    realtime: ``enforce`` asks the operating system for real-time scheduling, as a real arm needs; ``ignore`` is for a
    simulator. prepare: called with each new connection.
    """

    def __init__(self, host: str, realtime: Literal["enforce", "ignore"], prepare: Callable[[Any], None]):
        self.host, self._prepare = host, prepare
        self._enforced = realtime == "enforce"
        self._realtime = franky.RealtimeConfig.Enforce if realtime == "enforce" else franky.RealtimeConfig.Ignore
        self._robot: Any = None
        self._attempt: _Attempt | None = None
        self._leaving: threading.Thread | None = None

    @property
    def robot(self) -> Any:
        """franky's robot, to be used and not kept: the traceback of an error would keep the connection with it. Raises
        RobotError while there is no connection."""
        if self._robot is None:
            raise RobotError(f"no connection to the arm at {self.host}; call connect(), or recover() after a fault")
        return self._robot

    @property
    def open(self) -> bool:
        """Whether there is a connection, dead or alive."""
        return self._robot is not None

    def move(self, motion: Any) -> None:
        """Begin ``motion``, or go over to it from the one before. With the first begins a thread of franky's that has a
        millisecond for each command; libfranka asks for its priority itself where real time is enforced."""
        with contextlib.nullcontext() if self._enforced else before_others(inherited=True):
            self.robot.move(motion, asynchronous=True)

    def connect(self, timeout_s: float) -> None:
        """Make a connection, trying again while it is refused. Raises RobotError after ``timeout_s``."""
        end = time.monotonic() + timeout_s
        if self._leaving is not None:
            self._leaving.join(timeout_s)
            if self._leaving.is_alive():
                raise RobotError(f"the arm at {self.host} has been silent for {timeout_s:g} s; restart its controller")
        while True:
            if self._attempt is None:
                self._attempt = _Attempt(self._build)
            if not self._attempt.over.wait(max(0.0, end - time.monotonic())):
                raise RobotError(
                    f"the arm at {self.host} did not answer within {timeout_s:g} s; is another program connected to "
                    "it, or the controller busy?"
                )
            attempt, self._attempt = self._attempt, None
            if attempt.robot is not None:
                self._robot = attempt.robot
                return
            if time.monotonic() + RETRY_S >= end:
                raise RobotError(
                    f"cannot connect to the arm at {self.host}: {attempt.fault}; is it on, unlocked and FCI active?"
                )
            time.sleep(RETRY_S)

    def drop(self) -> None:
        """Let go of the connection, dead or alive, without waiting for it. Safe to call twice."""
        if self._robot is not None:
            kept = [self._robot]
            self._robot = None
            self._leaving = threading.Thread(target=kept.clear, name="franka leave", daemon=True)
            self._leaving.start()

    def abandon(self) -> None:
        """As ``drop``, and an attempt that still hangs is let go of when it ends."""
        self.drop()
        if self._attempt is not None:
            self._attempt.unwanted.set()
            self._attempt = None

    def _build(self) -> Any:
        robot = franky.Robot(self.host, realtime_config=self._realtime)
        self._prepare(robot)
        return robot


def in_time(work: Callable[[], Any], timeout_s: float) -> bool:
    """Whether ``work`` ended within ``timeout_s``, well or badly; it goes on alone if not."""
    thread = threading.Thread(target=_quietly, args=(work,), name="franka call", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()


def _quietly(work: Callable[[], Any]) -> None:
    with contextlib.suppress(*FAULTS):
        work()


class _Attempt:
    """One attempt to connect, on its own thread."""

    def __init__(self, build: Callable[[], Any]):
        self.robot: Any = None
        self.fault = ""
        self.over, self.unwanted = threading.Event(), threading.Event()
        threading.Thread(target=self._work, args=(build,), name="franka connect", daemon=True).start()

    def _work(self, build: Callable[[], Any]) -> None:
        try:
            robot = build()
        except Exception as error:  # noqa: BLE001 - told by whoever waits
            self.fault = f"{type(error).__name__}: {error}"
        else:
            self.robot = None if self.unwanted.is_set() else robot
        self.over.set()
