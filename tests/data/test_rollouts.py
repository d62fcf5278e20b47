"""Rollouts: the shape of what a policy did, and its way through a dataset folder."""

import pickle
from dataclasses import replace

import data_oracle as oracle
import numpy as np
import pytest

from cosmos_robot.data.rollouts import Rollout, RolloutStore, rollout_of, write_rollouts
from cosmos_robot.data.store import EpisodeStore
from cosmos_robot.errors import InputError

EXECUTE = 4


def rollout(number: int, steps: int, *, success: bool = False, score: float = 0.0) -> Rollout:
    """The rollout called ``number``; its commands are counted through."""
    count = -(-steps // EXECUTE)
    commands = np.stack([np.full(steps, number), np.arange(steps), np.ones(steps)], axis=1)
    actions = commands[np.minimum(np.arange(count * EXECUTE), steps - 1)].reshape(count, EXECUTE, 3)
    moments = np.arange(count + 1)
    return Rollout(
        instruction=f"do task {number}",
        images={n: np.stack([oracle.picture(number, r, c) for r in moments]) for c, n in enumerate(oracle.CAMERAS)},
        state=np.stack([np.full(count + 1, number), moments, moments / 10], axis=1),
        actions=actions,
        valid=(np.arange(count * EXECUTE) < steps).reshape(count, EXECUTE),
        success=success,
        score=score,
        suite="oracle",
        task=number % 3,
        seed=2**31 + number,
        policy="driver",
        noise_seeds=tuple(2**32 - 1 - i for i in range(count)),
    )


def test_a_rollout_has_one_moment_more_than_decisions():
    one = rollout(7, steps=10, success=True, score=1.0)
    assert len(one) == 3 and one.state.shape == (4, 3) and len(one.images["hand"]) == 4
    assert one.steps.tolist() == [0, 4, 8, 10]
    assert one.commands[:, 1].tolist() == list(range(10))
    episode = one.episode()
    assert len(episode) == 4 and episode.decisions == 3
    assert not episode.valid[-1].any() and episode.actions[-1, 0].tolist() == [7, 9, 1]


def test_returns_count_control_steps_from_the_end():
    won, partly, lost = rollout(1, 10, success=True, score=1.0), rollout(1, 10, score=0.3), rollout(1, 10)
    expected = [2 * 0.9**left - 1 for left in (10, 6, 2, 0)]
    assert won.returns(0.9) == pytest.approx(expected, abs=1e-6)
    assert partly.returns(0.9) == pytest.approx(expected, abs=1e-6), "a partial score counts as the reference has it"
    assert lost.returns(0.9).tolist() == [-1] * 4


def test_a_rollout_cannot_be_edited_and_can_be_pickled():
    one = rollout(3, steps=6)
    for array in (one.state, one.actions, one.valid):
        with pytest.raises(ValueError):
            array[0] = 0
    again = pickle.loads(pickle.dumps(one))
    assert again.noise_seeds == one.noise_seeds and np.array_equal(again.images["hand"], one.images["hand"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"state": np.zeros((3, 3))}, "episode actions"),
        ({"actions": np.zeros((3, 4))}, "expected actions"),
        ({"valid": np.ones((3, 3), bool)}, "expected actions"),
        ({"valid": np.array([[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]], bool)}, "row 1 has no valid command"),
        ({"valid": np.array([[1, 1, 1, 1], [1, 0, 1, 0], [1, 1, 0, 0]], bool)}, "behind a gap"),
        ({"score": 1.5}, "score"),
        ({"noise_seeds": (1, 2)}, "2 seeds for 3 decisions"),
        ({"actions": np.full((3, 4, 3), np.nan)}, "not finite"),
    ],
)
def test_malformed_rollouts_are_refused_by_name(change, named):
    with pytest.raises(InputError, match=named):
        replace(rollout(0, 10), **change)


def test_rollouts_come_back_from_a_dataset_as_they_went(tmp_path):
    given = [rollout(0, 10, success=True, score=1.0), rollout(1, 9, score=0.25), rollout(2, 1)]
    folder = write_rollouts(given, tmp_path / "set", oracle.ROBOT, execute=EXECUTE, notes={"why": "test"})
    store = RolloutStore(folder)
    assert len(store) == 3 and store.lengths == (3, 3, 1) and store.chunk == store.execute == EXECUTE
    assert [(i.success, i.score, i.policy) for i in store.infos] == [
        (True, 1.0, "driver"), (False, 0.25, "driver"), (False, 0.0, "driver"),
    ]  # fmt: skip
    for one, other in zip(given, store, strict=True):
        for name in ("state", "actions", "valid"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        for name in ("instruction", "suite", "task", "seed", "success", "score", "noise_seeds"):
            assert getattr(one, name) == getattr(other, name), name
        for camera, name in enumerate(oracle.CAMERAS):
            spelled = [oracle.spelled(frame) for frame in other.images[name]]
            assert spelled == [(one.task, row, camera) for row in range(len(one) + 1)]
    assert store.rollout(1, cameras=()).images == {}
    assert EpisodeStore(folder)[0].decisions == 3
    assert store.fingerprint == EpisodeStore(folder).fingerprint


def test_a_rate_that_is_no_whole_number_is_rounded_for_lerobot_only(tmp_path):
    given = replace(rollout(0, 24), actions=np.zeros((6, 8, 3)), valid=np.ones((6, 8), bool))
    store = RolloutStore(write_rollouts([given], tmp_path / "set", oracle.ROBOT, execute=8))
    assert store.execute == 8 and store[0].steps.tolist() == [0, 8, 16, 24, 32, 40, 48]


def test_demonstrations_are_no_rollouts(tmp_path):
    from cosmos_robot.data.store import write_dataset

    with pytest.raises(InputError, match="'expert'"):
        rollout_of(oracle.episode(0, rows=4))
    folder = write_dataset([oracle.episode(0, rows=4)], tmp_path / "demos", oracle.ROBOT, stride=oracle.STRIDE)
    with pytest.raises(InputError, match="expert, expected rollouts only"):
        RolloutStore(folder)
