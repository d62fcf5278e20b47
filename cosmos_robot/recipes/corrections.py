"""Corrections: the scripted expert labels the states that a policy drives into (DAgger)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.data.episodes import Episode, chunk_rows
from cosmos_robot.envs.base import execute
from cosmos_robot.envs.experts import PickPlaceExpert
from cosmos_robot.envs.libero import LiberoEnv
from cosmos_robot.envs.libero_demos import CHUNK, PREPARE, DemoJob, LiberoDemonstrator, make_episode, observe_row
from cosmos_robot.policies import load_policy


class LiberoCorrector(LiberoDemonstrator):
    """Labels the states that a policy drives into with what the expert would do there (DAgger).

    checkpoint: the policy's folder. expert_share: chunks executed from the expert's label instead of the policy's
    own, so that later phases are reached too. Every episode is kept, won or lost.
    """

    def __init__(self, checkpoint: str, expert_share: float = 0.25, decisions: int = 26):
        super().__init__()
        self._policy = load_policy(Path(checkpoint))
        self._share, self._decisions = expert_share, decisions
        self._execute = self._policy.contract.model.execute

    def episode(self, job: DemoJob) -> Episode:
        rng = np.random.default_rng([job.seed, 2])
        scene, plan = self.start(job.group, rng)
        PREPARE["elsewhere" if rng.random() < 0.3 else "home"](scene, plan, rng)
        rows, labels, success = [], [], False
        while not success and len(rows) < self._decisions:
            observation = scene.env.observe()
            expert = PickPlaceExpert(scene, plan)
            rows.append(observe_row(scene, observation, expert.phase))
            labels.append(_label(scene.env, expert))
            if rng.random() < self._share:
                values = labels[-1]
            else:
                values = self._policy.act([observation], [int(rng.integers(2**31))])[0].values
            success = execute(scene.env, values[: self._execute]).success
        parts = [chunk_rows(label, np.zeros(1, int), CHUNK) for label in labels]
        actions, valid = (np.concatenate(part) for part in zip(*parts, strict=True))
        return make_episode(scene, rows, actions, valid, job.seed, "dagger", success)


def _label(env: LiberoEnv, expert: PickPlaceExpert) -> NDArray[np.float64]:
    """The expert's next commands (at most CHUNK, 7) from here, fewer where they succeed; the simulation stays put."""
    here, commands, success = env.snapshot(), [], False
    while not success and len(commands) < CHUNK:
        commands.append(expert.act())
        success = env.step(np.clip(commands[-1], -1, 1))[2]
    env.restore(here)
    return np.array(commands)
