"""What every probe works with: an environment, the spec it is held against, and commands made from that spec."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.actions.rotations import Rotations
from cosmos_robot.contract import FieldSpec, GripperSpec, RobotSpec
from cosmos_robot.envs.base import RobotEnv, execute
from cosmos_robot.envs.truth import GroundTruth, Pose
from cosmos_robot.types import Observation

Status = Literal["holds", "violated", "not applicable"]

UNITS = {"m": 1.0, "cm": 100.0, "mm": 1000.0, "px": 1000.0}
"""How many of a unit of length make a metre. A flat world measured in pixels counts them as millimetres."""


@dataclass(frozen=True)
class Finding:
    """One claim of a contract, tried. field: the contract's name of it. measured and expected in words; why: the reason
    where the probe could not be applied."""

    probe: str
    field: str
    status: Status
    measured: str = ""
    expected: str = ""
    why: str = ""


class NotApplicable(Exception):
    """This environment, or this spec, cannot answer a probe; the message says why."""


class Trial:
    """An environment, and the robot that a contract says it is."""

    def __init__(self, env: RobotEnv, spec: RobotSpec):
        self.env, self.spec = env, spec

    @property
    def truth(self) -> GroundTruth:
        """The simulator's own knowledge; NotApplicable where there is none."""
        truth = self.env.ground_truth()
        if truth is None:
            raise NotApplicable(f"{self.env.robot.name} has no simulator that could be asked")
        return truth

    @property
    def gripper(self) -> GripperSpec:
        if self.spec.gripper is None:
            raise NotApplicable("the contract names no gripper")
        return self.spec.gripper

    def begin(self, **options: Any) -> Observation:
        """Start an episode from a fixed seed."""
        return self.env.reset(seed=0, options=options)[0]

    def start(self) -> Observation:
        """An episode's first observation: of this one if nothing has moved in it."""
        return self.env.observe() if self.env.running and self.env.control_steps == 0 else self.begin()

    def make_room(self, steps: int) -> None:
        """Begin a new episode unless this one has so many steps left."""
        budget = self.env.step_budget
        if not self.env.running or (budget is not None and self.env.control_steps + steps >= budget):
            self.begin()

    def run(self, row: ArrayLike, steps: int) -> Observation:
        """``row`` (D,) for so many control steps, from a new episode if this one is too near its end."""
        self.make_room(steps)
        done = 0
        while done < steps:
            if not self.env.running:
                self.begin()
            result = execute(self.env, np.tile(np.asarray(row, np.float64), (steps - done, 1)))
            done += result.steps
        return self.env.observe()

    def hold(self, **changed: ArrayLike) -> NDArray[np.float64]:
        """A command (D,) to stay, as the spec's action_reference writes it, with some fields ``changed``."""
        if self.spec.action_width != self.env.robot.action_width:
            said, is_ = self.spec.action_width, self.env.robot.action_width
            raise NotApplicable(f"the contract's actions have {said} numbers, the robot's {is_}")
        parts = [changed[f.name] if f.name in changed else self._still(f) for f in self.spec.action]
        return np.concatenate(
            [np.broadcast_to(np.asarray(p, np.float64), f.width) for p, f in zip(parts, self.spec.action, strict=True)]
        )

    def moved(self, field: FieldSpec, axis: int, amount: float) -> NDArray[np.float64]:
        """A command (D,) that changes one axis of a position, rotation or joint ``field`` by ``amount`` of its
        unit."""
        if field.kind != "rotation":
            return self.hold(**{field.name: self._still(field) + amount * np.eye(field.width)[axis]})
        change = np.zeros(3)
        change[axis] = amount
        turned = Rotations.of(change, "rotvec").to("matrix")
        if self.spec.action_reference == "absolute":
            turned = turned @ self.pose(field.frame).matrix
        return self.hold(**{field.name: written(turned, field)})

    def amount(self, field: FieldSpec) -> float:
        """A clear but moderate change along one axis: half of the command range, 5 cm or 0.2 rad where there is
        none."""
        if self.spec.action_high is not None and self.spec.action_reference != "absolute":
            return 0.5 * self.spec.action_high
        return 0.05 * UNITS.get(field.unit, 1.0) if field.kind == "position" else 0.2

    def steps(self, seconds: float) -> int:
        """How many control steps that is at the contract's rate."""
        return max(1, round(seconds * self.spec.rate_hz))

    def pose(self, frame: str) -> Pose:
        """The hand in the frame that a field names; NotApplicable if it names none."""
        if not frame:
            raise NotApplicable("the contract names no frame")
        frames = self.truth.frames()
        if frame not in frames:
            raise NotApplicable(f"the simulator knows no frame {frame!r}, only {', '.join(frames)}")
        return self.truth.hand().within(frames[frame])

    def _still(self, field: FieldSpec) -> NDArray[np.float64]:
        absolute = self.spec.action_reference == "absolute"
        if self.spec.gripper and field.name in self.spec.gripper.fields:
            if absolute and self.spec.state_gripper == self.spec.gripper:
                return self._reported(field)
            return np.full(field.width, self.spec.gripper.open_value)
        if field.kind == "rotation":
            return written(self.pose(field.frame).matrix if absolute else np.eye(3), field)
        if not absolute or field.kind not in ("position", "joint"):
            return np.zeros(field.width)
        if field.kind == "position":
            return self.pose(field.frame).position[: field.width] * UNITS.get(field.unit, 1.0)
        return self._reported(field)

    def _reported(self, field: FieldSpec) -> NDArray[np.float64]:
        state = self.env.observe().state
        namesakes = [f for f in self.spec.state if f.name == field.name]
        for reported in (*namesakes, *self.spec.state):
            if (reported.kind, reported.width) == (field.kind, field.width) and reported.name in state:
                return state[reported.name]
        raise NotApplicable(f"no state field reports where {field.name!r} stands")


@contextmanager
def without_settling(env: RobotEnv) -> Iterator[None]:
    """Resets of ``env`` stop at the very initial state."""
    before = env.settle_steps
    env.settle_steps = 0
    try:
        yield
    finally:
        env.settle_steps = before


def written(matrix: NDArray[np.float64], field: FieldSpec) -> NDArray[np.float64]:
    """A rotation (3, 3) in the numbers of ``field``."""
    assert field.rotation is not None
    return Rotations.of(matrix, "matrix").to(field.rotation).reshape(-1)


def verdict(probe: str, field: str, holds: bool, measured: str, expected: str) -> Finding:
    """A finding of a probe that could be applied."""
    return Finding(probe, field, "holds" if holds else "violated", measured, expected)


def numbers(values: ArrayLike, digits: int = 3) -> str:
    """Numbers for a finding's words."""
    return "(" + ", ".join(f"{v:.{digits}f}" for v in np.ravel(values)) + ")"
