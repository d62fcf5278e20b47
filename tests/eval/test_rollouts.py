"""Rollouts collected with real worker processes and the real dataset writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cosmos_robot.actions.noise import KEPT, OF_ROTATIONS
from cosmos_robot.data.collect import staging_folder
from cosmos_robot.data.layouts import open_recordings
from cosmos_robot.data.rollouts import RolloutStore
from cosmos_robot.data.staging import Staging
from cosmos_robot.data.store import EpisodeStore
from cosmos_robot.envs.fakes import FakeEnv
from cosmos_robot.errors import CheckpointError, ContractError, InputError, UnknownNameError, WorkerError
from cosmos_robot.eval.exploration import NoisyPolicy
from cosmos_robot.eval.rollouts import RolloutRules, rollout_jobs
from cosmos_robot.policies.fakes import ZeroPolicy
from cosmos_robot.types import Observation

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def made(fake, load_beside):
    """The module ``rollout_run`` beside this file."""
    return load_beside(HERE, "rollout_run")


@pytest.fixture(scope="module")
def wild(made, tmp_path_factory) -> RolloutStore:
    """Both targets, two seeds each, driven by a policy that asks for more than the robot takes."""
    out = tmp_path_factory.mktemp("rollouts") / "wild"
    made.run(out, ("fake/0", "fake/1"), 2, made.WildPolicy())
    return RolloutStore(out)


def test_replayed_commands_lead_through_the_recorded_moments(wild):
    """What is stored is what the environment received: from the same seed it leads to the same states and pictures,
    the last of which is where the episode ended."""
    assert [(info.suite, info.task, info.seed) for info in wild.infos] == [
        ("fake", task, seed) for task in (0, 1) for seed in (100, 101)
    ]
    for rollout in wild:
        env = FakeEnv(rollout.task)
        observation, _ = env.reset(seed=rollout.seed)
        assert rollout.instruction == observation.instruction
        observation.images["table"]
        assert np.abs(rollout.commands).max() == 1, "commands are clipped to the robot's range"
        moments = {0: observation}
        for step, command in enumerate(rollout.commands, start=1):
            observation, _, terminated, truncated, info = env.step(command)
            moments[step] = observation if step in rollout.steps else None
            if step in rollout.steps:
                observation.images["table"]
        assert terminated or truncated, "the last moment is the end of the episode"
        assert rollout.success == info["success"]
        for row, step in enumerate(rollout.steps):
            state = np.concatenate(list(moments[int(step)].state.values()))
            assert np.allclose(rollout.state[row], state, atol=1e-6)
            difference = rollout.images["table"][row].astype(int) - moments[int(step)].images["table"]
            assert np.abs(difference).mean() < 4


def test_rows_begin_at_decisions_and_every_decision_has_its_own_seed(wild):
    assert wild.execute == wild.chunk == 4 and wild.notes["execute"] == 4
    seeds = [seed for info in wild.infos for seed in info.noise_seeds]
    assert len(set(seeds)) == len(seeds) == sum(wild.lengths)
    for rollout in wild:
        assert rollout.policy == "fake-checkpoint"
        assert set(np.diff(rollout.steps[:-1])) <= {4}


def test_the_sheet_and_the_notes_tell_where_it_came_from(wild):
    assert Path(f"{wild.folder}.png").stat().st_size > 1000
    assert not staging_folder(wild.folder).exists()
    assert wild.notes["checkpoint_sha256"] == "0" * 64 and wild.notes["lost"] == []
    assert "numpy" in wild.notes["versions"]["packages"]


@pytest.fixture(scope="module")
def troubled(made, tmp_path_factory):
    out = tmp_path_factory.mktemp("rollouts") / "troubled"
    return made.run(out, episodes=5, workers=1, factory="rollout_run:make_troubled")


def test_failures_and_parts_are_kept_and_what_breaks_costs_its_episode(troubled):
    store = RolloutStore(troubled.out)
    assert [(i.seed, i.success, i.score) for i in store.infos] == [
        (102, False, 0.5),
        (103, True, 1.0),
        (104, True, 1.0),
    ]
    assert store[0].steps[-1] == 60, "a failure lasts until its budget"
    lost = {error.init: error.message for error in troubled.lost}
    assert "simulation broke" in lost[100] and "ValueError: a defect" in lost[101] and len(lost) == 2
    assert [entry["init"] for entry in store.notes["lost"]] == [100, 101]


def test_nothing_that_could_be_run_is_an_error_and_no_dataset(made, tmp_path):
    with pytest.raises(WorkerError, match=r"not one of 1 episodes(.|\n)*simulation broke"):
        made.run(tmp_path / "set", episodes=1, workers=1, factory="rollout_run:make_troubled")
    assert not (tmp_path / "set").exists()


def test_cosmos_policys_files_show_every_control_step(made, tmp_path):
    """Row t: what was there before command t."""
    out, folder = tmp_path / "set", tmp_path / "hdf5"
    made.run(out, ("fake/0",), 1, made.WildPolicy(), hdf5=folder)
    (rollout,), found = RolloutStore(out), open_recordings(folder)
    recording = found[0]
    assert np.array_equal(recording.actions, rollout.commands)
    assert (recording.success, recording.instruction) == (rollout.success, rollout.instruction)
    assert found.cameras == ("hand", "table") and len(recording) == rollout.steps[-1]
    env = FakeEnv(0)
    observation, _ = env.reset(seed=rollout.seed)
    shown = found.pictures(0, "table").astype(int)
    for row, command in enumerate(rollout.commands):
        assert np.allclose(recording.state[row], np.concatenate(list(observation.state.values())), atol=1e-6)
        assert np.abs(shown[row] - observation.images["table"]).mean() < 4
        observation, *_ = env.step(command)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_collection_resumes_without_repeating(made, tmp_path, stop):
    out = tmp_path / "set"
    command = [sys.executable, str(HERE / "rollout_run.py"), str(out), "6", "0.02"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    staging = Staging(staging_folder(out))
    while len(staging.keys()) < 3:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    with pytest.raises(CheckpointError, match="another process is collecting"):
        made.run(out, ("fake/0", "fake/1"), 6)
    os.kill(process.pid, stop) if stop == signal.SIGKILL else os.killpg(process.pid, stop)
    message = process.communicate()[1]
    before = set(staging.keys())
    assert 3 <= len(before) < 12
    if stop == signal.SIGINT:
        assert "are safe in" in message and "same command again" in message

    with pytest.raises(InputError, match="another driver"):
        made.run(out, ("fake/0", "fake/1"), 6, sha="1" * 64)
    with pytest.raises(InputError, match="another driver"):
        made.run(out, ("fake/0", "fake/1"), 6, rules=made.rules(noise=0.1))
    policy = made.PatientPolicy()
    made.run(out, ("fake/0", "fake/1"), 6, policy)
    store = RolloutStore(out)
    assert len(store) == 12
    again = {seed for batch in policy.batches for seed in batch}
    earlier = [info for info in store.infos if f"{info.suite}/{info.task}-{info.seed}" in before]
    assert len(earlier) == len(before) and not again & {seed for info in earlier for seed in info.noise_seeds}


def test_episodes_do_not_depend_on_who_ran_beside_them(made, wild, tmp_path):
    alone = made.run(tmp_path / "alone", ("fake/1",), 1, made.WildPolicy(), workers=1)
    one, other = RolloutStore(alone.out)[0], wild[2]
    assert (one.seed, one.task, one.noise_seeds) == (other.seed, other.task, other.noise_seeds)
    assert np.array_equal(one.commands, other.commands) and np.array_equal(one.state, other.state)


def test_rollouts_are_episodes_that_training_reads(made, wild, tmp_path):
    """The cache leaves out the moment that ends an episode: no command follows it."""
    from cosmos_robot.training.cache import frame_cache

    contract = made.PatientPolicy.contract
    contract = contract.model_copy(update={"model": contract.model.model_copy(update={"chunk": 4, "execute": 4})})
    cache = frame_cache(EpisodeStore(wild.folder), contract, tmp_path, progress=False)
    assert len(cache) == sum(wild.lengths) and cache.valid[:, 0].all()
    assert not cache.dagger.any()


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ((("fake/0", "fak/1"), 1, 0), UnknownNameError, "did you mean 'fake'"),
        ((("fake/7",), 1, 0), UnknownNameError, "did you mean 'fake/"),
        (((), 1, 0), InputError, "at least one environment"),
        ((("fake/0",), 0, 0), InputError, "episodes >= 1"),
        ((("fake/0",), 1, -1), InputError, "first_seed >= 0"),
    ],
)
def test_jobs_that_cannot_be_are_refused(arguments, error, named):
    with pytest.raises(error, match=named):
        rollout_jobs(*arguments)


@pytest.mark.parametrize(
    ("change", "named"), [({"execute": 0}, "execute"), ({"max_steps": 0}, "max_steps"), ({"seed": -1}, "seed")]
)
def test_rules_that_cannot_be_are_refused(change, named):
    with pytest.raises(InputError, match=named):
        RolloutRules(**({"execute": 4, "rate_hz": 20.0} | change))


def test_more_rows_than_the_chunk_has_are_refused(made, tmp_path):
    with pytest.raises(InputError, match="execute=9"):
        made.run(tmp_path / "set", rules=made.rules(execute=9))


def test_noise_is_correlated_within_a_decision_and_spares_the_gripper(fake):
    """Over many decisions: its size, what a step keeps of the last, and that the seed alone makes it."""
    still = ZeroPolicy(fake.CONTRACT)
    seen = Observation({}, {"position": np.zeros(2), "grip": np.zeros(1)}, "be still")
    noisy = NoisyPolicy(still, 0.1)
    chunks = noisy.act([seen] * 4000, list(range(4000)))
    values = np.stack([chunk.values for chunk in chunks])
    assert (values[..., 2] == -1).all()
    assert values[..., :2].std() == pytest.approx(0.1, rel=0.03)
    after = np.corrcoef(values[:, :-1, 0].ravel(), values[:, 1:, 0].ravel())[0, 1]
    assert after == pytest.approx(KEPT, abs=0.03)
    assert np.array_equal(noisy.act([seen], [17])[0].values, values[17])
    assert np.abs(NoisyPolicy(still, 1.0).act([seen], [1])[0].values).max() <= 1
    assert noisy.cameras == tuple(still.cameras)


def test_rotations_get_less_noise_and_a_command_without_range_none():
    from cosmos_robot.contract import load_contract

    contract = load_contract("tiny-libero")
    state = {f.name: np.zeros(f.width) for f in contract.robot.state}
    chunk = NoisyPolicy(ZeroPolicy(contract), 0.1).act([Observation({}, state, "x")] * 500, list(range(500)))
    values = np.concatenate([c.values for c in chunk])
    assert values[:, 3:6].std() / values[:, :3].std() == pytest.approx(OF_ROTATIONS, rel=0.1)
    unlimited = contract.robot.model_copy(update={"action_low": None, "action_high": None})
    open_ended = ZeroPolicy(contract.model_copy(update={"robot": unlimited}))
    with pytest.raises(ContractError, match="gives none for 'position'"):
        NoisyPolicy(open_ended, 0.1)
    with pytest.raises(InputError, match="noise"):
        NoisyPolicy(ZeroPolicy(contract), -0.1)
