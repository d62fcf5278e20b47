"""Cosmos Policy's recorded samples: the same HDF5 files, read by our reader, give the same windows."""

import json

import h5py
import numpy as np
import pytest
from golden_files import numbers

from cosmos_robot.actions.normalization import Normalizer
from cosmos_robot.contract import Normalization, Statistics, load_robot
from cosmos_robot.data.episodes import chunk_rows
from cosmos_robot.data.hdf5_writing import VIEWS, StepRecord, as_jpeg, write_hdf5
from cosmos_robot.data.layouts import open_recordings
from cosmos_robot.data.measure import measure
from cosmos_robot.data.returns import value_targets

pytest.importorskip("h5py")
SUITES = ("cosmos_policy/dataset_libero", "cosmos_policy/dataset_robocasa", "cosmos_policy/dataset_aloha")
SLOTS = {  # latent slots of a sample, and which stamp of its episode they show
    "cosmos_policy/dataset_libero": {"wrist_image": "wrist", "image": "primary"},
    "cosmos_policy/dataset_robocasa": {"wrist_image": "wrist", "image": "primary", "image2": "secondary"},
    "cosmos_policy/dataset_aloha": {"wrist_image": "left", "wrist_image2": "right", "image": "high"},
}
ROBOTS = {
    "cosmos_policy/dataset_libero": "libero-panda",
    "cosmos_policy/dataset_robocasa": "robocasa-panda",
    "cosmos_policy/dataset_aloha": "aloha",
}
CAMERAS = {  # the same cameras as our reader names them, in demonstrations and rollouts
    "wrist": ("eye_in_hand", "robot0_eye_in_hand", "wrist"),
    "primary": ("agentview", "robot0_agentview_left", "primary"),
    "secondary": ("robot0_agentview_right", "secondary"),
    "left": ("cam_left_wrist",),
    "right": ("cam_right_wrist",),
    "high": ("cam_high",),
}


def filled(stamp: int, rows: int, size: int) -> np.ndarray:
    return np.broadcast_to((stamp + np.arange(rows, dtype=np.uint8))[:, None, None, None], (rows, size, size, 3))


def stamps(entry: dict) -> dict[str, int]:
    """Dataset name to the first constant of its pictures."""
    if "stamps" in entry:
        return entry["stamps"]
    rollout = entry["kind"] == "rollout"
    names = ("primary_images", "wrist_images") if rollout else ("agentview_rgb", "eye_in_hand_rgb")
    return dict(zip(names, (entry["primary_stamp"], entry["wrist_stamp"]), strict=True))


def write(topic: str, content: dict, folder) -> None:
    """The recorded episodes as HDF5 files, demonstrations and rollouts in folders of their own."""
    for number, entry in enumerate(content["files"]):
        place = folder / entry["kind"] / entry.get("folder", "")
        place.mkdir(parents=True, exist_ok=True)
        pictures = {n: filled(s, entry["num_steps"], content["image_size"]) for n, s in stamps(entry).items()}
        actions = numbers(entry["actions"], np.float32)
        if topic.endswith("aloha"):
            with h5py.File(place / entry.get("file", f"episode_{number}.hdf5"), "w") as file:
                file["action"], file["observations/qpos"] = actions, numbers(entry["qpos"], np.float32)
                for name, frames in pictures.items():
                    file[f"observations/images/{name}"] = frames
                file.attrs["success"] = entry.get("success", True)
        elif entry["kind"] == "demo":
            with h5py.File(place / entry.get("file", "demos.hdf5"), "a") as file:
                demo = file.create_group(f"data/demo_{entry['demo']}")
                demo["actions"], demo["robot_states"] = actions, numbers(entry["robot_states"], np.float32)
                for name, frames in pictures.items():
                    demo[f"obs/{name}"] = frames
        else:
            with h5py.File(place / entry["file"], "w") as file:
                file["actions"], file["proprio"] = actions, numbers(entry["proprio"], np.float32)
                file.attrs["success"] = entry["success"]
                file.attrs["task_description"] = entry.get("task_description", "")
                for name, frames in pictures.items():
                    file[name] = frames


@pytest.fixture(scope="session")
def read(golden, tmp_path_factory):
    """Topic to its content, its demonstrations and its rollouts, written once."""
    found = {}

    def opened(topic: str):
        if topic not in found:
            content, folder = golden.json(topic), tmp_path_factory.mktemp("policy")
            write(topic, content, folder)
            kinds = {entry["kind"] for entry in content["files"]}
            found[topic] = content, {kind: open_recordings(folder / kind) for kind in kinds}
        return found[topic]

    return opened


def width_of(content: dict) -> int:
    return len(content["statistics"]["actions_min"])


def normalizer(content: dict, what: str) -> Normalizer:
    columns = {key: tuple(content["statistics"][f"{what}_{key}"]) for key in ("min", "max")}
    width = len(columns["min"])
    spec = Normalization(method="minmax", formula="from_low", scale_floor=1e-12, statistics=Statistics(**columns))
    return Normalizer(spec, width)


def shown(content: dict, topic: str, sample: dict, time: str) -> dict[str, int]:
    """View to the constant that the sample shows at ``current`` or ``future``."""
    found = {}
    for slot, view in SLOTS[topic].items():
        latent = sample["latent_idx"][f"{time}_{slot}_latent_idx"]
        found[view] = sample["video_frame_constants"][(latent - 1) * 4 + 1]
    return found


def our(recordings, window, moment: int) -> dict[str, int]:
    found = {}
    for view, names in CAMERAS.items():
        for name in set(names) & set(recordings.cameras):
            found[view] = int(window.pictures[name][moment].reshape(-1)[0])
    return found


