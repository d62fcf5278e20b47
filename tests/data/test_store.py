import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import data_oracle as oracle
import numpy as np
import pytest

from cosmos_robot.data.sheet import contact_sheet, spread, write_sheet
from cosmos_robot.data.store import SIDECAR, EpisodeStore, read_dataset, write_dataset
from cosmos_robot.errors import CheckpointError, ContractError, InputError

pytest.importorskip("lerobot")
ROWS = (3, 2, 7, 4, 12, 2)


def episodes():
    return [
        oracle.episode(number, rows, source="dagger" if number == 4 else "expert", success=number != 4)
        for number, rows in enumerate(ROWS)
    ]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "demos"
    return write_dataset(iter(episodes()), folder, oracle.ROBOT, stride=oracle.STRIDE, notes={"round": 1})


@pytest.fixture
def copied(written, tmp_path):
    return Path(shutil.copytree(written, tmp_path / "copy"))


def test_every_row_comes_back_where_it_was(written, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("reading a dataset asked the network"))
    expected = episodes()
    read = list(read_dataset(written))
    assert len(read) == len(expected)
    for number, (one, other) in enumerate(zip(read, expected, strict=True)):
        for camera, name in enumerate(oracle.CAMERAS):
            spelled = [oracle.spelled(picture) for picture in one.images[name]]
            assert spelled == [(number, row, camera) for row in range(ROWS[number])]
        assert (one.instruction, one.info) == (other.instruction, other.info)
        for field in ("state", "actions", "valid"):
            assert np.array_equal(getattr(one, field), getattr(other, field)), field
        for name, value in other.extras.items():
            assert np.array_equal(one.extras[name], value), name


def test_no_chunk_holds_a_command_of_another_episode(written):
    for number, episode in enumerate(EpisodeStore(written)):
        assert (episode.actions[:, :, 0] == number).all()
        steps = ROWS[number] * oracle.STRIDE - 3
        starts = np.arange(len(episode)) * oracle.STRIDE
        assert np.array_equal(episode.valid, starts[:, None] + np.arange(oracle.CHUNK) < steps)
        assert not episode.valid[-1].all()


