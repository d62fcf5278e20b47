"""The connection to a Franka arm and its hand through franky, and what can go wrong with it.

A controller takes one client. Connecting while another is there, or while the controller hangs, waits for ever; and
after a second of silence a connection is dead and blocks each reading for a second. So connections are made on a
thread of their own, with a timeout, and an attempt that still hangs is waited for instead of begun a second time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

from cosmos_robot.errors import DependencyError, RobotError

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
        self._realtime = franky.RealtimeConfig.Enforce if realtime == "enforce" else franky.RealtimeConfig.Ignore
        self._robot: Any = None
        self._attempt: _Attempt | None = None

    @property
    def robot(self) -> Any:
        """franky's robot. Raises RobotError while there is no connection."""
        if self._robot is None:
            raise RobotError(f"no connection to the arm at {self.host}; call connect(), or recover() after a fault")
        return self._robot

    @property
    def open(self) -> bool:
        """Whether there is a connection, dead or alive."""
        return self._robot is not None

    def connect(self, timeout_s: float) -> None:
        """Make a connection, trying again while it is refused. Raises RobotError after ``timeout_s``."""
        end = time.monotonic() + timeout_s
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
        """Let go of the connection, dead or alive. Safe to call twice."""
        self._robot = None

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


class FrankaHand:
    """The Franka Hand. Opening moves it to its width at ``speed`` (m/s); closing grasps with ``force`` (N)."""

    def __init__(self, host: str, speed: float = 0.1, force: float = 20.0, home: bool = False):
        """home: find the fingers' range first, a second of motion; needed once after power-up. Raises RobotError if
        the range is not known."""
        with translated("gripper"):
            self._gripper: Any = franky.Gripper(host)
            if home:
                self._gripper.homing()
            self._widest = float(self._gripper.max_width)
        if not self._widest > 0:
            raise RobotError("gripper: it does not know its range; connect with home_gripper=True once")
        self._speed, self._force = speed, force
        self._motion: Any = None

    def start(self, open: bool) -> None:
        """Begin to open or to grasp; anything between the fingers, of any size, counts as grasped."""
        if open:
            self._motion = self._gripper.move_async(self._widest, self._speed)
        else:
            self._motion = self._gripper.grasp_async(0.0, self._speed, self._force, self._widest, self._widest)

    def settled(self, wait_s: float) -> bool:
        """Whether the last motion is over. Raises RobotError if it failed."""
        if self._motion is None:
            return True
        if not self._motion.wait(wait_s):
            return False
        motion, self._motion = self._motion, None
        with translated("gripper"):
            motion.get()
        return True

    def openness(self) -> float:
        """The width as a share of the widest."""
        with translated("gripper"):
            return float(self._gripper.width) / self._widest
