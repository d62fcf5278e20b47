"""Several cached datasets as one table of training rows in model units.

Axis legend: N rows, T chunk steps, D action width, S state width, P placements, C L h w latents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.codec import Codec
from cosmos_robot.actions.layouts import state_layout
from cosmos_robot.actions.normalization import LARGEST_NORMALISED, require_bounded
from cosmos_robot.actions.statistics import statistics_of
from cosmos_robot.contract import Contract, Normalization, RobotSpec
from cosmos_robot.errors import InputError
from cosmos_robot.training.cache import FrameCache
from cosmos_robot.training.config import Stage

GRASP_PHASE = 2
"""Rows recorded with a phase below this lie before the grasp."""


@dataclass(frozen=True)
class TrainingRows:
    """All rows. state (N, S), actions (N, T, D) normalised float32, valid (N, T). instruction (N,) indexes
    ``instructions``. episode (N,) counts through all datasets; validation, dagger (N,) bool; phase (N,).
    cells (N, P, 2, 2), seen (N, P, 2), offset (N, 2, 3): target and goal, as in ``grounding.Places``.
    Latents are gathered from their memory maps, see ``latents``."""

    instructions: tuple[str, ...]
    state: NDArray[np.float32]
    actions: NDArray[np.float32]
    valid: NDArray[np.bool_]
    instruction: NDArray[np.int64]
    episode: NDArray[np.int64]
    validation: NDArray[np.bool_]
    dagger: NDArray[np.bool_]
    phase: NDArray[np.int16]
    cells: NDArray[np.float32]
    seen: NDArray[np.bool_]
    offset: NDArray[np.float32]
    _latents: tuple[NDArray[np.float16], ...]

    def __len__(self) -> int:
        return len(self.state)

    def latents(self, rows: NDArray[np.int64], frames: int = 1) -> NDArray[np.float16]:
        """(B, C, frames, h, w): each row and the ones that follow it in its episode (the last one repeats)."""
        wanted = self.following(rows, frames)[0].reshape(-1)
        out = gathered(self._latents, wanted)
        return np.moveaxis(out.reshape(len(rows), frames, *out.shape[1:]), 1, 2)

    def following(self, rows: NDArray[np.int64], frames: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Row numbers (B, frames) of each row and its successors, and False where the episode had already ended."""
        wanted = rows[:, None] + np.arange(frames)
        same = self.episode[np.minimum(wanted, len(self) - 1)] == self.episode[rows][:, None]
        same &= wanted < len(self)
        last = same.sum(1, keepdims=True) - 1
        return rows[:, None] + np.minimum(np.arange(frames), last), same

    @property
    def far_metres(self) -> NDArray[np.float32]:
        """(N,) distance from the hand to the target, NaN where not recorded."""
        return np.linalg.norm(self.offset[:, 0], axis=-1)

    def approach(self) -> NDArray[np.bool_]:
        """(N,) rows before the grasp."""
        return (self.phase >= 0) & (self.phase < GRASP_PHASE)

    def far(self, metres: float) -> NDArray[np.bool_]:
        """(N,) rows before the grasp with the hand more than ``metres`` from the target."""
        return self.approach() & (np.nan_to_num(self.far_metres) > metres)

    def probabilities(self, stage: Stage, metres: float) -> NDArray[np.float64]:
        """(N,) chance of each row to be drawn in ``stage``; 0 for validation rows."""
        weight = np.where(self.validation, 0.0, 1.0)
        weight[self.far(metres)] *= stage.far_weight
        weight[self.approach()] *= stage.approach_weight
        weight[self.dagger] *= stage.dagger_weight
        return weight / weight.sum()


def gathered(parts: Sequence[NDArray[np.float16]], numbers: NDArray[np.int64]) -> NDArray[np.float16]:
    """(B, ...) of ``parts`` (memory maps, one after the other) by their numbers (B,) through all of them."""
    starts = np.cumsum([0, *map(len, parts)])
    part = np.searchsorted(starts, numbers, side="right") - 1
    out = np.empty((len(numbers), *parts[0].shape[1:]), np.float16)
    for index in np.unique(part):
        mine = part == index
        out[mine] = parts[index][numbers[mine] - starts[index]]
    return out


