"""What every value model is checked for, with the world model whose futures it reads:

run_value(lambda: (world, value))
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.errors import InputError
from cosmos_robot.policies.base import ValueModel, WorldModel
from cosmos_robot.policies.conformance import INSTRUCTIONS, some_observation
from cosmos_robot.policies.conformance_video import some_chunk
from cosmos_robot.types import ActionChunk, Observation, VideoPrediction

TOLERANCE = 1e-4
"""Alone or in a batch, sums run in another order."""

Check = Callable[[WorldModel, ValueModel], None]


def run_value(make: Callable[[], tuple[WorldModel, ValueModel]]) -> list[str]:
    """Make both and run every check; returns the names of the checks."""
    world, value = make()
    for check in VALUE_CHECKS.values():
        check(world, value)
    return list(VALUE_CHECKS)


def check_values_are_shares(world: WorldModel, value: ValueModel) -> None:
    """One finite value from 0 to 1 for each observation, chunk and future; nothing in, nothing out."""
    found = _scores(value, *_case(world, value))
    assert found.shape == (len(INSTRUCTIONS),), f"{len(INSTRUCTIONS)} futures, values of shape {found.shape}"
    assert np.isfinite(found).all() and (found >= 0).all() and (found <= 1).all(), f"values leave 0..1: {found}"
    none: list[VideoPrediction] | None = None if value.reads == "q_value" else []
    assert len(value.score([], [], none, [])) == 0, "no futures gave values"


def check_same_seed_same_value(world: WorldModel, value: ValueModel) -> None:
    """The same input and seed give the same value, whatever was asked in between."""
    case = _case(world, value)
    first, _, again = (_scores(value, *case, first_seed=seed) for seed in (5, 6, 5))
    assert np.array_equal(first, again), "the same future and seed got another value"


def check_value_alone_equals_batch(world: WorldModel, value: ValueModel) -> None:
    """A value does not depend on its neighbours in the batch."""
    observations, chunks, futures = _case(world, value)
    together = _scores(value, observations, chunks, futures)
    for i, (observation, chunk) in enumerate(zip(observations, chunks, strict=True)):
        future = None if futures is None else [futures[i]]
        alone = value.score([observation], [chunk], future, [3 + i])[0]
        assert abs(alone - together[i]) <= TOLERANCE, f"value {i} is {alone} alone and {together[i]} in a batch"


def check_value_reads_only_its_cameras(world: WorldModel, value: ValueModel) -> None:
    """Of all pictures exactly those in ``cameras`` are read."""
    _, chunks, futures = _case(world, value)
    drawn: list[str] = []
    watched = [some_observation(value.contract, 10 + i, text, drawn) for i, text in enumerate(INSTRUCTIONS)]
    value.score(watched, chunks, futures, [3, 4, 5])
    assert set(drawn) == set(value.cameras), f"cameras says {value.cameras}, but {sorted(set(drawn))} were read"


def check_value_refusals(world: WorldModel, value: ValueModel) -> None:
    """Other numbers of seeds, chunks or futures are refused, and futures for a value that reads none, or none for one
    that does."""
    observations, chunks, futures = _case(world, value)
    imagined = world.imagine(observations, chunks, [0, 1, 2])
    wrong = imagined if value.reads == "q_value" else None
    calls: list[Callable[[], object]] = [
        lambda: value.score(observations, chunks, futures, [1]),
        lambda: value.score(observations, chunks[:1], futures, [1, 2, 3]),
        lambda: value.score(observations, chunks, wrong, [1, 2, 3]),
        lambda: value.score(observations, chunks, imagined[:1], [1, 2, 3]),
    ]
    for number, call in enumerate(calls):
        try:
            call()
        except InputError:
            continue
        raise AssertionError(f"wrong call {number} was accepted")


VALUE_CHECKS: dict[str, Check] = {
    "values_are_shares": check_values_are_shares,
    "same_seed_same_value": check_same_seed_same_value,
    "value_alone_equals_batch": check_value_alone_equals_batch,
    "value_reads_only_its_cameras": check_value_reads_only_its_cameras,
    "value_refusals": check_value_refusals,
}


def _case(
    world: WorldModel, value: ValueModel
) -> tuple[list[Observation], list[ActionChunk], list[VideoPrediction] | None]:
    observations = [some_observation(value.contract, 10 + i, text) for i, text in enumerate(INSTRUCTIONS)]
    chunks = [some_chunk(value.contract, i) for i in range(len(INSTRUCTIONS))]
    futures = None if value.reads == "q_value" else world.imagine(observations, chunks, [7, 8, 9])
    return observations, chunks, futures


def _scores(
    value: ValueModel,
    observations: list[Observation],
    chunks: list[ActionChunk],
    futures: list[VideoPrediction] | None,
    first_seed: int = 3,
) -> NDArray[np.float64]:
    return value.score(observations, chunks, futures, [first_seed + i for i in range(len(observations))])
