"""ALOHA and PushT are what their gym packages are, without pictures that nobody reads."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot import envs
from cosmos_robot.envs.base import action_range
from cosmos_robot.envs.remote import RemoteEnv
from cosmos_robot.errors import InputError, RobotError, UnknownNameError
from cosmos_robot.types import Observation


def joined(observation: Observation) -> np.ndarray:
    return np.concatenate(list(observation.state.values()))


@pytest.mark.parametrize("task", ["transfer_cube", "insertion"])
def test_aloha_moves_and_looks_as_gym_aloha_does(task: str) -> None:
    with envs.make(f"aloha/{task}") as env:
        from gym_aloha.env import AlohaEnv

        theirs = AlohaEnv(task, obs_type="pixels_agent_pos")
        expected, _ = theirs.reset(seed=3)
        ours, _ = env.reset(options={"init_state": 3})
        assert np.array_equal(joined(ours), expected["agent_pos"])
        for row in np.random.default_rng(0).uniform(-0.3, 0.3, (3, 14)):
            action = expected["agent_pos"] + row
            expected, reward, *_ = theirs.step(action)
            ours, our_reward, *_ = env.step(action)
            assert np.array_equal(joined(ours), expected["agent_pos"]) and reward == our_reward
        assert np.array_equal(ours.images["top"], expected["pixels"]["top"])


def test_aloha_joints_beyond_one_radian_are_reached() -> None:
    """gym-aloha's own action space ends at 1, below the elbow's start at 1.16."""
    with envs.make("aloha/transfer_cube") as env:
        state = env.reset(seed=0)[0].state
        target = joined(env.observe())
        target[2] = 1.3
        for _ in range(25):
            state = env.step(target)[0].state
        assert state["left_joints"][2] == pytest.approx(1.3, abs=0.03)


def test_aloha_says_so_when_its_physics_breaks() -> None:
    with envs.make("aloha/transfer_cube") as env:
        low, high = (np.where(np.isfinite(limit), limit, 0.5) for limit in action_range(env.robot))
        env.reset(seed=0)
        with pytest.raises(RobotError, match=r"reset\(\) begins anew"):
            for row in [low, high] * 50:
                env.step(row)
        with pytest.raises(InputError, match="call reset"):
            env.step(row)
        env.reset(seed=0)
        env.step(joined(env.observe()))


def test_aloha_success_is_the_highest_reward_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with envs.make("aloha/transfer_cube") as env:
        for given in (3, 4):
            env.reset(seed=0)
            monkeypatch.setattr(env._inner._env.task, "get_reward", lambda physics, given=given: given)
            _, reward, terminated, _, info = env.step(joined(env.observe()))
            assert (reward, terminated, info["success"]) == (given, given == 4, given == 4)


def test_aloha_seeds_are_none_of_the_official_places() -> None:
    with envs.make("aloha/transfer_cube") as env:
        official = [env.start_places(index) for index in range(env.init_state_count)]
        for seed in range(3):
            env.reset(seed=seed)
            assert not any(np.array_equal(env.physics.data.qpos[16:], place) for place in official)


def test_pusht_is_gym_pushts() -> None:
    with envs.make("pusht/0") as env:
        from gym_pusht.envs.pusht import PushTEnv

        theirs = PushTEnv(obs_type="pixels_agent_pos")
        expected, _ = theirs.reset(seed=11)
        env.reset(options={"init_state": 11})
        for row in np.random.default_rng(0).uniform(0, 512, (20, 2)):
            expected, reward, *_, their_info = theirs.step(row)
            ours, our_reward, *_, info = env.step(row)
            assert np.array_equal(joined(ours), expected["agent_pos"]) and reward == our_reward
            assert info["coverage"] == their_info["coverage"]
        assert np.array_equal(ours.images["top"], expected["pixels"])


def test_pusht_succeeds_when_the_t_is_home() -> None:
    with envs.make("pusht/0") as env:
        env.reset(seed=0)
        stay = env.observe().state["agent_position"]
        block = env.inner.block
        block.angle, block.position = np.pi / 4 + 0.3, (256.0, 256.0)
        *_, info = env.step(stay)
        assert not info["success"] and 0.3 < info["coverage"] < 0.95
        block.angle, block.position = np.pi / 4, (256.0, 256.0)
        _, reward, terminated, truncated, info = env.step(stay)
        assert terminated and not truncated and info["success"] and info["coverage"] > 0.95 and reward == 1


def test_pusht_in_a_process_tells_its_coverage() -> None:
    with RemoteEnv("pusht/0") as env, envs.make("pusht/0") as here:
        env.reset(seed=4)
        here.reset(seed=4)
        assert env.step([200.0, 300.0])[-1] == here.step([200.0, 300.0])[-1]


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'insertion'"):
        envs.make("aloha/insert")
    with pytest.raises(UnknownNameError, match="pusht/0"):
        envs.make("pusht/1")
