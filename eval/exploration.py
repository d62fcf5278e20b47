"""A policy disturbed on purpose, so that its rollouts show more than its own habits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.noise import OF_ROTATIONS, correlated
from cosmos_robot.contract import RobotSpec
from cosmos_robot.envs.base import action_range
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.policies.base import Policy
from cosmos_robot.types import ActionChunk, Observation


class NoisyPolicy(Policy):
    """``policy`` with correlated noise on its commands, of grippers none.

    noise: its standard deviation, as a share of half a command's range; rotations get 0.3 of it. Within a chunk a step
    keeps 0.7 of the noise before it; the decision's seed makes it. Raises InputError for a share outside 0..1,
    ContractError for a robot with a command that has no range.
    """

    def __init__(self, policy: Policy, noise: float):
        if not 0 <= noise <= 1:
            raise InputError(f"noise: expected a share of the commands' range from 0 to 1, got {noise}")
        self.contract = policy.contract
        self._policy = policy
        self._low, self._high = action_range(self.contract.robot)
        self._spread = noise * _scale(self.contract.robot, self._low, self._high)

    @property
    def cameras(self) -> tuple[str, ...]:
        return tuple(self._policy.cameras)

    def _act(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[ActionChunk]:
        chunks = self._policy.act(observations, seeds)
        return [self._disturbed(chunk, seed) for chunk, seed in zip(chunks, seeds, strict=True)]

    def _disturbed(self, chunk: ActionChunk, seed: int) -> ActionChunk:
        fresh = np.random.default_rng([seed, 6]).normal(size=chunk.values.shape)
        noise = np.empty_like(fresh)
        noise[0] = fresh[0]
        for step in range(1, len(fresh)):
            noise[step] = correlated(noise[step - 1], fresh[step])
        return replace(chunk, values=np.clip(chunk.values + self._spread * noise, self._low, self._high))


def _scale(robot: RobotSpec, low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half of each command's range, less for rotations, 0 for grippers (action_width,)."""
    scale, start = np.zeros(robot.action_width), 0
    for part in robot.action:
        columns = slice(start, start + part.width)
        start += part.width
        if part.kind == "gripper":
            continue
        reach = (high[columns] - low[columns]) / 2
        if not np.isfinite(reach).all():
            raise ContractError(
                f"noise is a share of a command's range, and {robot.name!r} gives none for {part.name!r}; set its low "
                "and high, or collect without noise"
            )
        scale[columns] = reach * (OF_ROTATIONS if part.kind == "rotation" else 1)
    return scale
