"""What every policy is checked for. A new one's test is its constructor:

    for check in CHECKS.values():
        check(policy)

Each check raises AssertionError with the sentence of the promise that was broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cosmos_robot.contract import Contract
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.policies.base import Policy
from cosmos_robot.types import ActionChunk, Image, LazyImages, Observation

INSTRUCTIONS = ("pick up the red block", "Put the bowl on the plate.", "open the drawer")
BATCH_TOLERANCE = 1e-4
"""Alone or in a batch, float32 sums run in another order: allowed difference, as a share of the command range."""
ROUNDING = 1e-6
"""Of committed rows through a codec in float32, as a share of the command range."""


def run(make: Callable[[], Policy]) -> list[str]:
    """Make a policy and run every check on it; returns the names of the checks."""
    policy = make()
    for check in CHECKS.values():
        check(policy)
    return list(CHECKS)


def some_observation(
    contract: Contract, seed: int = 0, instruction: str = INSTRUCTIONS[0], drawn: list[str] | None = None
) -> Observation:
    """Random pictures and state of the contract's robot; the names of pictures that are read are put in ``drawn``."""
    robot, rng = contract.robot, np.random.default_rng(seed)
    pictures = {c.name: rng.integers(0, 256, (c.height, c.width, 3), dtype=np.uint8) for c in robot.cameras}
    seen = [] if drawn is None else drawn

    def draw(name: str) -> Image:
        seen.append(name)
        return pictures[name]

    return Observation(
        images=LazyImages(tuple(pictures), draw),
        state={f.name: rng.uniform(-1, 1, f.width) for f in robot.state},
        instruction=instruction,
        time=0.05 * seed,
    )


def check_chunks_match_contract(policy: Policy) -> None:
    """One chunk per observation, in the contract's length, width, rate and range, timed by its observation."""
    contract, robot = policy.contract, policy.contract.robot
    observations = _observations(policy)
    chunks = policy.act(observations, [7, 8, 9])
    assert len(chunks) == len(observations), f"{len(observations)} observations, {len(chunks)} chunks"
    for observation, chunk in zip(observations, chunks, strict=True):
        shape = (contract.model.chunk, robot.action_width)
        assert chunk.values.shape == shape, f"chunk has shape {chunk.values.shape}, the contract says {shape}"
        assert chunk.rate_hz == robot.rate_hz, f"chunk runs at {chunk.rate_hz} Hz, the robot at {robot.rate_hz}"
        assert chunk.start_time == observation.time, "chunk does not start at its observation's time"
        assert chunk.source, "chunk does not say who made it"
        _within_range(policy, chunk)


def check_same_seed_same_chunk(policy: Policy) -> None:
    """The same observation and seed give the same chunk, whatever was asked in between."""
    first = policy.act([some_observation(policy.contract, 1)], [5])[0]
    policy.act([some_observation(policy.contract, 2, INSTRUCTIONS[1])], [6])
    again = policy.act([some_observation(policy.contract, 1)], [5])[0]
    assert np.array_equal(first.values, again.values), "the same observation and seed gave another chunk"


def check_batch_equals_alone(policy: Policy) -> None:
    """A chunk does not depend on its neighbours in the batch, nor on their order."""
    observations, seeds = _observations(policy), [3, 4, 5]
    together = policy.act(observations, seeds)
    reverse = policy.act(observations[::-1], seeds[::-1])[::-1]
    for i, (observation, seed) in enumerate(zip(observations, seeds, strict=True)):
        alone = policy.act([observation], [seed])[0]
        for other in (together[i], reverse[i]):
            apart = float(np.abs(alone.values - other.values).max())
            assert apart <= BATCH_TOLERANCE * command_range(policy.contract), f"chunk {i} differs by {apart} in a batch"