def test_pictures_are_good_enough(tmp_path):
    """Smooth coloured pictures in motion, where chroma subsampling alone would stay below 38 dB."""
    y, x = np.mgrid[0:64, 0:64]
    frames = np.stack(
        [np.stack([(x * 4 + 9 * t) % 256, (y * 3 + 50) % 256, ((x // 2 + y // 3 + t) % 2) * 255], 2) for t in range(6)]
    ).astype(np.uint8)
    episode = replace(oracle.episode(0, rows=6), images=dict.fromkeys(oracle.CAMERAS, frames))
    (read,) = read_dataset(write_dataset([episode], tmp_path / "out", oracle.ROBOT, stride=5))
    for got in read.images.values():
        error = ((got.astype(float) - frames) ** 2).mean(axis=(1, 2, 3))
        assert (10 * np.log10(255**2 / error) > 38).all()


def test_any_episode_can_be_read_alone_and_with_fewer_cameras(written):
    store = EpisodeStore(written)
    assert len(store) == len(ROWS) and store.lengths == ROWS
    assert (store.stride, store.chunk, store.notes) == (oracle.STRIDE, oracle.CHUNK, {"round": 1})
    assert store.robot == oracle.ROBOT
    assert store[-1].info.seed == store.infos[-1].seed == len(ROWS) - 1
    assert oracle.spelled(store[4].images["hand"][11]) == (4, 11, 1)
    assert list(store.episode(2, ["hand"]).images) == ["hand"]
    assert not store.episode(2, []).images
    with pytest.raises(IndexError):
        store[len(ROWS)]
    with pytest.raises(TypeError):
        store[1:3]
    with pytest.raises(ContractError, match="no camera 'face'"):
        store.episode(0, ["face"])


def test_lerobot_reads_it_as_its_own(written):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset("local/x", root=written, video_backend="pyav")
    assert (dataset.fps, dataset.meta.robot_type) == (4, "oracle-arm")
    assert dataset.features["action"]["names"] == ["move.0", "move.1", "gripper"]
    item = dataset[sum(ROWS[:4]) + 3]
    assert item["task"] == "do task 1"
    assert item["action"].tolist() == [4.0, 15.0, 1.0]
    assert item["action_chunk"].shape == (oracle.CHUNK, 3) and item["privileged.uv"].shape == (2, 2)
    picture = (item["observation.images.hand"].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    assert oracle.spelled(picture) == (4, 3, 1)
    assert dataset.meta.stats["observation.state"]["max"].tolist() == pytest.approx([5, 11, 1.1])
    assert 0 < dataset.meta.stats["observation.images.hand"]["mean"].mean() < 1


def test_fingerprint_follows_the_content(written, tmp_path):
    changed = episodes()
    changed[0] = replace(changed[0], state=changed[0].state + 1)
    other = write_dataset(changed, tmp_path / "other", oracle.ROBOT, stride=oracle.STRIDE)
    assert EpisodeStore(other).fingerprint != EpisodeStore(written).fingerprint


def test_an_existing_dataset_is_never_overwritten(written):
    before = EpisodeStore(written).fingerprint
    with pytest.raises(CheckpointError, match="already there"):
        write_dataset(episodes(), written, oracle.ROBOT, stride=oracle.STRIDE)
    assert EpisodeStore(written).fingerprint == before


SCRIPT = """
import os, sys
sys.path.insert(0, {path!r})
import data_oracle as oracle
from cosmos_robot.data.store import write_dataset

def endless():
    for number in range(10000):
        yield oracle.episode(number % 4000, 3)
        print(number, flush=True)

write_dataset(endless(), {folder!r}, oracle.ROBOT, stride=5)
"""


def test_a_dataset_whose_writer_was_killed_is_refused_and_left_alone(tmp_path):
    folder = tmp_path / "demos"
    script = SCRIPT.format(path=str(Path(__file__).parent), folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    while process.stdout.readline().strip() != "4":
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not folder.exists()
    partial = tmp_path / "demos.partial"
    before = sorted(partial.rglob("*"))
    assert before
    with pytest.raises(CheckpointError, match=r"never finished; delete .*demos\.partial and run the same command"):
        EpisodeStore(folder)
    with pytest.raises(CheckpointError, match=r"killed while it wrote .*delete .*demos\.partial"):
        write_dataset(episodes(), folder, oracle.ROBOT, stride=5)
    assert sorted(partial.rglob("*")) == before
    shutil.rmtree(partial)
    assert len(EpisodeStore(write_dataset(episodes()[:2], folder, oracle.ROBOT, stride=5))) == 2


def test_an_error_while_writing_leaves_nothing_behind(tmp_path):
    def broken():
        yield from episodes()[:2]
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_dataset(broken(), tmp_path / "out", oracle.ROBOT, stride=5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", ["videos", "data", "meta/episodes"])
def test_a_copy_with_a_missing_or_short_file_is_refused_by_name(copied, part):
    victim = next(path for path in sorted((copied / part).rglob("*")) if path.is_file())
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"{victim.name} is \d+ bytes long instead of \d+"):
        EpisodeStore(copied)
    victim.unlink()
    with pytest.raises(CheckpointError, match=rf"{victim.name} is missing"):
        EpisodeStore(copied)


def test_folders_that_are_no_dataset_are_refused(copied, tmp_path):
    with pytest.raises(CheckpointError, match="not a dataset"):
        EpisodeStore(tmp_path / "nowhere")
    about = json.loads((copied / SIDECAR).read_text())
    (copied / SIDECAR).write_text(json.dumps({**about, "version": 99}))
    with pytest.raises(CheckpointError, match="got version 99, expected 1"):
        EpisodeStore(copied)
    (copied / SIDECAR).write_text(json.dumps({**about, "episodes": about["episodes"][:-1]}))
    with pytest.raises(CheckpointError, match="changed after it was written"):
        EpisodeStore(copied)
    (copied / SIDECAR).write_text("{")
    with pytest.raises(CheckpointError, match="not readable"):
        EpisodeStore(copied)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda e: [], "no episodes"),
        (lambda e: [e[0], replace(e[1], extras={})], "episode 1: shapes"),
        (lambda e: [replace(e[0], state=np.zeros((len(e[0]), 2)))], "state: got width 2, oracle-arm has 3"),
    ],
)
def test_episodes_that_do_not_fit_are_refused(tmp_path, change, named):
    with pytest.raises(InputError, match=named):
        write_dataset(change(episodes()), tmp_path / "out", oracle.ROBOT, stride=5)
    assert list(tmp_path.iterdir()) == []


def test_notes_that_json_cannot_hold_are_refused_at_once(tmp_path):
    with pytest.raises(InputError, match=r"notes: .*Path is not JSON"):
        write_dataset(iter(()), tmp_path / "out", oracle.ROBOT, stride=5, notes={"folder": tmp_path})


def test_a_rate_lerobot_cannot_hold_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"stride 3 at 20 Hz gives 6\.66667 rows per second"):
        write_dataset(episodes(), tmp_path / "out", oracle.ROBOT, stride=3)


def test_the_sheet_shows_first_and_last_moment_of_each_camera(tmp_path, written):
    assert spread(7, 3) == [0, 3, 6] and spread(2, 8) == [0, 1] and spread(1, 4) == [0]
    size = oracle.SIZE
    sheet = np.asarray(contact_sheet([oracle.episode(5, rows=9)], columns=3, size=size))
    line = sheet[6 + size : 6 + 2 * size]  # the second camera, which carries no numbers
    found = [oracle.spelled(line[:, left : left + size]) for left in range(196, 196 + 3 * (size + 2), size + 2)]
    assert found == [(5, 0, 1), (5, 4, 1), (5, 8, 1)]
    path = write_sheet(EpisodeStore(written), tmp_path / "sheet.png", rows=2)
    assert path.read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(InputError, match="no episodes"):
        contact_sheet([])


def test_its_statistics_are_those_of_its_rows(tmp_path):
    """A column that hardly moves comes out right too, which LeRobot's own sums of float32 squares do not give."""
    made = oracle.episode(0, rows=40)
    state = np.random.default_rng(0).normal(1.0, 5e-4, made.state.shape).astype(np.float32)
    parts = [replace(made, state=state), replace(made, state=state + np.float32(1e-3))]
    folder = write_dataset(parts, tmp_path / "still", oracle.ROBOT, stride=oracle.STRIDE)
    stored = json.loads((folder / "meta" / "stats.json").read_text())
    for column, rows in {
        "observation.state": np.concatenate([part.state for part in parts]).astype(float),
        "action": np.concatenate([part.actions[:, 0] for part in parts]).astype(float),
    }.items():
        expected = {
            "mean": rows.mean(0),
            "std": rows.std(0),
            "min": rows.min(0),
            "q99": np.quantile(rows, 0.99, axis=0),
        }
        for name, value in expected.items():
            np.testing.assert_allclose(stored[column][name], value, rtol=1e-9, atol=1e-12)
    assert len(EpisodeStore(folder)) == 2
