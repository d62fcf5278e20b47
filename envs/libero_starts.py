"""LIBERO for collecting: its tasks without their official initial states."""

from __future__ import annotations

from typing import Any

import numpy as np

from cosmos_robot.envs.base import require_options
from cosmos_robot.envs.libero import LiberoEnv, base_suite, find_task
from cosmos_robot.envs.libero_layouts import lay_out
from cosmos_robot.envs.libero_scene import LiberoScene
from cosmos_robot.errors import InputError

LAID_OUT = ("libero_object", "libero_spatial")
"""Base suites whose layouts are drawn (``libero_layouts.py``); in the others the scene file's rules place things."""
SCENE_SETTLES = 30
SEEDS_PER_SCENE = 10
"""Seeds that share a scene, in which only places differ: building one costs more than an episode."""


class PlacedLibero(LiberoEnv):
    """A LIBERO task that has no official initial states: a reset draws from the scene file's own rules."""

    init_state_count = 0


class LaidOutLibero(PlacedLibero):
    """A LIBERO task that begins in a layout of its own, which the reset's seed alone decides.

    Seeds of one ten share a scene, with its heights and yaws, so runs of seeds are cheap.
    """

    _scene: LiberoScene | None = None
    _built = -1

    def _reset(self, options: dict[str, Any]) -> None:
        if options:
            raise InputError(f"reset options: got {sorted(options)}, none are known; a layout is drawn from the seed")
        seed = int(self.np_random_seed)
        if self._scene is None or seed // SEEDS_PER_SCENE != self._built:
            self._built = seed // SEEDS_PER_SCENE
            self._np_random = np.random.default_rng([self._built, 3])
            self.build()
            self.hold(SCENE_SETTLES)
            self._scene, self._settled = LiberoScene(self), self.snapshot()
        lay_out(self._scene, self._settled, np.random.default_rng([seed, 4]))
        self.hold(self.settle_steps)


def make(name: str, **options: Any) -> PlacedLibero:
    """The task called ``name``. Raises UnknownNameError with the nearest names."""
    require_options(LiberoEnv, options)
    task = find_task(name)
    return (LaidOutLibero if base_suite(task.suite) in LAID_OUT else PlacedLibero)(task, **options)
