"""A planner as a policy: for evaluation, serving, and whatever else asks for chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.planning.best_of_n import Planner
from cosmos_robot.planning.plan import Plan
from cosmos_robot.policies.base import Policy
from cosmos_robot.types import ActionChunk, Observation

OnPlan = Callable[[int, Plan], None]
"""Told of every plan, with the seed of the question, before it is answered."""


class PlanningPolicy(Policy):
    """Each chunk is the one its search chose; how, stands in ``info["plan"]``. The candidates' futures are too large
    for that: whoever wants to look at them sets ``on_plan``."""

    def __init__(self, planner: Planner, on_plan: OnPlan | None = None):
        self.planner, self.on_plan = planner, on_plan
        self.contract = planner.contract

    @property
    def cameras(self) -> tuple[str, ...]:
        return self.planner.cameras

    def plan(self, observation: Observation, seed: int, deadline_s: float | None = None) -> ActionChunk:
        """One decision by ``deadline_s``, as a service asks for it."""
        return self._chunks([seed], [self.planner.plan(observation, seed, deadline_s)])[0]

    def _act(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[ActionChunk]:
        return self._chunks(seeds, self.planner.plan_all(observations, seeds))

    def _continue(
        self, observations: Sequence[Observation], seeds: Sequence[int], committed: Sequence[NDArray[np.float64]]
    ) -> list[ActionChunk]:
        return self._chunks(seeds, self.planner.plan_all(observations, seeds, committed=committed))

    def _chunks(self, seeds: Sequence[int], plans: Sequence[Plan]) -> list[ActionChunk]:
        for seed, found in zip(seeds, plans, strict=True):
            if self.on_plan is not None:
                self.on_plan(int(seed), found)
        return [found.as_chunk() for found in plans]
