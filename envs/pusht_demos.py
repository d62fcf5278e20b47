"""Demonstrations of PushT by the scripted expert, recorded through ``cosmos_robot/data/collect.py``.

Rows are control steps: a plain dataset at 10 Hz, as anybody's would be. A job's seed is one of ``reset(seed=...)``,
which draws its start from gym-pusht's seeds from ``INIT_STATES`` on: never from those of evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.data.collect import Collection, collect
from cosmos_robot.data.episodes import Episode, EpisodeInfo, chunk_rows
from cosmos_robot.data.workers import DemonstratorSpec, Job, NotDemonstrated
from cosmos_robot.envs.pusht import PUSHT, SIDE, PushTEnv
from cosmos_robot.envs.pusht_expert import PushTExpert
from cosmos_robot.errors import InputError
from cosmos_robot.types import Observation

STRIDE = 1
CHUNK = 16
MAX_STEPS = 250
NOISE_LEVELS = (0.0, 2.5, 5.0)
"""Standard deviation of what is added to the clean command, px; one level for an episode."""
CAREFUL = 0.15
"""The share of the noise that is left while a pixel matters."""
NEAR_SHARE = 0.3
"""Share of the demonstrations that begin with the T near its outline, where a policy needs the most examples."""
MARKS = np.array([(-45.0, 15.0), (45.0, 15.0), (0.0, 105.0)])
"""Places on the T, in its own frame: towards the left and right end of its bar, and the end of its stem."""
DEMONSTRATOR = DemonstratorSpec("cosmos_robot.envs.pusht_demos:PushTDemonstrator")


def record_demos(
    out: str | Path, episodes: int, *, first_seed: int = 1000, workers: int = 2, progress: bool = True
) -> Collection:
    """``episodes`` attempts as the LeRobot dataset ``out``, with a sheet of pictures beside it; see ``collect``."""
    jobs = pusht_jobs(episodes, first_seed)
    return collect(jobs, DEMONSTRATOR, PUSHT, out, stride=STRIDE, workers=workers, progress=progress)


def pusht_jobs(episodes: int, first_seed: int = 1000) -> list[Job]:
    """Jobs with the seeds ``first_seed`` and those that follow."""
    return [Job(f"pusht-{seed}", "pusht/0", seed) for seed in range(first_seed, first_seed + episodes)]


class PushTDemonstrator:
    """The expert in a simulation of its own, disturbed while it acts; what is recorded is what it wanted."""

    def __init__(self) -> None:
        self._env = PushTEnv(step_budget=MAX_STEPS)

    def episode(self, job: Job) -> Episode:
        """The demonstration, which ends with a coverage above 0.95. Raises NotDemonstrated where it did not."""
        env, rng = self._env, np.random.default_rng([job.seed, 1])
        observation, _ = env.reset(seed=job.seed)
        if rng.random() < NEAR_SHARE:
            _put_near(env, rng)
            observation = env.observe()
        expert, level, noise = PushTExpert(env), rng.choice(NOISE_LEVELS), np.zeros(2)
        pictures, rows, commands, executed = [], [], [], []
        success, coverage = False, env.coverage()
        while not success and len(commands) < MAX_STEPS:
            pictures.append(observation.images["top"])
            rows.append(np.concatenate([observation.state["agent_position"], env.block_pose()]))
            commands.append(expert.act())
            noise = 0.7 * noise + np.sqrt(1 - 0.49) * rng.normal(0, level, 2)
            shaken = commands[-1] + noise * (CAREFUL if expert.careful else 1.0)
            executed.append(np.clip(shaken, 0, SIDE))
            observation, _, success, _, info = env.step(executed[-1])
            coverage = info["coverage"]
        if not success:
            raise NotDemonstrated(f"noise {level}: coverage {coverage:.2f} after {len(commands)} steps")
        return _episode(env.instruction, np.stack(pictures), np.array(rows), commands, executed, job.seed)

    def close(self) -> None:
        """Free the simulator."""
        self._env.close()


def put_as_recorded(env: PushTEnv, episode: Episode) -> Observation:
    """Reset ``env`` to where ``episode`` began. Raises InputError unless it is one of these demonstrations."""
    if "block_pose" not in episode.extras:
        raise InputError(f"the recording does not say where the T lay; it has {sorted(episode.extras)}, no block_pose")
    env.reset(seed=episode.info.seed)
    x, y, angle = episode.extras["block_pose"][0]
    env.put(episode.state[0], (x, y), angle)
    return env.observe()


def object_columns(poses: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """What a tokenizer may be told about a T at ``poses`` (N, 3): ``object_uv_top`` (N, 3, 3), the places of ``MARKS``
    in the picture (0 to 1, to the right and down) and a depth of 1; ``object_class`` (N, 3), which is which.
    """
    cos, sin = np.cos(poses[:, 2]), np.sin(poses[:, 2])
    turns = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
    places = (np.einsum("nij,kj->nki", turns, MARKS) + poses[:, None, :2]) / SIDE
    classes = np.broadcast_to(np.arange(len(MARKS), dtype=np.float64), places.shape[:2])
    return {"object_uv_top": np.concatenate([places, np.ones((*places.shape[:2], 1))], -1), "object_class": classes}


def _put_near(env: PushTEnv, rng: np.random.Generator) -> None:
    """Lay the T up to 50 px and half a radian beside its outline, and the disc anywhere clear of it."""
    goal = env.inner.goal_pose
    for _ in range(100):
        disc = rng.uniform(40, SIDE - 40, 2)
        env.put(disc, goal[:2] + rng.uniform(-50, 50, 2), goal[2] + rng.uniform(-0.5, 0.5))
        if np.linalg.norm(disc - np.array(env.inner.block.local_to_world((0, 45)))) > 110:
            return


def _episode(
    instruction: str,
    pictures: NDArray[np.uint8],
    rows: NDArray[np.float64],
    commands: Sequence[NDArray[np.float64]],
    executed: Sequence[NDArray[np.float64]],
    seed: int,
) -> Episode:
    actions, valid = chunk_rows(np.array(commands), np.arange(0, len(commands), STRIDE), CHUNK)
    poses = rows[:, 2:]
    extras = {"block_pose": poses, "executed": np.array(executed), **object_columns(poses)}
    return Episode(
        instruction=instruction,
        images={"top": pictures},
        state=rows[:, :2].astype(np.float32),
        actions=actions,
        valid=valid,
        info=EpisodeInfo("pusht", 0, seed, "expert", True),
        extras={name: value.astype(np.float32) for name, value in extras.items()},
    )
