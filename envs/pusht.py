"""PushT, through gym-pusht: a disc pushes a T onto its outline, told positions at 10 Hz.

The one name is ``pusht/0``. Lengths are pixels of a square of 512, x to the right and y down.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.contract import load_robot
from cosmos_robot.envs.base import RobotEnv, init_state, require_limits, require_options
from cosmos_robot.envs.truth import GroundTruth, Pose
from cosmos_robot.errors import DependencyError, UnknownNameError
from cosmos_robot.types import Image

PUSHT = load_robot("pusht")
SIDE = 512.0
STEP_BUDGET = 300
INIT_STATES = 200
"""gym-pusht's seeds below this are the initial states of evaluation; any other start is drawn from those above."""
SUCCESS_COVERAGE = 0.95
INSTRUCTION = "Push the T-shaped block onto the green outline"
METRES = 0.001
"""A pixel in the ground truth, which counts in metres."""


class PushTEnv(RobotEnv):
    """gym-pusht's one task. Actions are where the disc shall be, (x, y) from 0 to 512.

    The reward is gym-pusht's: the share of the outline that is covered, over 0.95, at most 1. Success is a coverage
    above 0.95; every step's info has ``coverage``. ``reset(options={"init_state": i})`` starts as gym-pusht does from
    seed i.
    """

    robot = PUSHT
    init_state_count = INIT_STATES

    def __init__(self, *, settle_steps: int = 0, step_budget: int = STEP_BUDGET):
        super().__init__()
        require_limits(settle_steps, step_budget)
        self.instruction = INSTRUCTION
        self.settle_steps, self.step_budget = settle_steps, step_budget
        camera = self.robot.cameras[0]
        self.inner = build_inner(camera.height, camera.width)
        self.seconds = 0.0

    def coverage(self) -> float:
        """The share of the outline that the T covers, 0 to 1."""
        return float(self.inner._get_coverage())

    def block_pose(self) -> NDArray[np.float64]:
        """(3,): x, y and angle of the T's own frame."""
        block = self.inner.block
        return np.array([*block.position, block.angle])

    def score(self) -> float:
        """The coverage as a share of what success takes."""
        return min(self.coverage() / SUCCESS_COVERAGE, 1.0)

    def ground_truth(self) -> PushTTruth:
        return PushTTruth(self)

    def close(self) -> None:
        if not self._closed:
            super().close()
            self.inner.close()

    def put(self, disc: ArrayLike, block: ArrayLike, angle: float) -> None:
        """Lay disc and T (its own frame) somewhere else, at rest; observations made before are void."""
        inner = self.inner
        inner.agent.position, inner.agent.velocity = tuple(np.asarray(disc, float)), (0.0, 0.0)
        inner.block.angle = float(angle)  # turns about the centre of gravity, so the position comes after it
        inner.block.position = tuple(np.asarray(block, float))
        inner.block.velocity, inner.block.angular_velocity = (0.0, 0.0), 0.0
        inner.space.reindex_shapes_for_body(inner.block)
        inner.space.reindex_shapes_for_body(inner.agent)
        self._moment += 1

    def _reset(self, options: dict[str, Any]) -> None:
        index = init_state(self, options)
        self.inner.reset(seed=int(self.np_random.integers(INIT_STATES, 2**31)) if index is None else index)
        self._count_time()
        for _ in range(self.settle_steps):
            self.inner.step(np.array(self.inner.agent.position))

    def _count_time(self) -> None:
        """``seconds`` since the reset; gym-pusht has no clock and makes a new space at every reset."""
        self.seconds = 0.0
        step = self.inner.space.step

        def counting(seconds: float) -> None:
            self.seconds += seconds
            step(seconds)

        self.inner.space.step = counting

    def _step(self, action: NDArray[np.float64]) -> tuple[float, bool, bool]:
        _, reward, success, _, _ = self.inner.step(action)
        return float(reward), bool(success), self.control_steps + 1 >= self.step_budget

    def _info(self) -> dict[str, Any]:
        return {"coverage": self.coverage()}

    def _state(self) -> dict[str, NDArray[np.float64]]:
        return {"agent_position": np.array(self.inner.agent.position)}

    def _draw(self, camera: str) -> Image:
        return np.ascontiguousarray(self.inner._render())


class PushTTruth(GroundTruth):
    """The disc is the hand, the T the mark. There is no gripper."""

    def __init__(self, env: PushTEnv):
        self._env = env

    def seconds(self) -> float:
        return self._env.seconds

    def frames(self) -> dict[str, Pose]:
        return {"world": Pose(np.zeros(3), np.eye(3)), "tool": self.hand()}

    def hand(self) -> Pose:
        return Pose(METRES * np.append(np.array(self._env.inner.agent.position), 0.0), np.eye(3))

    def fingers(self) -> NDArray[np.float64]:
        return np.empty(0)

    def opening(self) -> float:
        return 0.0

    def fully_open(self) -> float:
        return 0.0

    def seen_at(self, camera: str, u: float, v: float) -> NDArray[np.float64]:
        return METRES * SIDE * np.array([u, v, 0.0])

    def put_mark(self, point: NDArray[np.float64] | None) -> Callable[[], None]:
        """By its middle."""
        inner = self._env.inner
        before = inner.block.position
        centre = inner.block.local_to_world(inner.block.center_of_gravity) - before

        def put(place: tuple[float, ...]) -> None:
            inner.block.position = place
            inner.space.reindex_shapes_for_body(inner.block)

        put(tuple((np.array([-SIDE, -SIDE]) if point is None else point[:2] / METRES) - centre))
        return lambda: put(before)

    def start(self) -> NDArray[np.float64]:
        return _places(self._env.inner)

    def recorded_start(self, index: int) -> NDArray[np.float64]:
        """What a fresh gym-pusht starts from."""
        fresh = build_inner(8, 8)
        fresh.reset(seed=index)
        return _places(fresh)


def _places(inner) -> NDArray[np.float64]:
    """Disc (2,), T (2,) and its angle."""
    return np.array([*inner.agent.position, *inner.block.position, inner.block.angle])


def build_inner(height: int, width: int):
    """gym-pusht's own environment, which draws pictures of that size. Raises DependencyError without gym-pusht."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from gym_pusht.envs.pusht import PushTEnv as Inner
    except ImportError as error:
        raise DependencyError(f"gym-pusht is not installed ({error}); install cosmos-robot[pusht]") from error
    return Inner(obs_type="state", observation_height=height, observation_width=width)


class _PushTFamily:
    def make(self, name: str, **options: Any) -> PushTEnv:
        if name not in self.names():
            raise UnknownNameError("environment", name, self.names())
        require_options(PushTEnv, options)
        return PushTEnv(**options)

    def names(self) -> list[str]:
        return ["pusht/0"]


FAMILY = _PushTFamily()
