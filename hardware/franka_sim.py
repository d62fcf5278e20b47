"""franky-sim as a robot: a simulated FR3 in a process of its own, driven by franky over its real protocol."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cosmos_robot.errors import DependencyError, RobotError
from cosmos_robot.hardware.cameras import Camera
from cosmos_robot.hardware.franka import FrankaOptions, FrankaRobot

PATIENCE_S: Final = 120.0
_READY: Final = "arm at "


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
            [sys.executable, "-m", __name__, *([host] if host else [])],
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
    return FrankaOptions(rate_hz=rate_hz, realtime="ignore", connect_timeout_s=PATIENCE_S)


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


def _serve(host: str | None) -> None:
    from franky_sim import SimulationServer
    from franky_sim.mujoco_simulator import MujocoSimulator

    threading.Thread(target=_end_with_parent, daemon=True).start()
    _ask_for_time()
    with MujocoSimulator() as simulator:
        arm = simulator.add_robot()
        with SimulationServer(simulator, **({"hostname_candidates": [host]} if host else {})) as server:
            sys.stdout.write(f"{_READY}{arm.hostname}\n")
            sys.stdout.flush()
            server.run_forever()


def _ask_for_time() -> None:
    """A larger share of a busy machine, where that is allowed: it stands for a controller that keeps its kilohertz. On
    Linux the share of a session counts as well as that of a process."""
    for grant in (lambda: os.nice(-10), lambda: Path("/proc/self/autogroup").write_text("-10")):
        with contextlib.suppress(OSError, AttributeError):
            grant()


def _end_with_parent() -> None:
    sys.stdin.read()  # ends when the parent has gone
    time.sleep(0.1)
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1] if len(sys.argv) > 1 else None)
