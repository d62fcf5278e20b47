"""The tasks of the DROID table: what lies there, what is asked, and when it is done."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.envs import droid_scene as scene
from cosmos_robot.errors import UnknownNameError

if TYPE_CHECKING:
    from cosmos_robot.envs.droid import DroidEnv

INIT_STATES = 50
LIFTED = 0.12
"""Metres above the table from which a thing counts as picked up."""
OPENED, SHUT = 0.12, 0.01
"""Metres that the drawer must be out, or may be out."""
AT_REST = 0.05
"""Metres per second."""

Places = dict[str, NDArray[np.float64]]
"""Body name to (4,): x, y, z of its origin and its turn about z. "drawer" to (1,): how far it is out."""

_REACH_X, _REACH_Y = (0.38, 0.62), (-0.22, 0.22)
_ROOM = {"tray": 0.14, "mark": 0.08}
_BLOCK_ROOM = 0.06
_CABINET_X, _CABINET_Y = (0.6, 0.64), (-0.12, 0.12)


@dataclass(frozen=True)
class Task:
    """name: as in ``droid/NAME``. things: what ``droid_scene.build`` puts on the table. done: asked after every step.
    drawer_out: how far the drawer is out at the start. step_budget: control steps at 15 Hz."""

    name: str
    instruction: str
    things: tuple[str, ...]
    done: Callable[[DroidEnv], bool]
    step_budget: int
    drawer_out: float = 0.0

    def places(self, rng: np.random.Generator) -> Places:
        """Where everything is at the start of an episode, drawn; no two things overlap."""
        found: Places = {}
        if "cabinet" in self.things:
            found["cabinet"] = np.array([rng.uniform(*_CABINET_X), rng.uniform(*_CABINET_Y), 0.0, 0.0])
            found["drawer"] = np.array([self.drawer_out])
            return found
        # The widest first, so that room is left for it.
        for thing in sorted(self.things, key=lambda thing: (-_ROOM.get(thing, _BLOCK_ROOM), thing)):
            room = _ROOM.get(thing, _BLOCK_ROOM)
            while True:
                x, y = rng.uniform(*_REACH_X), rng.uniform(*_REACH_Y)
                if all(np.hypot(x - at[0], y - at[1]) > room + _ROOM.get(n, _BLOCK_ROOM) for n, at in found.items()):
                    break
            block = thing in scene.BLOCKS
            turn = rng.uniform(-np.pi / 4, np.pi / 4) if block else 0.0
            name = scene.block_name(thing) if block else thing
            found[name] = np.array([x, y, scene.BLOCK_HALF if block else 0.0, turn])
        return found

    def init_places(self, index: int) -> Places:
        """``places`` at initial state ``index``, 0 to INIT_STATES - 1: the same on every machine."""
        return self.places(np.random.default_rng([zlib.crc32(self.name.encode()), index]))


def find_task(name: str) -> Task:
    """A task by name, without ``droid/``. Raises UnknownNameError with the nearest."""
    if name not in TASKS:
        raise UnknownNameError("DROID task", name, TASKS)
    return TASKS[name]


def _picked(colour: str) -> Callable[[DroidEnv], bool]:
    body = scene.block_name(colour)
    return lambda env: env.place_of(body)[2] > LIFTED and env.touched_by_robot(body)


def _in_tray(colour: str) -> Callable[[DroidEnv], bool]:
    body = scene.block_name(colour)

    def done(env: DroidEnv) -> bool:
        apart = np.abs(env.place_of(body) - env.place_of("tray"))
        inside = apart[:2].max() < scene.TRAY_HALF - scene.BLOCK_HALF / 2 and apart[2] < 0.05
        return bool(inside) and env.let_go(body)

    return done


def _stacked(upper: str, lower: str) -> Callable[[DroidEnv], bool]:
    above, below = scene.block_name(upper), scene.block_name(lower)

    def done(env: DroidEnv) -> bool:
        apart = env.place_of(above) - env.place_of(below)
        on_top = np.linalg.norm(apart[:2]) < scene.BLOCK_HALF and abs(apart[2] - 2 * scene.BLOCK_HALF) < 0.01
        return bool(on_top) and env.let_go(above)

    return done


def _on_mark(colour: str) -> Callable[[DroidEnv], bool]:
    body = scene.block_name(colour)

    def done(env: DroidEnv) -> bool:
        place = env.place_of(body)
        near = np.linalg.norm(place[:2] - env.place_of("mark")[:2]) < scene.MARK_RADIUS / 2
        return bool(near) and place[2] < scene.BLOCK_HALF + 0.01 and env.at_rest(body)

    return done


def _tasks() -> dict[str, Task]:
    blocks = tuple(scene.BLOCKS)
    found = [Task(f"pick_{c}_block", f"Pick up the {c} block", blocks, _picked(c), 300) for c in blocks]
    for c in blocks:
        words = f"Put the {c} block in the tray"
        found.append(Task(f"place_{c}_block_in_tray", words, (*blocks, "tray"), _in_tray(c), 450))
    for upper, lower in zip(blocks, blocks[1:] + blocks[:1], strict=True):
        words = f"Stack the {upper} block on the {lower} block"
        found.append(Task(f"stack_{upper}_on_{lower}", words, blocks, _stacked(upper, lower), 450))
    for c in blocks:
        words = f"Push the {c} block onto the yellow mark"
        found.append(Task(f"push_{c}_block_to_mark", words, (*blocks, "mark"), _on_mark(c), 450))
    found.append(Task("open_drawer", "Open the drawer", ("cabinet",), lambda env: env.drawer() > OPENED, 450))
    found.append(Task("close_drawer", "Close the drawer", ("cabinet",), lambda env: env.drawer() < SHUT, 450, 0.14))
    return {task.name: task for task in found}


TASKS = _tasks()
