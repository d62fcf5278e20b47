"""From a robot's numbers to a model's own space and back, before normalisation.

Relative spaces speak of poses: each position field of the space, together with the rotation field after it, is one.
With X the fixed offset of the contract (``axis_rotation``, ``tool_offset``), the model's pose is T X, and its rows are
(T_i X)^-1 (T_i+1 X) (framewise) or (T_0 X)^-1 (T_i+1 X) (anchored), T_0 being where the robot is now
(cosmos-framework, ``utils/pose_utils.py`` and the dataset classes).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from cosmos_robot.actions.layouts import Array, Layout, convert_fields, flat, require_convertible
from cosmos_robot.actions.poses import (
    PoseReference,
    absolute_poses,
    pose_rows,
    poses_from,
    poses_of_rows,
    relative_rows,
)
from cosmos_robot.contract.base import plain
from cosmos_robot.contract.numbers import ModelSpace
from cosmos_robot.contract.robot import FieldSpec, RotationFormat
from cosmos_robot.errors import ContractError, InputError

REFERENCES: Final[dict[str, PoseReference]] = {"framewise_relative": "framewise", "anchored_relative": "anchored"}


class SpaceMap:
    """One vector of a robot (``robot``) in the space of a model (``space``, None for the robot's own).

    start: the layout of the vector that tells where the robot is now (its state); needed by relative spaces only.
    """

    def __init__(self, robot: Layout, space: ModelSpace | None, start: Layout):
        self.robot, self.space, self.start = robot, space, start
        self.model = Layout(f"model's {robot.what}", space.fields, space.gripper) if space else robot
        self._pairs = _pose_pairs(space.fields) if space else []
        if space is None:
            return
        if self.relative:
            self._require_poses(space)
        elif space.axis_rotation or space.tool_offset:
            raise ContractError(f"{self.model.what}: axis_rotation and tool_offset need a relative space")
        else:
            require_convertible(robot, self.model, read_by_model=True)
            require_convertible(self.model, robot, read_by_model=False)

    @property
    def relative(self) -> bool:
        """Whether rows are relative to where the robot is."""
        return self.space is not None and self.space.relative

    def to_model(self, values: ArrayLike, start: ArrayLike | None = None) -> Array:
        """(..., T, robot width) to (..., T, model width); start (..., start width) where the space is relative."""
        x = self.robot.check(values)
        if self.space is None:
            return x
        if not self.relative:
            return self._scaled(convert_fields(x, self.robot, self.model), self.space.translation_scale)
        return self._each(x, start, self._relative_of)

    def to_robot(self, rows: ArrayLike, start: ArrayLike | None = None) -> Array:
        """(..., T, model width) to (..., T, robot width), the inverse of ``to_model``."""
        y = self.model.check(rows)
        if self.space is None:
            return y
        if not self.relative:
            return convert_fields(self._scaled(y, 1 / self.space.translation_scale), self.model, self.robot)
        return self._each(y, start, self._absolute_of)

    def _each(self, values: Array, start: ArrayLike | None, one: Callable[[Array, Array], Array]) -> Array:
        """``one`` over the leading axes: values (..., T, D), start (..., S)."""
        if start is None:
            raise InputError(f"{self.model.what} is relative to where the robot is: give its state")
        here = self.start.check(start)
        if values.ndim < 2 or here.shape[:-1] != values.shape[:-2]:
            raise InputError(
                f"{self.model.what}: expected rows (..., T, {values.shape[-1]}) and one state for each chunk, "
                f"got {values.shape} and {here.shape}"
            )
        chunks = values.reshape(-1, *values.shape[-2:])
        starts = here.reshape(len(chunks), here.shape[-1])
        out = np.stack([one(c, s) for c, s in zip(chunks, starts, strict=True)])
        return out.reshape(*values.shape[:-1], out.shape[-1])

    def _relative_of(self, values: Array, start: Array) -> Array:
        assert self.space is not None
        out = self._others(values, self.robot, self.model)
        for position, rotation in self._pairs:
            poses = np.concatenate(
                [
                    self._poses(start[None], self.start, position, rotation),
                    self._poses(values, self.robot, position, rotation),
                ]
            )
            rows = relative_rows(poses @ self._offset, flat(_format(rotation)), REFERENCES[self.space.reference])
            out[:, self.model.columns(position.name)] = rows[:, :3] * self.space.translation_scale
            out[:, self.model.columns(rotation.name)] = rows[:, 3:]
        return out

    def _absolute_of(self, rows: Array, start: Array) -> Array:
        assert self.space is not None
        out = self._others(rows, self.model, self.robot)
        back = np.linalg.inv(self._offset)
        for position, rotation in self._pairs:
            first = self._poses(start[None], self.start, position, rotation)[0] @ self._offset
            pair = np.concatenate(
                [rows[:, self.model.columns(position.name)], rows[:, self.model.columns(rotation.name)]], axis=-1
            )
            poses = absolute_poses(
                pair, flat(_format(rotation)), REFERENCES[self.space.reference], first,
                translation_scale=self.space.translation_scale,
            )[1:]  # fmt: skip
            target = self.robot.field(rotation.name)
            written = pose_rows(poses @ back, flat(_format(target)))
            out[:, self.robot.columns(position.name)] = written[:, :3]
            out[:, self.robot.columns(rotation.name)] = written[:, 3:]
        return out

    def _others(self, values: Array, source: Layout, target: Layout) -> Array:
        """Room for (T, target width) rows, with every field filled that is no part of a pose."""
        out = np.zeros((len(values), target.width))
        posed = {field.name for pair in self._pairs for field in pair}
        rest = Layout(target.what, tuple(f for f in target.fields if f.name not in posed), target.gripper)
        filled = convert_fields(values, source, rest)
        for field in rest.fields:
            out[:, target.columns(field.name)] = filled[:, rest.columns(field.name)]
        return out

    def _poses(self, values: Array, layout: Layout, position: FieldSpec, rotation: FieldSpec) -> Array:
        turn = values[:, layout.columns(rotation.name)]
        return poses_of_rows(
            np.concatenate([values[:, layout.columns(position.name)], turn], axis=-1),
            flat(_format(layout.field(rotation.name))),
        )

    @property
    def _offset(self) -> Array:
        """X of the module's docstring, (4, 4)."""
        assert self.space is not None
        turn = np.array(self.space.axis_rotation or np.eye(3)).reshape(3, 3)
        return poses_from(np.array(self.space.tool_offset or (0.0, 0.0, 0.0)), turn, "matrix")

    def _scaled(self, rows: Array, factor: float) -> Array:
        if factor == 1:
            return rows
        out = rows.copy()
        for field in self.model.fields:
            if field.kind == "position":
                out[..., self.model.columns(field.name)] *= factor
        return out

    def _require_poses(self, space: ModelSpace) -> None:
        if not self._pairs:
            raise ContractError(f"{self.model.what}: {space.reference} needs a position and after it a rotation field")
        posed = [field for pair in self._pairs for field in pair]
        for layout in (self.robot, self.start):
            for field in posed:
                here = layout.field(field.name)
                if here.kind != field.kind or (here.kind == "position" and (here.width, here.unit) != (3, "m")):
                    raise ContractError(f"{layout.what}: no pose can be made of {field.name!r}: {plain(here)}")
        for position, rotation in self._pairs:
            frames = {layout.field(f.name).frame for layout in (self.robot, self.start) for f in (position, rotation)}
            if len(frames - {""}) > 1:
                names = f"{position.name!r} and {rotation.name!r}"
                raise ContractError(f"{self.model.what}: {names} are in frames {sorted(frames)}")
        rest = Layout(self.model.what, tuple(f for f in space.fields if f not in posed), space.gripper)
        require_convertible(self.robot, rest, read_by_model=True)


def _pose_pairs(fields: tuple[FieldSpec, ...]) -> list[tuple[FieldSpec, FieldSpec]]:
    """Each position with the rotation right after it."""
    return [(a, b) for a, b in pairwise(fields) if a.kind == "position" and a.width == 3 and b.kind == "rotation"]


def _format(field: FieldSpec) -> RotationFormat:
    if field.rotation is None:
        raise ContractError(f"{field.name!r} names no rotation format")
    return field.rotation
