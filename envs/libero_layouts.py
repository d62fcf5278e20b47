"""Object layouts for demonstrations: wide, exchanged, never the official initial states.

Two families of scenes are known: objects on the floor beside a basket (libero_object) and the table of
libero_spatial. Everything is drawn from a generator; nothing is read from the official state files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.envs.libero import Snapshot
from cosmos_robot.envs.libero_scene import LiberoScene
from cosmos_robot.errors import InputError

FLOOR_PLACES = np.array([(-0.12, -0.24), (0.05, -0.10), (-0.15, 0.06), (0.10, -0.20), (0.15, 0.03), (-0.20, -0.08)])
"""The six regions of every libero_object scene file, world metres."""

_SCATTER_LOW, _SCATTER_HIGH = np.array([-0.23, -0.28]), np.array([0.18, 0.09])
_TRIES = 400


@dataclass(frozen=True)
class _Boxes:
    """Bounding boxes of all objects where they now are: low (n, 3), high (n, 3)."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def gap(self, i: int, j: int, shift: NDArray[np.float64]) -> float:
        """Distance in metres between boxes i and j along their more separate axis, after moving by shift (n, 2);
        negative where they overlap in plan."""
        low_i, high_i = self.low[i, :2] + shift[i], self.high[i, :2] + shift[i]
        low_j, high_j = self.low[j, :2] + shift[j], self.high[j, :2] + shift[j]
        return float(np.max(np.maximum(low_i - high_j, low_j - high_i)))


def lay_out(scene: LiberoScene, settled: Snapshot, rng: np.random.Generator) -> None:
    """From the scene at rest to a fresh layout, the arm at home but for noise of its joints (sd 0.02 rad).

    settled: of the scene's environment, since it was built. Raises InputError as ``draw_layout``.
    """
    scene.env.restore(settled)
    qpos = draw_layout(scene, rng)
    joints = scene.env.arm._ref_joint_pos_indexes
    qpos[joints] += rng.normal(0, 0.02, len(joints))
    scene.env.place(qpos)
    scene.env.hold(4)


def draw_layout(scene: LiberoScene, rng: np.random.Generator) -> NDArray[np.float64]:
    """New joint positions (nq,) with the scene's objects elsewhere; heights, yaws and the arm stay.

    Raises InputError if no layout without collisions is found, which means the scene is of an unknown kind.
    """
    boxes = _Boxes(*(np.array(x) for x in zip(*(scene.box(i) for i in range(len(scene.objects))), strict=True)))
    draw = _floor_shift if scene.goal_site.endswith("contain_region") else _table_shift
    for _ in range(_TRIES):
        shift = draw(scene, boxes, rng)
        if _free(scene, boxes, shift):
            return _moved(scene, shift)
    raise InputError(f"no free layout found for {scene.env.task.name} in {_TRIES} tries")


def _floor_shift(scene: LiberoScene, boxes: _Boxes, rng: np.random.Generator) -> NDArray[np.float64]:
    """Exchange objects among the six places (half of the draws), scatter them, or nudge them where they are."""
    n = len(scene.objects)
    centre = (boxes.low[:, :2] + boxes.high[:, :2]) / 2
    others = [i for i in range(n) if i != scene.goal]
    target = centre.copy()
    kind = rng.choice(["exchange", "scatter", "nudge"], p=[0.5, 0.3, 0.2])
    if kind == "exchange":
        target[others] = FLOOR_PLACES[rng.permutation(len(FLOOR_PLACES))[: len(others)]]
        target[others] += rng.uniform(-0.03, 0.03, (len(others), 2))
    elif kind == "scatter":
        target[others] = rng.uniform(_SCATTER_LOW, _SCATTER_HIGH, (len(others), 2))
    else:
        target[others] += rng.uniform(-0.02, 0.02, (len(others), 2))
    target[scene.goal] = (0.0, 0.26) + rng.uniform(-0.025, 0.025, 2)
    return target - centre


def _table_shift(scene: LiberoScene, boxes: _Boxes, rng: np.random.Generator) -> NDArray[np.float64]:
    """Nudge every group of stacked objects by up to 3.5 cm; those on furniture by up to 1.5 cm."""
    shift = np.zeros((len(scene.objects), 2))
    for group, on_furniture in _stacks(scene, boxes):
        reach = 0.015 if on_furniture else 0.035
        shift[group] = rng.uniform(-reach, reach, 2)
    return shift


def _stacks(scene: LiberoScene, boxes: _Boxes) -> list[tuple[list[int], bool]]:
    """Movable objects grouped by what stands on what, and whether a group stands on a fixture."""
    table = min(boxes.low[i, 2] for i, o in enumerate(scene.objects) if o.qpos_address is not None)
    still = np.zeros((len(scene.objects), 2))
    base: dict[int, int | None] = {}
    for i, o in enumerate(scene.objects):
        if o.qpos_address is None:
            continue
        raised = boxes.low[i, 2] > table + 0.012
        below = [
            j
            for j in range(len(scene.objects))
            if j != i and raised and boxes.gap(i, j, still) < 0 and boxes.low[j, 2] < boxes.low[i, 2]
        ]
        movable = [j for j in below if scene.objects[j].qpos_address is not None]
        base[i] = movable[0] if movable else (-1 if below else None)
    groups = []
    for root, support in base.items():
        if support is None or support == -1:
            groups.append(([root, *(i for i, b in base.items() if b == root)], support == -1))
    return groups


def _free(scene: LiberoScene, boxes: _Boxes, shift: NDArray[np.float64]) -> bool:
    """No pair comes closer than it was, unless it keeps 1 cm; and the hand fits around the target."""
    still = np.zeros_like(shift)
    for i in range(len(scene.objects)):
        for j in range(i):
            if np.allclose(shift[i], shift[j]):
                continue
            if boxes.gap(i, j, shift) < min(boxes.gap(i, j, still), 0.01):
                return False
    return not scene.goal_site.endswith("contain_region") or _hand_fits(scene, boxes, shift)


def _hand_fits(scene: LiberoScene, boxes: _Boxes, shift: NDArray[np.float64]) -> bool:
    """The fingers close along y and the hand above them is 20 cm wide: keep that strip free of taller neighbours."""
    centre = (boxes.low[scene.target, :2] + boxes.high[scene.target, :2]) / 2 + shift[scene.target]
    top = boxes.high[scene.target, 2]
    for i in range(len(scene.objects)):
        if i == scene.target:
            continue
        low, high = boxes.low[i, :2] + shift[i], boxes.high[i, :2] + shift[i]
        away = np.maximum(np.maximum(low - centre, centre - high), 0)
        if away[0] < 0.018 and away[1] < 0.068:
            return False
        if boxes.high[i, 2] > top + 0.05 and away[0] < 0.045 and away[1] < 0.11:
            return False
    return True


def _moved(scene: LiberoScene, shift: NDArray[np.float64]) -> NDArray[np.float64]:
    qpos = np.array(scene.data.qpos)
    for o, d in zip(scene.objects, shift, strict=True):
        if o.qpos_address is not None:
            qpos[o.qpos_address : o.qpos_address + 2] += d
    return qpos
