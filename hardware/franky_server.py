"""franky-sim's server, run as a file by ``franka_sim.py``: it imports nothing of this package, to start fast."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path


def _serve(host: str | None) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _ask_for_time()
    from franky_sim import SimulationServer
    from franky_sim.mujoco_simulator import MujocoSimulator

    with MujocoSimulator() as simulator:
        arm = simulator.add_robot()
        with SimulationServer(simulator, **({"hostname_candidates": [host]} if host else {})) as server:
            sys.stdout.write(f"arm at {arm.hostname}\n")
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
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1] if len(sys.argv) > 1 else None)