def fit_contract(contract: Contract, caches: Sequence[FrameCache], method: str, state_floor: float,
                 action_floor: float) -> Contract:  # fmt: skip
    """``contract`` with statistics of the training rows in those normalisers that have method ``identity``; others
    stay as they are. Actions count every valid command of every chunk."""
    if all(c.validation.all() for c in caches):
        raise InputError("training: every episode is held out for validation; record more than one")
    states = np.concatenate([c.state[~c.validation] for c in caches])
    actions = np.concatenate([c.actions[~c.validation][c.valid[~c.validation]] for c in caches])
    changes = {}
    for name, rows, floor in (("state", states, state_floor), ("action", actions, action_floor)):
        field = f"{name}_normalization"
        if getattr(contract.model, field).method == "identity":
            changes[field] = Normalization(method=method, scale_floor=floor, statistics=statistics_of(rows))
    return Contract(robot=contract.robot, model=contract.model.model_copy(update=changes))


def join_caches(contract: Contract, caches: Sequence[FrameCache], latents: Sequence[NDArray[np.float16]],
                hand_field: str, largest: float = LARGEST_NORMALISED) -> TrainingRows:  # fmt: skip
    """One table of the cached datasets, normalised by ``contract`` (which must have its statistics).

    Raises InputError where a normalised state or valid command is beyond ``largest``.
    """
    codec = Codec(contract)
    instructions = tuple(dict.fromkeys(text for cache in caches for text in cache.instructions))
    codes = [np.array([instructions.index(text) for text in cache.instructions])[cache.instruction] for cache in caches]
    episodes = np.cumsum([0] + [int(cache.episode.max()) + 1 for cache in caches])

    def column(name: str) -> NDArray:
        return np.concatenate([getattr(cache, name) for cache in caches])

    cells, seen = zip(*(pointed(cache) for cache in caches), strict=True)
    state, actions = codec.encode_state(column("state")), codec.encode_actions(column("actions"))
    require_bounded(state, largest, "training states")
    require_bounded(actions[column("valid")], largest, "training actions")
    return TrainingRows(
        instructions=instructions,
        state=state.astype(np.float32),
        actions=actions.astype(np.float32),
        valid=column("valid"),
        instruction=np.concatenate(codes),
        episode=np.concatenate([c.episode + first for c, first in zip(caches, episodes, strict=False)]),
        validation=column("validation"),
        dagger=column("dagger"),
        phase=column("phase"),
        cells=np.concatenate(cells),
        seen=np.concatenate(seen),
        offset=hand_offsets(contract.robot, hand_field, column("state"), column("target_xyz"), column("goal_xyz")),
        _latents=tuple(latents),
    )


def pointed(cache: FrameCache) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Cells (N, P, 2, 2) of target and goal and whether they are seen (N, P, 2)."""
    count, placements, slots, _ = cache.object_cells.shape
    cells = np.zeros((count, placements, 2, 2), np.float32)
    seen = np.zeros((count, placements, 2), bool)
    rows = np.arange(count)
    for q, slot in enumerate((cache.target, cache.goal)):
        known = (slot >= 0) & (slot < slots)
        cells[known, :, q] = cache.object_cells[rows[known], :, slot[known]]
        seen[known, :, q] = cache.object_seen[rows[known], :, slot[known]]
    return cells, seen


def hand_offsets(robot: RobotSpec, hand_field: str, state, target, goal) -> NDArray[np.float32]:
    """(N, 2, 3) metres from the hand to target and goal."""
    points = np.stack([target, goal], axis=1)
    if not np.isfinite(points).any():
        return points
    layout = state_layout(robot)
    field = layout.field(hand_field)
    if field.width != 3 or field.unit != "m":
        raise InputError(f"state {hand_field!r}: expected 3 numbers in m, got {field.width} in {field.unit}")
    return points - state[:, None, layout.columns(hand_field)]
