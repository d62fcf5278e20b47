import pickle
from dataclasses import replace

import data_oracle as oracle
import numpy as np
import pytest

from cosmos_robot.data.episodes import EpisodeInfo, chunk_rows, require_robot, require_storable
from cosmos_robot.errors import InputError


def test_chunks_never_reach_beyond_the_run():
    commands = np.arange(10.0)[:, None]
    actions, valid = chunk_rows(commands, np.array([0, 7, 9]), 4)
    assert actions[:, :, 0].tolist() == [[0, 1, 2, 3], [7, 8, 9, 9], [9, 9, 9, 9]]
    assert valid.tolist() == [[True] * 4, [True, True, True, False], [True, False, False, False]]


@pytest.mark.parametrize("start", [-1, 10])
def test_chunk_starts_outside_the_run_are_refused(start):
    with pytest.raises(InputError, match="leave the run of 10"):
        chunk_rows(np.zeros((10, 2)), np.array([start]), 4)


def test_an_episode_cannot_be_edited_and_can_be_pickled():
    episode = oracle.episode(3, rows=4)
    with pytest.raises(ValueError):
        episode.state[0] = 0
    with pytest.raises(TypeError):
        episode.images["front"] = episode.images["hand"]
    again = pickle.loads(pickle.dumps(episode))
    assert again.info == episode.info
    assert np.array_equal(again.images["hand"], episode.images["hand"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"instruction": " "}, "instruction"),
        ({"state": np.full((4, 3), np.nan)}, "state: not finite"),
        ({"actions": np.zeros((3, 4, 3))}, "actions"),
        ({"valid": np.ones((4, 4))}, "valid"),
        ({"valid": np.zeros((4, 4), bool)}, "row 0 has no valid command"),
        ({"images": {"front": np.zeros((4, 64, 64, 3))}}, "camera 'front'"),
        ({"images": {"front": np.zeros((3, 64, 64, 3), np.uint8)}}, "camera 'front'"),
        ({"extras": {"goal": np.zeros(5)}}, "extra 'goal'"),
    ],
)
def test_malformed_episodes_are_refused_by_name(change, named):
    with pytest.raises(InputError, match=named):
        replace(oracle.episode(0, rows=4), **change)


def test_unknown_source_is_refused():
    with pytest.raises(InputError, match="'human', expected one of expert, dagger"):
        EpisodeInfo("suite", 0, 0, "human", True)


def test_a_recording_of_another_robot_is_refused_by_field():
    episode = oracle.episode(0, rows=4)
    require_robot(episode, oracle.ROBOT)
    one_camera = oracle.ROBOT.model_copy(update={"cameras": oracle.ROBOT.cameras[:1]})
    with pytest.raises(InputError, match="cameras"):
        require_robot(episode, one_camera)
    narrow = oracle.ROBOT.model_copy(update={"action": oracle.ROBOT.action[:1]})
    with pytest.raises(InputError, match="actions: got width 3, oracle-arm has 2"):
        require_robot(episode, narrow)


def test_an_episode_of_one_row_cannot_be_stored():
    with pytest.raises(InputError, match="1 row"):
        require_storable(oracle.episode(0, rows=1), oracle.ROBOT)