def check_reads_only_its_cameras(policy: Policy) -> None:
    """Of all pictures exactly those in ``cameras`` are read, so that nobody draws the others."""
    drawn: list[str] = []
    policy.act([some_observation(policy.contract, drawn=drawn)], [0])
    assert set(drawn) == set(policy.cameras), f"cameras says {policy.cameras}, but {sorted(set(drawn))} were read"
    assert set(policy.cameras) <= {c.name for c in policy.contract.robot.cameras}, "cameras the robot does not have"


def check_seeds_fit_observations(policy: Policy) -> None:
    """Another number of seeds than of observations is refused; nothing in, nothing out."""
    try:
        policy.act([some_observation(policy.contract)], [1, 2])
    except InputError:
        pass
    else:
        raise AssertionError("two seeds for one observation were accepted")
    assert policy.act([], []) == [], "no observations gave chunks"


def check_goes_on_from_committed_rows(policy: Policy) -> None:
    """Given the first rows of a chunk, the chunk holds them as they are, in a batch as alone; rows that do not fit are
    refused. A policy that cannot be given rows says so with ContractError."""
    observations, seeds = _observations(policy), [3, 4, 5]
    chunk, width = policy.contract.model.chunk, policy.contract.robot.action_width
    kept = [min(chunk - 1, count) for count in (2, 1, 2)]
    given = [c.values[1 : 1 + k] for c, k in zip(policy.act(observations, [6, 7, 8]), kept, strict=True)]
    try:
        together = policy.act(observations, seeds, given)
    except ContractError:
        return
    limit = BATCH_TOLERANCE * command_range(policy.contract)
    for observation, seed, rows, found in zip(observations, seeds, given, together, strict=True):
        assert found.values.shape == (chunk, width), f"chunk has shape {found.values.shape} after committed rows"
        apart = float(np.abs(found.values[: len(rows)] - rows).max(initial=0))
        assert apart <= ROUNDING * command_range(policy.contract), f"committed rows came back {apart} away"
        alone = policy.act([observation], [seed], [rows])[0]
        assert np.abs(alone.values - found.values).max() <= limit, "a chunk with committed rows differs in a batch"
    for wrong in (np.zeros((1, width + 1)), np.zeros((chunk, width)), np.full((1, width), np.nan), np.zeros(width)):
        try:
            policy.act(observations[:1], [1], [wrong])
        except InputError:
            continue
        raise AssertionError(f"committed rows of shape {wrong.shape}, {wrong.ravel()[0]}, were accepted")


CHECKS: dict[str, Callable[[Policy], None]] = {
    "chunks_match_contract": check_chunks_match_contract,
    "same_seed_same_chunk": check_same_seed_same_chunk,
    "batch_equals_alone": check_batch_equals_alone,
    "reads_only_its_cameras": check_reads_only_its_cameras,
    "seeds_fit_observations": check_seeds_fit_observations,
    "goes_on_from_committed_rows": check_goes_on_from_committed_rows,
}


def _observations(policy: Policy) -> Sequence[Observation]:
    return [some_observation(policy.contract, 10 + i, text) for i, text in enumerate(INSTRUCTIONS)]


def command_range(contract: Contract) -> float:
    """Width of the robot's command range, 1 without one."""
    robot = contract.robot
    return 1.0 if robot.action_low is None or robot.action_high is None else robot.action_high - robot.action_low


def _within_range(policy: Policy, chunk: ActionChunk) -> None:
    robot = policy.contract.robot
    low = -np.inf if robot.action_low is None else robot.action_low
    high = np.inf if robot.action_high is None else robot.action_high
    assert (chunk.values >= low).all() and (chunk.values <= high).all(), f"commands leave the range {low}..{high}"
    if robot.gripper and robot.gripper.kind == "binary":
        ends = (robot.gripper.open_value, robot.gripper.closed_value)
        start = 0
        for field in robot.action:
            if field.name == robot.gripper.field:
                column = chunk.values[:, start : start + field.width]
                assert np.isin(column, ends).all(), f"a binary gripper takes {ends}, got {np.unique(column)}"
            start += field.width
