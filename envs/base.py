"""What every environment promises.

A ``RobotEnv`` is a gymnasium environment whose observations are typed ``Observation`` values with lazy pictures. It
names its robot, its instruction and its own success; it never guesses a convention.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import RobotSpec
from cosmos_robot.errors import InputError
from cosmos_robot.types import Image, LazyImages, Observation


@dataclass(frozen=True)
class StepResult:
    """What came of running some actions: the last observation, summed reward, how it ended, steps really taken."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    success: bool
    steps: int


class RobotEnv(gymnasium.Env):
    """Base of all environments.

    Subclasses set ``robot`` and ``instruction`` and implement the four underscored methods. ``reset`` must be called
    before ``step``, and again after an episode has ended; a wrong call raises instead of being mended.
    """

    robot: RobotSpec
    instruction: str

    def __init__(self) -> None:
        self._moment = 0
        self._running = False
        self._closed = False
        self.control_steps = 0
        low = -np.inf if self.robot.action_low is None else self.robot.action_low
        high = np.inf if self.robot.action_high is None else self.robot.action_high
        width = self.robot.action_width
        self.action_space = gymnasium.spaces.Box(low, high, (width,), np.float64)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "images": gymnasium.spaces.Dict(
                    {c.name: gymnasium.spaces.Box(0, 255, (c.height, c.width, 3), np.uint8) for c in self.robot.cameras}
                ),
                "state": gymnasium.spaces.Dict(
                    {f.name: gymnasium.spaces.Box(-np.inf, np.inf, (f.width,), np.float64) for f in self.robot.state}
                ),
            }
        )

    @abstractmethod
    def _reset(self, options: dict[str, Any]) -> None:
        """Put the world at the start of an episode; ``self.np_random`` is seeded."""

    @abstractmethod
    def _step(self, action: NDArray[np.float64]) -> tuple[float, bool, bool]:
        """Advance one control step: reward, success now, out of time."""

    @abstractmethod
    def _state(self) -> dict[str, NDArray[np.float64]]:
        """The state fields of ``robot``, in its units."""

    @abstractmethod
    def _draw(self, camera: str) -> Image:
        """Render one camera, now."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start an episode. Returns (Observation, info)."""
        self._require_open()
        super().reset(seed=seed)
        self._moment += 1
        self.control_steps = 0
        self._reset(dict(options or {}))
        self._running = True
        return self._observe(), {"instruction": self.instruction}

    def step(self, action):
        """One control step with ``action`` (action_width,), finite, in the robot's units.

        Returns (Observation, reward, terminated, truncated, info) with ``info["success"]`` from the env's own check.
        """
        self._require_open()
        if not self._running:
            raise InputError("step() before reset(), or after the episode ended; call reset() first")
        action = self._check(action)
        self._moment += 1
        reward, success, out_of_time = self._step(action)
        self.control_steps += 1
        self._running = not (success or out_of_time)
        return self._observe(), reward, success, out_of_time and not success, {"success": success}

    def render_camera(self, name: str) -> Image:
        """Draw camera ``name`` now: uint8 (H, W, 3), oriented as the robot's spec says."""
        self._require_open()
        self.robot.camera(name)
        return self._draw(name)

    def close(self) -> None:
        """Free the simulator; calling it again does nothing."""
        self._closed = True

    def _observe(self) -> Observation:
        moment = self._moment
        images = LazyImages(
            tuple(c.name for c in self.robot.cameras), self._draw, lambda: moment == self._moment and not self._closed
        )
        return Observation(images, self._state(), self.instruction, self.control_steps / self.robot.rate_hz)

    def _check(self, action: object) -> NDArray[np.float64]:
        values = np.asarray(action, dtype=np.float64)
        if values.shape != (self.robot.action_width,):
            raise InputError(f"action: expected shape ({self.robot.action_width},), got {values.shape}")
        if not np.isfinite(values).all():
            raise InputError(f"action: dimension {int(np.argmin(np.isfinite(values)))} is not finite: {values}")
        return np.clip(values, self.action_space.low, self.action_space.high)

    def _require_open(self) -> None:
        if self._closed:
            raise InputError("this environment is closed; make a new one")


def execute(
    env: RobotEnv, values: NDArray[np.float64], on_step: Callable[[RobotEnv], None] | None = None
) -> StepResult:
    """Run rows of ``values`` (k, D) in ``env`` until they are used up or the episode ends."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or not len(values):
        raise InputError(f"execute: expected (k, D) with k >= 1, got {values.shape}")
    total = 0.0
    for steps, action in enumerate(values, start=1):
        observation, reward, terminated, truncated, info = env.step(action)
        total += float(reward)
        if on_step is not None:
            on_step(env)
        if terminated or truncated:
            break
    return StepResult(observation, total, terminated, truncated, bool(info["success"]), steps)
