"""What pictures cost: control steps per second and episodes per minute of an environment, with and without them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True)
class EpisodeSpeed:
    """Whole episodes, resets included. ``every``: all cameras were read at the start and on each such step."""

    every: int
    episodes: int
    steps: int
    pictures: int
    seconds: float

    @property
    def episodes_per_minute(self) -> float:
        return 60 * self.episodes / self.seconds


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


def measure_episodes(env: Steppable, every: int, episodes: int, length: int, seed: int = 0) -> EpisodeSpeed:
    """Run ``episodes`` of at most ``length`` control steps of zero action, as an evaluator does that looks through all
    cameras before each decision and decides every ``every`` steps. A first reset and its pictures are not timed."""
    if min(every, episodes, length) < 1:
        raise InputError(f"expected at least 1, got every={every}, episodes={episodes}, length={length}")
    action = np.zeros(env.robot.action_width)
    _read(env.reset(seed=seed)[0])
    steps, pictures = 0, 0
    start = time.perf_counter()
    for episode in range(episodes):
        pictures += _read(env.reset(seed=seed + episode)[0])
        for step in range(1, length + 1):
            observation, _, terminated, truncated, _ = env.step(action)
            steps += 1
            if terminated or truncated:
                break
            if step % every == 0 and step < length:
                pictures += _read(observation)
    return EpisodeSpeed(every, episodes, steps, pictures, time.perf_counter() - start)


def report(
    env: Steppable, steps: int = 200, episodes: int = 3, length: int = 110, execute: int = 8, seed: int = 0
) -> dict[str, Any]:
    """Everything, ready for JSON: ``steps`` control steps without pictures, with them every ``execute`` steps and on
    every step; then ``episodes`` with pictures once per decision and on every step, and the ratio of the two."""
    speeds = compare(env, steps, (0, execute, 1), seed)
    runs = [measure_episodes(env, every, episodes, length, seed) for every in (execute, 1)]
    return {
        "cameras": {c.name: [c.height, c.width] for c in env.robot.cameras},
        "control": [asdict(speed) | {"steps_per_second": speed.steps_per_second} for speed in speeds],
        "episodes": [asdict(run) | {"episodes_per_minute": run.episodes_per_minute} for run in runs],
        "episode_speedup": runs[0].episodes_per_minute / runs[1].episodes_per_minute,
    }


def _read(observation: Observation) -> int:
    return len([observation.images[camera] for camera in observation.images])
