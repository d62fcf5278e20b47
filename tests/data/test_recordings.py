"""The one reader over every layout, against datasets whose pictures spell episode and row."""

import data_oracle as oracle
import h5py
import numpy as np
import oracle_sets as sets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("lerobot")
pytest.importorskip("h5py")
from cosmos_robot.data.layouts import open_recordings
from cosmos_robot.data.lint import lint
from cosmos_robot.data.recordings import window_of_sample
from cosmos_robot.errors import CheckpointError, InputError, UnknownNameError

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


def test_pc_54_lerobots_own_loader_and_converter_agree(tmp_path):
    """Version 3 row by row against ``LeRobotDataset``; version 2.1 against what LeRobot's converter makes of it."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.scripts.convert_dataset_v21_to_v30 import convert_dataset

    old = sets.write_v21(tmp_path / "set")
    before = open_recordings(old)
    expected = [(before[e], {n: before.pictures(e, n) for n in before.cameras}) for e in range(len(before))]
    convert_dataset("local/set", root=old, push_to_hub=False)
    after = open_recordings(old)
    assert (before.layout, after.layout) == ("LeRobot v2.1", "LeRobot v3.0")
    theirs = LeRobotDataset("local/set", root=old, video_backend="pyav")
    row = 0
    for episode, (recording, pictures) in enumerate(expected):
        assert np.array_equal(after[episode].state, recording.state)
        assert np.array_equal(after[episode].actions, recording.actions)
        assert after[episode].instruction == recording.instruction
        for name in after.cameras:
            found = after.pictures(episode, name)
            assert np.array_equal(found, pictures[name])
            for number in (0, len(found) - 1):
                item = theirs[row + number]
                picture = (item[f"observation.images.{name}"].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
                assert np.array_equal(picture, found[number])
                assert np.array_equal(item["action"].numpy(), recording.actions[number])
        row += len(recording)


@pytest.mark.parametrize("write", [sets.write_v3, sets.write_v21])
def test_the_text_is_that_of_the_rows(write, tmp_path):
    """Rows name their task by number; what the episode's own entry names first may be another."""
    folder = write(tmp_path / "set", rows=(5, 4, 6))
    _number_tasks(folder, [2, 2, 2, 2])
    assert [open_recordings(folder)[e].instruction for e in range(3)] == [sets.instruction(e) for e in (0, 2, 2)]
    assert "tasks" not in [f.code for f in lint(folder).findings]
    _number_tasks(folder, [1, 1, 2, 2])
    assert open_recordings(folder)[1].tasks == (sets.instruction(1), sets.instruction(2))
    (found,) = (f for f in lint(folder).findings if f.code == "tasks")
    assert (found.severity, found.where) == ("error", "episode 1") and "split it" in found.remedy


def _number_tasks(folder, numbers):
    """Give the rows of episode 1 these tasks."""
    for path in folder.glob("data/**/*.parquet"):
        table = pq.read_table(path)
        tasks, theirs = table["task_index"].to_numpy().copy(), table["episode_index"].to_numpy() == 1
        if theirs.any():
            tasks[theirs] = numbers
            place = table.column_names.index("task_index")
            pq.write_table(table.set_column(place, "task_index", pa.array(tasks)), path)


