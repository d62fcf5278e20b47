"""franky-sim as a robot: a simulated FR3 in a process of its own, driven by franky over its real protocol."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cosmos_robot.errors import DependencyError, RobotError
from cosmos_robot.hardware.cameras import Camera
from cosmos_robot.hardware.franka import FrankaOptions, FrankaRobot

PATIENCE_S: Final = 120.0
_READY: Final = "arm at "
"""What the server says before its address."""


class SimulatedArm:
    """franky-sim's server in a child process, at a free loopback address, ``host``. The child ends with its parent.

    host: bind to this address instead, for instance that of a server that has died.
    """

    def __init__(self, host: str | None = None):
        """Start it. Raises DependencyError without franky-sim, RobotError if it does not come up."""
        if importlib.util.find_spec("franky_sim") is None:
            raise DependencyError("a simulated arm needs franky-sim: pip install franky-sim")
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("franky_server.py")), *([host] if host else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            text=True,
            start_new_session=True,  # Ctrl-C is for the robot's driver, which still needs it
        )
        watch = threading.Timer(PATIENCE_S, self.process.kill)
        watch.start()
        assert self.process.stdout is not None
        self.host = ""
        for line in self.process.stdout:
            if line.startswith(_READY):
                self.host = line.removeprefix(_READY).strip()
                break
        watch.cancel()
        if not self.host:
            self.process.kill()
            self.process.wait()
            self._words.seek(0)
            words = self._words.read().strip().splitlines() or ["it said nothing"]
            self.close()
            raise RobotError(f"franky-sim did not come up within {PATIENCE_S:g} s: {words[-1]}")

    def close(self) -> None:
        """End it. Safe to call twice."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._words):
            if pipe is not None:
                pipe.close()


def simulator_options(rate_hz: float | None = None) -> FrankaOptions:
    """Options for a simulated arm: no real-time scheduling, and more patience."""
    return FrankaOptions(rate_hz=rate_hz, realtime="ignore", connect_timeout_s=PATIENCE_S, recover_timeout_s=PATIENCE_S)


class FrankaSimRobot(FrankaRobot):
    """``FrankaRobot`` with a simulated arm of its own, which starts with ``connect`` and ends with ``close``."""

    def __init__(self, options: FrankaOptions | None = None, cameras: Mapping[str, Camera] | None = None):
        super().__init__("", options or simulator_options(), cameras)
        self.simulator: SimulatedArm | None = None

    def connect(self) -> None:
        """Start the simulator and connect to it."""
        if self.simulator is None:
            self.simulator = SimulatedArm()
            self.host = self.simulator.host
        super().connect()

    def close(self) -> None:
        """Let go of the arm and end the simulator."""
        super().close()
        if self.simulator is not None:
            self.simulator.close()
            self.simulator = None
