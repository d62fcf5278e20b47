"""The one reader over every layout, against datasets whose pictures spell episode and row."""

import data_oracle as oracle
import numpy as np
import oracle_sets as sets
import pytest

pytest.importorskip("lerobot")
pytest.importorskip("h5py")
from cosmos_robot.data.layouts import open_recordings

WRITERS = {
    "v3": lambda path: sets.write_v3(path),
    "v2.1": lambda path: sets.write_v21(path),
    "v2.0": lambda path: sets.write_v21(path, version="v2.0"),
    "demos": lambda path: sets.write_demos(path / "set_demo.hdf5"),
    "demos-jpeg": lambda path: sets.write_demos(path / "set_demo.hdf5", compressed=True).parent,
    "rollouts": lambda path: sets.write_rollouts(path),
    "aloha": lambda path: sets.write_aloha(path),
    "aloha-video": lambda path: sets.write_aloha(path, videos=True),
}


@pytest.fixture(scope="module", params=WRITERS)
def recordings(request, tmp_path_factory):
    return open_recordings(WRITERS[request.param](tmp_path_factory.mktemp("oracle") / request.param))


def test_pc_54_every_frame_belongs_to_its_own_episode_and_row(recordings):
    """PC-54: v3 episodes of 17, 14 and 19 frames over several video files; likewise every other layout."""
    assert recordings.lengths == sets.ROWS
    for episode, rows in enumerate(sets.ROWS):
        for camera, name in enumerate(recordings.cameras):
            spelled = [oracle.spelled(p) for p in recordings.pictures(episode, name)]
            assert spelled == [(episode, row, camera) for row in range(rows)]
            assert recordings.picture_count(episode, name) == rows
            alone = [oracle.spelled(recordings.pictures(episode, name, [row])[0]) for row in (rows - 1, 0, rows // 2)]
            assert alone == [(episode, row, camera) for row in (rows - 1, 0, rows // 2)]
            mixed = recordings.pictures(episode, name, [5, 2, 5])
            assert [oracle.spelled(p)[1] for p in mixed] == [5, 2, 5]


def test_pc_54_random_access_equals_streaming(recordings):
    offsets, chunk = (-2, 0, 3), 8
    streamed = list(recordings.windows(chunk, offsets))
    places = [(episode, row) for episode, rows in enumerate(sets.ROWS) for row in range(rows)]
    assert [(w.episode, w.start) for w in streamed] == places
    for number in np.random.default_rng(0).permutation(len(streamed))[:20]:
        one, other = streamed[number], recordings.window(*places[number], chunk, offsets)
        for field in ("states", "present", "actions", "valid"):
            assert np.array_equal(getattr(one, field), getattr(other, field)), field
        for name in recordings.cameras:
            assert np.array_equal(one.pictures[name], other.pictures[name])


def test_windows_never_cross_an_episode_and_mask_their_tails(recordings):
    chunk = 8
    for window in recordings.windows(chunk, (-2, 0, 3)):
        rows = sets.ROWS[window.episode]
        steps = window.start + np.arange(chunk)
        looked = window.start + np.array([-2, 0, 3])
        assert (window.actions[:, 0] == window.episode).all() and (window.states[:, 0] == window.episode).all()
        assert window.actions[:, 1].tolist() == np.minimum(steps, rows - 1).tolist()
        assert window.valid.tolist() == (steps < rows).tolist()
        assert window.present.tolist() == ((looked >= 0) & (looked < rows)).tolist()
        for camera, name in enumerate(recordings.cameras):
            seen = [oracle.spelled(p) for p in window.pictures[name]]
            assert seen == [(window.episode, row, camera) for row in np.clip(looked, 0, rows - 1)]
        assert window.instruction == sets.instruction(window.episode)
