"""A small environment without a simulator: a dot that is driven over a table. For tests and first examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import CameraSpec, FieldSpec, GripperSpec, RobotSpec
from cosmos_robot.envs.base import RobotEnv, init_state, require_limits, require_options
from cosmos_robot.envs.truth import GroundTruth, Pose
from cosmos_robot.errors import UnknownNameError
from cosmos_robot.types import Image

FAKE_ROBOT = RobotSpec(
    name="fake",
    cameras=(CameraSpec(name="table", height=48, width=64), CameraSpec(name="hand", height=24, width=24)),
    state=(
        FieldSpec(name="position", width=2, unit="m", kind="position", frame="world"),
        FieldSpec(name="grip", width=1, unit="1", kind="gripper"),
    ),
    action=(
        FieldSpec(name="move", width=2, unit="2 cm per step", kind="position", frame="world"),
        FieldSpec(name="grip", width=1, unit="1", kind="gripper"),
    ),
    action_reference="per_step",
    action_low=-1.0,
    action_high=1.0,
    gripper=GripperSpec(field="grip", open_value=-1.0, closed_value=1.0, kind="binary"),
    rate_hz=20.0,
)

TASKS = ("Touch the near target", "Touch the far target", "Keep still")
INIT_STATES = 10
STEP_BUDGET = 60
METRES_PER_STEP = 0.02
TOUCH_METRES = 0.03
STILL_STEPS = 12


class FakeEnv(RobotEnv):
    """A hand in the square of two metres around the origin, moved by up to 2 cm per step.

    Tasks 0 and 1 succeed when the hand is within 3 cm of the target and the gripper is closed; task 2 when the hand
    has been kept still for 12 steps. Reset option ``init_state`` (0 to 9) fixes where hand and target begin; otherwise
    the seed does. The other arguments are those of ``LiberoEnv``.

    draws: how many pictures have been drawn so far.
    """

    robot = FAKE_ROBOT
    init_state_count = INIT_STATES

    def __init__(
        self,
        task: int,
        *,
        settle_steps: int = 0,
        step_budget: int = STEP_BUDGET,
        prompt_source: Literal["scene", "name"] = "scene",
    ):
        super().__init__()
        require_limits(settle_steps, step_budget)
        self.instruction = TASKS[task] if prompt_source == "scene" else TASKS[task].lower()
        self.settle_steps, self.step_budget = settle_steps, step_budget
        self.draws = 0
        self._task = task
        self._hand, self._target = np.zeros(2), np.zeros(2)
        self._grip, self._still = -1.0, 0

    def places(self, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Where hand (2,) and target (2,) begin, drawn."""
        hand, angle = rng.uniform(-0.1, 0.1, 2), rng.uniform(0, 2 * np.pi)
        distance = 0.15 if self._task == 0 else 0.5
        return hand, hand + distance * np.array([np.cos(angle), np.sin(angle)])

    def init_places(self, index: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The same at initial state ``index``."""
        return self.places(np.random.default_rng([self._task, index]))

    def ground_truth(self) -> FakeTruth:
        return FakeTruth(self)

    def _reset(self, options: dict[str, Any]) -> None:
        index = init_state(self, options)
        self._hand, self._target = self.places(self.np_random) if index is None else self.init_places(index)
        self._grip, self._still = -1.0, 0
        for _ in range(self.settle_steps):  # the hand drifts a little, as a settling scene would
            self._hand = self._hand * 0.99

    def _step(self, action: NDArray[np.float64]) -> tuple[float, bool, bool]:
        self._hand = np.clip(self._hand + METRES_PER_STEP * action[:2], -1, 1)
        self._grip = 1.0 if action[2] > 0 else -1.0
        self._still = self._still + 1 if np.abs(action[:2]).max() < 0.01 else 0
        near = float(np.linalg.norm(self._hand - self._target)) < TOUCH_METRES
        success = self._still >= STILL_STEPS if self._task == 2 else near and self._grip > 0
        return float(success), success, self.control_steps + 1 >= self.step_budget

    def _state(self) -> dict[str, NDArray[np.float64]]:
        return {"position": self._hand.copy(), "grip": np.array([self._grip])}

    def window(self, camera: str) -> tuple[NDArray[np.float64], float]:
        """What a camera sees: the middle (2,) and half the side of a square."""
        return (np.zeros(2), 1.0) if camera == "table" else (self._hand, 0.2)

    def _draw(self, camera: str) -> Image:
        self.draws += 1
        spec = self.robot.camera(camera)
        centre, half_width = self.window(camera)
        image = np.full((spec.height, spec.width, 3), 200, np.uint8)
        for place, colour in ((self._target, (220, 30, 30)), (self._hand, (30, 30, 220))):
            x, y = (place - centre) / half_width
            row, column = round((1 - y) / 2 * (spec.height - 1)), round((1 + x) / 2 * (spec.width - 1))
            image[max(row - 1, 0) : max(row + 2, 0), max(column - 1, 0) : max(column + 2, 0)] = colour
        return image


class FakeTruth(GroundTruth):
    """The dot's own knowledge. It has no physics, so no clock; the target serves as mark."""

    def __init__(self, env: FakeEnv):
        self._env = env

    def seconds(self) -> None:
        return None

    def frames(self) -> dict[str, Pose]:
        return {"world": Pose(np.zeros(3), np.eye(3)), "tool": self.hand()}

    def hand(self) -> Pose:
        return Pose(np.append(self._env._hand, 0.0), np.eye(3))

    def fingers(self) -> NDArray[np.float64]:
        return np.array([self._env._grip])

    def opening(self) -> float:
        return float(self._env._grip < 0)

    def fully_open(self) -> float:
        return 1.0

    def seen_at(self, camera: str, u: float, v: float) -> NDArray[np.float64]:
        centre, half_side = self._env.window(camera)
        return centre + half_side * np.array([2 * u - 1, 1 - 2 * v])

    def put_mark(self, point: NDArray[np.float64] | None) -> Callable[[], None]:
        before = self._env._target
        self._env._target = np.array([5.0, 5.0]) if point is None else point

        def undo() -> None:
            self._env._target = before

        return undo

    def start(self) -> NDArray[np.float64]:
        return np.concatenate([self._env._hand, self._env._target])

    def recorded_start(self, index: int) -> NDArray[np.float64]:
        return np.concatenate(self._env.init_places(index))


class _FakeFamily:
    def make(self, name: str, **options: Any) -> FakeEnv:
        if name not in self.names():
            raise UnknownNameError("environment", name, self.names())
        require_options(FakeEnv, options)
        return FakeEnv(self.names().index(name), **options)

    def names(self) -> list[str]:
        return [f"fake/{task}" for task in range(len(TASKS))]


FAMILY = _FakeFamily()