def test_pc_57_a_missing_mask_key_is_an_error(tmp_path):
    """PC-57: a sample whose padding mask is under another key is refused, not read as unpadded."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    folder = sets.write_v3(tmp_path / "set", rows=(5, 4))
    steps = {"action": [step / sets.FPS for step in range(4)]}
    dataset = LeRobotDataset("local/set", root=folder, video_backend="pyav", delta_timestamps=steps)
    ours = open_recordings(folder)
    for row, (episode, start) in {3: (0, 3), 4: (0, 4), 5: (1, 0)}.items():
        theirs, window = window_of_sample(dataset[row]), ours.window(episode, start, 4, cameras=())
        assert np.array_equal(theirs.actions, window.actions) and np.array_equal(theirs.valid, window.valid)
        assert (theirs.episode, theirs.start) == (episode, start)
    misspelt = dict(dataset[3])
    misspelt["actions_is_pad"] = misspelt.pop("action_is_pad")
    with pytest.raises(InputError, match=r"no padding mask under 'action_is_pad'; did you mean 'actions_is_pad'"):
        window_of_sample(misspelt)
    with pytest.raises(InputError, match=r"expected 'action' \(T, D\) with 'action_is_pad' \(T,\) bool"):
        window_of_sample(dict(dataset[3]) | {"action_is_pad": np.zeros(3)})


def test_bad_requests_are_refused(recordings):
    with pytest.raises(UnknownNameError, match="unknown camera"):
        recordings.window(0, 0, 4, cameras=["frnt"])
    with pytest.raises(InputError, match="got start 17, the episode has rows 0 to 16"):
        recordings.window(0, 17, 4)
    with pytest.raises(InputError, match="chunk of 0 commands"):
        recordings.window(0, 0, 0)
    with pytest.raises(InputError, match="pictures: got rows"):
        recordings.pictures(1, recordings.cameras[0], [14])
    with pytest.raises(IndexError):
        recordings[3]


def test_paths_without_a_dataset_say_what_is_there(tmp_path):
    with pytest.raises(CheckpointError, match="there is nothing of that name"):
        open_recordings(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"an empty folder; known layouts:\n  - LeRobot v2\.0, v2\.1 or v3\.0"):
        open_recordings(tmp_path)
    (tmp_path / "note.txt").write_text("hello")
    with pytest.raises(CheckpointError, match=r"a folder with note\.txt; known layouts"):
        open_recordings(tmp_path)
    with pytest.raises(CheckpointError, match="a file of 5 bytes"):
        open_recordings(tmp_path / "note.txt")
    (tmp_path / "set.partial").mkdir()
    with pytest.raises(CheckpointError, match=r"never finished: a killed run left .*set\.partial"):
        open_recordings(tmp_path / "set")


def test_half_written_lerobot_folders_are_refused(tmp_path):
    folder = sets.write_v3(tmp_path / "set", rows=(3, 4))
    (folder / "meta/tasks.parquet").unlink()
    with pytest.raises(CheckpointError, match=r"tasks\.parquet is missing"):
        open_recordings(folder)
    (folder / "meta/info.json").rename(folder / "meta/info.bak")
    with pytest.raises(CheckpointError, match=r"no meta/info\.json: a LeRobot dataset, half-written or half-copied"):
        open_recordings(folder)
    old = sets.write_v21(tmp_path / "old", rows=(3, 4))
    (old / "meta/episodes.jsonl").write_text("")
    with pytest.raises(CheckpointError, match="lists no episode; the dataset is empty"):
        open_recordings(old)
    (old / "meta/episodes.jsonl").write_text('{"episode_index": 0, "len')
    with pytest.raises(CheckpointError, match=r"episodes\.jsonl line 1 is not readable"):
        open_recordings(old)
    (old / "meta/info.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"info\.json is not readable"):
        open_recordings(old)


def test_lerobot_columns_that_are_not_there(tmp_path):
    folder = sets.write_v21(tmp_path / "set", rows=(3, 4))
    with pytest.raises(CheckpointError, match=r"no state column pose; the numeric columns are .*--state"):
        open_recordings(folder, state="pose")
    path = folder / "data/chunk-000/episode_000001.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["action"]), path)
    recordings = open_recordings(folder)
    assert len(recordings[0]) == 3
    with pytest.raises(CheckpointError, match=r"episode_000001\.parquet: no column 'action' among"):
        recordings[1]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="no readable parquet file"):
        open_recordings(folder)[1]


def test_hdf5_files_that_cannot_be_read(tmp_path):
    path = sets.write_demos(tmp_path / "sets" / "a_demo.hdf5", rows=(3, 4))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])
    with pytest.raises(CheckpointError, match=r"a_demo\.hdf5 is no readable HDF5 file"):
        open_recordings(path)
    path.write_bytes(whole)
    sets.write_rollouts(tmp_path / "sets" / "more", rows=(3,))
    with pytest.raises(
        CheckpointError, match=r"mixes layouts: 2 of HDF5 demonstrations .* 1 of Cosmos Policy rollouts"
    ):
        open_recordings(tmp_path / "sets")
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["things"] = np.zeros(3)
    with pytest.raises(CheckpointError, match=r"no known HDF5 layout: it holds \['things'\]; expected data/demo_N"):
        open_recordings(tmp_path / "other.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_1/actions"]
    with pytest.raises(
        CheckpointError, match=r"a_demo\.hdf5 demo_1: no dataset 'actions'; there are obs/agentview_rgb"
    ):
        open_recordings(path)
    with h5py.File(tmp_path / "empty.hdf5", "w") as file:
        file.create_group("data")
    with pytest.raises(CheckpointError, match="no episode in them; the dataset is empty"):
        open_recordings(tmp_path / "empty.hdf5")


def test_the_tasks_of_libero_files(tmp_path):
    """The file name without its scene, as Cosmos Policy derives it, where no attribute names the task."""
    path = sets.write_demos(tmp_path / "KITCHEN_SCENE3_turn_on_the_stove_demo.hdf5", rows=(3,))
    with h5py.File(path, "a") as file:
        del file["data/demo_0"].attrs["task_description"]
    assert open_recordings(path)[0].instruction == "turn on the stove"
    with h5py.File(path, "a") as file:
        file["data"].attrs["problem_info"] = '{"language_instruction": "turn on the gas"}'
    assert open_recordings(path)[0].instruction == "turn on the gas"
    with h5py.File(path, "a") as file:
        file["data/demo_0"].attrs["ep_meta"] = '{"lang": "turn it on"}'
    assert open_recordings(path)[0].instruction == "turn it on"


def test_pc_54_the_oracle_shares_files_and_spans_several(tmp_path):
    """Else the tests above could not tell a wrong file from the right one: one table, two videos."""
    folder = sets.write_v3(tmp_path / "set")
    recordings = open_recordings(folder)
    assert len(list(folder.glob("data/*/*.parquet"))) == 1
    for key in recordings.video_keys():
        places = [recordings.tables.video(episode, key) for episode in range(3)]
        assert [place.path.name for place in places] == ["file-000.mp4", "file-000.mp4", "file-001.mp4"]
        assert [place.start > 0 for place in places] == [False, True, False]
