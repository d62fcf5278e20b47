"""Commands of an episode in simulation: the recorded ones as a control, and what the policy makes of the same start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.data.episodes import Episode
from cosmos_robot.envs import make
from cosmos_robot.envs.base import RobotEnv, execute
from cosmos_robot.errors import CosmosRobotError, InputError
from cosmos_robot.policies.base import Policy
from cosmos_robot.recipes.finetune.description import Description
from cosmos_robot.registry import Registry
from cosmos_robot.types import Observation

STARTS = Registry("environment whose recorded starts can be restored")
"""Environment family to a function (env, episode) that resets it to where the episode began."""
STARTS.add("pusht", "cosmos_robot.envs.pusht_demos:put_as_recorded")
EXECUTED = "executed"
"""The extra in which our collectors keep what was really sent, where the clean command was disturbed."""


def replay_lines(description: Description, index: int, policy: Policy) -> list[str]:
    """What came of an episode's start in simulation, in words: the recorded commands, and the policy's."""
    if description.env is None:
        return ["replay: none, the description names no env"]
    family = description.env.split("/")[0].split("_")[0]
    if family not in STARTS:
        return [f"replay: none, starts of {description.env} cannot be restored from a recording"]
    stored = _stored(description, index)
    if stored is None:
        return [f"replay: none, {description.data.path} does not hold the start of its episodes"]
    put: Callable[[Any, Episode], Observation] = STARTS.get(family)
    rows = stored.extras.get(EXECUTED, stored.actions[:, 0])
    with make(description.env) as env:
        try:
            put(env, stored)
        except InputError as error:
            return [f"replay: none, {error}"]
        recorded = _run_rows(env, np.asarray(rows, np.float64))
        put(env, stored)
        driven = _drive(env, policy)
    return [
        f"replay of the recorded commands in {description.env}: {recorded}",
        f"the policy from the same start: {driven}",
    ]


def _stored(description: Description, index: int) -> Episode | None:
    """The episode with what only our own collector writes beside it, None for other people's recordings."""
    from cosmos_robot.data.store import EpisodeStore

    try:
        return EpisodeStore(description.data.path).episode(index, cameras=[])
    except CosmosRobotError:
        return None


def _run_rows(env: RobotEnv, rows: NDArray[np.float64]) -> str:
    result = execute(env, rows)
    return _told(result.success, result.score, result.steps)


def _drive(env: RobotEnv, policy: Policy) -> str:
    run = policy.contract.model.execute
    best, steps, seed = 0.0, 0, 0
    while True:
        chunk = policy.act([env.observe()], [seed])[0]
        result = execute(env, chunk.values[:run])
        best, steps, seed = max(best, result.score), steps + result.steps, seed + 1
        if result.terminated or result.truncated:
            return _told(result.success, best, steps)


def _told(success: bool, score: float, steps: int) -> str:
    return f"{'success' if success else 'no success'}, score {score:.2f}, {steps} steps"
