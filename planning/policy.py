"""A planner as a policy: for evaluation, serving, and whatever else asks for chunks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.planning.best_of_n import Planner
from cosmos_robot.policies.base import Policy
from cosmos_robot.types import ActionChunk, Observation


class PlanningPolicy(Policy):
    """Each chunk is the one its search chose; how, stands in ``info["plan"]``."""

    def __init__(self, planner: Planner):
        self.planner = planner
        self.contract = planner.contract

    @property
    def cameras(self) -> tuple[str, ...]:
        return self.planner.cameras

    def plan(self, observation: Observation, seed: int, deadline_s: float | None = None) -> ActionChunk:
        """One decision by ``deadline_s``, as a service asks for it."""
        return self.planner.plan(observation, seed, deadline_s).as_chunk()

    def _act(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[ActionChunk]:
        return [self.planner.plan(o, s).as_chunk() for o, s in zip(observations, seeds, strict=True)]

    def _continue(
        self, observations: Sequence[Observation], seeds: Sequence[int], committed: Sequence[NDArray[np.float64]]
    ) -> list[ActionChunk]:
        given = zip(observations, seeds, committed, strict=True)
        return [self.planner.plan(o, s, committed=rows).as_chunk() for o, s, rows in given]
