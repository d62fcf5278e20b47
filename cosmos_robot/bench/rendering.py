"""What pictures cost: control steps per second of an environment, with and without them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import RobotSpec
from cosmos_robot.errors import InputError
from cosmos_robot.types import Observation


class Steppable(Protocol):
    """The part of an environment that is measured."""

    @property
    def robot(self) -> RobotSpec: ...

    def reset(self, *, seed: int | None = None) -> tuple[Observation, dict[str, Any]]: ...

    def step(self, action: NDArray[np.float64]) -> tuple[Observation, float, bool, bool, dict[str, Any]]: ...


@dataclass(frozen=True)
class Speed:
    """One measurement. ``every``: all cameras were read on each such step, 0 for never."""

    every: int
    steps: int
    pictures: int
    seconds: float

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds


def measure(env: Steppable, every: int, steps: int, seed: int = 0) -> Speed:
    """Run ``steps`` control steps of zero action, reading all cameras on each ``every``-th (0: never).

    Episodes that end are begun again; neither resets nor a first warming step with its pictures are timed.
    """
    if every < 0 or steps < 1:
        raise InputError(f"expected every >= 0 and steps >= 1, got every={every}, steps={steps}")
    action = np.zeros(env.robot.action_width)
    env.reset(seed=seed)
    _read(env.step(action)[0])
    seconds, pictures = 0.0, 0
    for step in range(steps):
        start = time.perf_counter()
        observation, _, terminated, truncated, _ = env.step(action)
        if every and step % every == 0:
            pictures += _read(observation)
        seconds += time.perf_counter() - start
        if terminated or truncated:
            env.reset(seed=seed)
    return Speed(every, steps, pictures, seconds)


def compare(env: Steppable, steps: int, every: Sequence[int] = (0, 8, 1), seed: int = 0) -> list[Speed]:
    """``measure`` for each frequency of pictures."""
    return [measure(env, frequency, steps, seed) for frequency in every]


def _read(observation: Observation) -> int:
    return len([observation.images[camera] for camera in observation.images])
