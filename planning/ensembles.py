"""The published order of a search: every member of every ensemble a call of its own. Only to be measured against."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.planning.plan import PlannerSettings, candidate_seeds, future_seed, value_seeds
from cosmos_robot.planning.values import aggregate
from cosmos_robot.policies.base import Policy, ValueModel, WorldModel
from cosmos_robot.types import Observation

Models = tuple[Policy, WorldModel, ValueModel]


def published_order(
    make: Callable[[], Models], settings: PlannerSettings, observation: Observation, seed: int
) -> NDArray[np.float64]:
    """(N,) scores of the candidates that ``best_of_n`` finds for the same ``seed`` at depth 1 with futures.

    make: the models, asked for anew before every call, so that nothing encoded for one call serves another.
    """
    scores = []
    for own in candidate_seeds(seed, settings.n):
        (chunk,) = make()[0].act([observation], [own])
        found = []
        for number in range(settings.futures):
            (future,) = make()[1].imagine([observation], [chunk], [future_seed(own, number)])
            for value_seed in value_seeds(own, number, settings.values):
                found.append(make()[2].score([observation], [chunk], [future], [value_seed])[0])
        scores.append(float(aggregate(found, settings.aggregation)))
    return np.array(scores)
