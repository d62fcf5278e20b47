"""The shipped policy's rollouts in the real simulator, from the command's own function to the dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cosmos_robot.data.rollouts import RolloutStore
from cosmos_robot.envs.libero import LIBERO_PANDA
from cosmos_robot.envs.training_starts import make
from cosmos_robot.eval.entrants import open_entrant
from cosmos_robot.eval.rollouts import RolloutRules, collect_rollouts, rollout_jobs

TASK, SEED, STEPS = "libero_object/7", 1003, 12
GUARDED = {"PYTHONPATH": str(Path(__file__).parents[1] / "eval")}


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> RolloutStore:
    """Two decisions in one layout; whoever reads the official initial states is stopped."""
    out, driver = tmp_path_factory.mktemp("rollouts") / "set", open_entrant("tiny-libero")
    model, robot = driver.policy.contract.model, driver.policy.contract.robot
    rules = RolloutRules(model.execute, robot.rate_hz, max_steps=STEPS)
    guarded = {"factory": "rollout_run:make_guarded", "variables": GUARDED}
    collect_rollouts(driver, rollout_jobs((TASK,), 1, SEED), rules, out, workers=1, **guarded)
    return RolloutStore(out)


def test_a_short_episode_of_the_shipped_policy_is_kept_as_the_failure_it_is(store):
    (rollout,) = store
    assert (rollout.suite, rollout.task, rollout.seed, rollout.policy) == ("libero_object", 7, SEED, "tiny-libero")
    assert not rollout.success and rollout.score == 0 and rollout.steps.tolist() == [0, 8, 12]
    assert rollout.state.shape == (3, LIBERO_PANDA.state_width) and rollout.actions.shape == (2, 8, 7)
    assert store.robot == LIBERO_PANDA and store.execute == 8
    assert all(frames.shape == (3, 256, 256, 3) for frames in rollout.images.values())
    assert "milk" in rollout.instruction.lower()


def test_its_commands_lead_from_the_layout_of_its_seed_to_its_last_moment(store):
    (rollout,) = store
    env = make(TASK)
    try:
        observation, _ = env.reset(seed=SEED)
        for row, step in enumerate(rollout.steps):
            while env.control_steps < step:
                observation, *_ = env.step(rollout.commands[env.control_steps])
            state = np.concatenate(list(observation.state.values()))
            assert np.allclose(rollout.state[row], state, atol=1e-4), f"after {step} steps"
            difference = np.abs(rollout.images["wrist"][row].astype(int) - observation.images["wrist"])
            assert difference.mean() < 3
    finally:
        env.close()
