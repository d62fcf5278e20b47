"""The scripted demonstrator of PushT: it gets there, not from evaluation's starts, and what it records is true."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.data.episodes import Episode, require_storable
from cosmos_robot.envs.pusht import INIT_STATES, PUSHT, SIDE, PushTEnv
from cosmos_robot.envs.pusht_demos import MARKS, PushTDemonstrator, object_columns, pusht_jobs, put_as_recorded
from cosmos_robot.envs.pusht_expert import PushTExpert


@pytest.fixture(scope="module")
def episodes() -> list[Episode]:
    demonstrator = PushTDemonstrator()
    return [demonstrator.episode(job) for job in pusht_jobs(3)]


def test_no_start_is_one_of_evaluations() -> None:
    env = PushTEnv()
    for seed in [*range(60), *(job.seed for job in pusht_jobs(60))]:
        env.reset(seed=seed)
        assert env.inner.np_random_seed >= INIT_STATES
    env.reset(options={"init_state": INIT_STATES - 1})
    assert env.inner.np_random_seed == INIT_STATES - 1


def test_the_expert_covers_the_outline() -> None:
    env = PushTEnv(step_budget=250)
    for seed in range(4):
        env.reset(seed=seed)
        expert, ended = PushTExpert(env), False
        while not ended:
            _, _, success, truncated, info = env.step(expert.act())
            ended = success or truncated
        assert success and info["coverage"] > 0.95


def test_a_demonstration_is_storable_and_ends_at_its_last_command(episodes: list[Episode]) -> None:
    for episode in episodes:
        require_storable(episode, PUSHT)
        assert episode.info.success and episode.valid[-1].sum() == 1 and episode.valid[0].all()
        assert np.array_equal(episode.actions[:-1, 1], episode.actions[1:, 0])
        assert episode.actions.min() >= 0 and episode.actions.max() <= SIDE


def test_what_was_executed_leads_there_again(episodes: list[Episode]) -> None:
    env = PushTEnv(step_budget=1000)
    reached = []
    for episode in episodes:
        start = put_as_recorded(env, episode)
        assert np.allclose(start.state["agent_position"], episode.state[0], atol=1e-3)
        assert np.abs(start.images["top"].astype(int) - episode.images["top"][0]).mean() < 0.5
        last = [env.step(row)[-1]["coverage"] for row in episode.extras["executed"] if env.running][-1]
        reached.append(last)
    assert np.median(reached) > 0.9


def test_the_same_job_gives_the_same_episode(episodes: list[Episode]) -> None:
    again = PushTDemonstrator().episode(pusht_jobs(1)[0])
    assert np.array_equal(again.actions, episodes[0].actions)
    assert np.array_equal(again.images["top"], episodes[0].images["top"])


def test_marks_lie_on_the_t() -> None:
    env = PushTEnv()
    env.reset(seed=0)
    env.put((60, 60), (300.0, 250.0), 0.7)
    columns = object_columns(env.block_pose()[None])
    expected = [env.inner.block.local_to_world(tuple(mark)) for mark in MARKS]
    assert np.allclose(columns["object_uv_top"][0, :, :2] * SIDE, expected)
    assert columns["object_class"][0].tolist() == [0, 1, 2]
    picture = env.observe().images["top"]
    down_right = (columns["object_uv_top"][0, :, 1::-1] * 96).astype(int)
    assert all(np.array_equal(picture[row, column], [143, 163, 184]) for row, column in down_right)
