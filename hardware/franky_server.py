"""franky-sim's server, run as a file by ``franka_sim.py``: it imports nothing of this package, to start fast."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PATIENCE_S = 0.1
"""How long a simulated millisecond waits for the client's command."""


def _serve(host: str | None) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _ask_for_time()
    from franky_sim.mujoco_simulator import MujocoSimulator
    from franky_sim.simulation_server import LocalHostnames

    with MujocoSimulator() as simulator:
        arm = simulator.add_robot()
        server = _patient(arm, [host] if host else LocalHostnames())
        server.init()
        simulator.start()
        sys.stdout.write(f"arm at {server.hostname}\n")
        sys.stdout.flush()
        while True:
            end = time.monotonic() + 0.001
            server.process_commands()
            simulator.step()
            server.send_state()
            time.sleep(max(0.0, end - time.monotonic()))


def _patient(arm: Any, hosts: Iterable[str]) -> Any:
    """franky-sim's server of one arm, whose time waits for the client. On a busy machine a command comes late; an arm
    that goes on without it has no speed that can be told from places, and a planner that trusts it swings it around."""
    from franky_sim.franka_robot_server import FrankaRobotServer

    class Patient(FrankaRobotServer):  # type: ignore[misc, no-any-unimported, unused-ignore]
        heard = answering = 0  # the motions of the newest command of all, and of this millisecond

        def _process_udp_commands(self) -> None:
            self.answering = 0
            super()._process_udp_commands()
            end = time.monotonic() + PATIENCE_S
            while self._awaits_command() and time.monotonic() < end:
                time.sleep(1e-4)
                super()._process_udp_commands()

        def _awaits_command(self) -> bool:
            motion = self.current_motion_id
            return bool(motion) and motion == self.heard and motion != self.answering

        def _handle_udp_command(self, command_data: bytes) -> None:
            self.heard = self.answering = self.current_motion_id
            super()._handle_udp_command(command_data)

    return Patient(arm, hosts)


def _ask_for_time() -> None:
    """A larger share of a busy machine, where that is allowed: it stands for a controller that keeps its kilohertz. On
    Linux the share of a session counts as well as that of a process."""
    for grant in (lambda: os.nice(-10), lambda: Path("/proc/self/autogroup").write_text("-10")):
        with contextlib.suppress(OSError, AttributeError):
            grant()


def _end_with_parent() -> None:
    sys.stdin.read()  # ends when the parent has gone
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1] if len(sys.argv) > 1 else None)
