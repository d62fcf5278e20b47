"""The Franka Hand, in a process of its own: ``Hand`` for a ``Gripper``.

franky's gripper keeps Python's global lock while it connects; on a controller that hangs, that would stop every thread
of this process, the control loop's first. And it crashes if it is let go of while it moves. So franky's gripper lives
in a child, and each call is a line there and a line back, with a timeout.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from typing import Any, Final

from cosmos_robot.errors import RobotError

CONNECT_S: Final = 90.0
ANSWER_S: Final = 3.0
_FAULT: Final = "! "
_END_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG of Linux's prctl


class FrankaHand:
    """Opening moves the hand to its width at ``speed`` (m/s); closing grasps with ``force`` (N), whatever the size of
    what is between the fingers. The hand finishes what it was told even if this goes away."""

    def __init__(self, host: str, speed: float = 0.1, force: float = 20.0, home: bool = False):
        """home: find the fingers' range first, a second of motion; needed once after power-up. Raises RobotError if
        the range is not known, or nobody answers."""
        self._child = subprocess.Popen(
            [sys.executable, "-m", __name__, host, str(speed), str(force), str(int(home))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answer("connect", CONNECT_S)

    def start(self, open: bool) -> None:
        """Begin to open or to grasp."""
        self._ask(f"start {int(open)}")

    def settled(self, wait_s: float) -> bool:
        """Whether the last motion is over. Raises RobotError if it failed."""
        return self._ask(f"settled {wait_s}") == "1"

    def openness(self) -> float:
        """The width as a share of the widest."""
        return float(self._ask("openness"))

    def close(self) -> None:
        """End the process. Safe to call twice."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _ask(self, line: str) -> str:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(line + "\n")
            self._child.stdin.flush()
        except (OSError, ValueError) as error:
            raise RobotError("gripper: its process has ended") from error
        return self._answer(line, ANSWER_S)

    def _answer(self, line: str, timeout_s: float) -> str:
        assert self._child.stdout is not None
        ready, _, _ = select.select([self._child.stdout], [], [], timeout_s)
        answer = self._child.stdout.readline() if ready else ""
        if not answer or answer.startswith(_FAULT):
            self.close()
            why = answer.removeprefix(_FAULT).strip() or (
                "its process died" if ready else f"silent for {timeout_s:g} s"
            )
            raise RobotError(f"gripper: {line}: {why}")
        return answer.strip()


class _Child:
    """franky's gripper, and the motion it is in."""

    def __init__(self, host: str, speed: float, force: float, home: bool):
        import franky

        self._gripper: Any = franky.Gripper(host)
        if home:
            self._gripper.homing()
        self._widest, self._speed, self._force = float(self._gripper.max_width), speed, force
        if not self._widest > 0:
            raise RobotError("it does not know its range; connect with home_gripper once")
        self._motion: Any = None

    def start(self, open: str) -> str:
        if open == "1":
            self._motion = self._gripper.move_async(self._widest, self._speed)
        else:
            self._motion = self._gripper.grasp_async(0.0, self._speed, self._force, self._widest, self._widest)
        return "ok"

    def settled(self, wait_s: str) -> str:
        if self._motion is None:
            return "1"
        if not self._motion.wait(float(wait_s)):
            return "0"
        motion, self._motion = self._motion, None
        motion.get()
        return "1"

    def openness(self) -> str:
        return str(float(self._gripper.width) / self._widest)


def _serve(host: str, speed: str, force: str, home: str) -> None:
    if sys.platform == "linux":  # connecting may hang where the end of stdin would not be seen
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
    try:
        child = _Child(host, float(speed), float(force), home == "1")
        _say("ok")
        for line in sys.stdin:
            verb, *words = line.split()
            _say(getattr(child, verb)(*words))
    except Exception as error:  # noqa: BLE001 - told to the parent, which makes a new one
        _say(f"{_FAULT}{type(error).__name__}: {error}".replace("\n", " "))
    os._exit(0)  # letting go of a gripper that moves crashes


def _say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
