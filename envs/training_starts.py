"""Environments for collecting: they begin anywhere but in the official initial states, which are for evaluation.

LIBERO's object and spatial suites begin in layouts of their own, its other suites in placements that the scene file's
own rules draw (``libero_starts.py``). The other families draw their beginnings from the reset's seed as they are.
"""

from __future__ import annotations

from typing import Any

from cosmos_robot import envs
from cosmos_robot.envs.base import RobotEnv


def make(name: str, **options: Any) -> RobotEnv:
    """As ``envs.make``, never to begin in an official initial state."""
    if not name.startswith("libero"):
        return envs.make(name, **options)
    from cosmos_robot.envs.libero_starts import make as make_libero  # MuJoCo is only needed here

    return make_libero(name, **options)