def check_samples(topic: str, read) -> None:
    content, datasets = read(topic)
    chunk, width = content["chunk_size"], width_of(content)
    gamma = content.get("gamma") or content["settings"]["gamma"]
    actions, proprio = normalizer(content, "actions"), normalizer(content, "proprio")
    windows = [(r, w) for r in datasets.values() for w in r.windows(chunk, (0, chunk))]
    assert content["samples"]
    for sample in content["samples"]:
        now = shown(content, topic, sample, "current")
        same = [(r, w) for r, w in windows if our(r, w, 0) == now]
        assert len(same) == 1, sample["case"]
        recordings, window = same[0]
        assert our(recordings, window, 1) == shown(content, topic, sample, "future"), sample["case"]
        np.testing.assert_allclose(actions.normalize(window.actions[:, :width]), numbers(sample["actions"]), atol=1e-5)
        states = proprio.normalize(window.states)
        np.testing.assert_allclose(states[0], numbers(sample["proprio"]), atol=1e-5)
        np.testing.assert_allclose(states[1], numbers(sample["future_proprio"]), atol=1e-5)
        recording = recordings[window.episode]
        success = True if recording.success is None else recording.success
        targets = value_targets(len(recording), float(success), gamma)
        future = min(window.start + chunk, len(recording) - 1)
        assert targets[future] == pytest.approx(sample["value_function_return"], abs=1e-6)


@pytest.mark.parametrize("topic", SUITES)
def test_recorded_samples(topic, golden, read):
    if not golden.path(f"{topic}.json").is_file():
        pytest.skip(f"{topic}.json is not in {golden.root}")
    check_samples(topic, read)


@pytest.mark.parametrize("topic", SUITES)
def test_recorded_episodes_and_statistics(topic, golden, read):
    if not golden.path(f"{topic}.json").is_file():
        pytest.skip(f"{topic}.json is not in {golden.root}")
    content, datasets = read(topic)
    demos = datasets["demo"]
    order = sorted((e["command"], e["num_steps"]) for e in content["demo_episode_order"])
    if topic.endswith("libero"):  # there the task is the file's name; elsewhere the reference has its own tables
        assert sorted((r.instruction, len(r)) for r in demos) == order
    assert sorted(demos.lengths) == sorted(steps for _, steps in order)
    measured, width = measure([demos.path]), width_of(content)
    for ours, theirs in (("action", "actions"), ("state", "proprio")):
        for name in ("min", "max", "mean", "std"):
            expected = numbers(content["statistics"][f"{theirs}_{name}"])
            np.testing.assert_allclose(measured[ours][name][: len(expected)], expected, atol=1e-6)
    assert width <= demos[0].actions.shape[1]
    json.dumps(measured)


@pytest.mark.golden("cosmos_policy/returns_and_padding", key="padding")
def test_padding(case, golden):
    actions = numbers(golden.json("cosmos_policy/returns_and_padding")["padding_actions"], np.float32)
    assert len(actions) == case["num_steps"]
    found, valid = chunk_rows(actions, np.array([case["start"]]), case["chunk"])
    assert np.array_equal(found[0], numbers(case["action_chunk"], np.float32))
    assert valid[0].sum() == min(case["chunk"], case["num_steps"] - case["start"])


@pytest.mark.golden("cosmos_policy/returns_and_padding", key="returns")
def test_value_targets(case):
    found = value_targets(case["num_steps"], case["terminal_reward"], case["gamma"])
    np.testing.assert_allclose(found, numbers(case["returns"]), atol=1e-6)


def camera_of(robot, name: str) -> str:
    """The camera of ``robot`` whose pictures are published as ``name``."""
    view = name.removesuffix("_images")
    return next(c.name for c in robot.cameras if view in (c.name, VIEWS.get(c.name, c.name)))


@pytest.mark.parametrize("topic", SUITES)
def test_rollouts_that_we_write_read_as_the_recorded_ones(topic, golden, read, tmp_path):
    if not golden.path(f"{topic}.json").is_file():
        pytest.skip(f"{topic}.json is not in {golden.root}")
    content, datasets = read(topic)
    entries = [entry for entry in content["files"] if entry["kind"] == "rollout"]
    if not entries:
        pytest.skip("no rollouts are recorded")
    robot, states = load_robot(ROBOTS[topic]), "qpos" if topic.endswith("aloha") else "proprio"
    for number, entry in enumerate(entries):
        shown = {camera_of(robot, n): filled(s, entry["num_steps"], 16) for n, s in stamps(entry).items()}
        written = StepRecord(
            instruction=entry.get("task_description", ""),
            pictures={name: [as_jpeg(frame) for frame in frames] for name, frames in shown.items()},
            states=numbers(entry[states], np.float32),
            actions=numbers(entry["actions"], np.float32),
            success=entry["success"],
            score=entry.get("success_score", float(entry["success"])),
            seed=number,
            policy="recorded",
        )
        write_hdf5(written, tmp_path / entry.get("folder", "") / entry.get("file", f"{number}.hdf5"), robot)
    ours, theirs = open_recordings(tmp_path), datasets["rollout"]
    assert ours.layout == theirs.layout and ours.lengths == theirs.lengths
    for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert np.array_equal(one.state, other.state) and np.array_equal(one.actions, other.actions)
        assert (one.success, one.instruction) == (other.success, other.instruction)
        for view in theirs.cameras:
            name = VIEWS.get(view, view)
            assert np.array_equal(ours.pictures(index, name)[:, 0, 0], theirs.pictures(index, view)[:, 0, 0])
