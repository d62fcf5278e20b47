"""Plausible recordings of a small arm, and one way to spoil them for every fault that ``data lint`` knows.

The arm moves by changes per step, its gripper follows the command (+1 closes), a camera in front draws the arm upright
before a fixed background, a camera on the hand sees something else.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
import oracle_sets as sets
import pyarrow as pa
import pyarrow.parquet as pq

SIZE, ROWS, EPISODES, FPS = 48, 60, 6, 10
SPEED = 0.02


@dataclass
class Take:
    """One episode, before it is written. pictures: camera to (N, SIZE, SIZE, 3)."""

    state: np.ndarray
    actions: np.ndarray
    pictures: dict[str, np.ndarray]
    instruction: str
    times: np.ndarray
    clock: np.ndarray = field(default_factory=lambda: np.zeros(0))


def take(seed: int, rows: int = ROWS) -> Take:
    rng = np.random.default_rng(seed)
    phase, speed = rng.uniform(0, 6, 6), rng.uniform(0.1, 0.25, 6)
    commands = np.sin(np.arange(rows)[:, None] * speed + phase) + 0.1 * rng.standard_normal((rows, 6))
    grip = np.where(np.sin(np.arange(rows) * 0.12 + phase[0]) > 0, 1.0, -1.0)
    actions = np.clip(np.concatenate([commands, grip[:, None]], axis=1), -1, 1).astype(np.float32)
    position = rng.uniform(-0.1, 0.1, 3) + SPEED * np.concatenate([np.zeros((1, 3)), actions[:-1, :3].cumsum(axis=0)])
    turn = 0.1 * np.concatenate([np.zeros((1, 3)), actions[:-1, 3:6].cumsum(axis=0)])
    width = np.zeros(rows)
    width[0] = 0.04
    for row in range(1, rows):
        width[row] = np.clip(width[row - 1] - 0.012 * grip[row - 1], 0.0, 0.04)
    quat = np.concatenate([np.sin(turn / 2), np.cos(turn[:, :1] / 2)], axis=1)
    state = np.concatenate([width[:, None], -width[:, None], position, quat], axis=1).astype(np.float32)
    state += 1e-4 * rng.standard_normal(state.shape).astype(np.float32)
    pictures = {"agentview": front(position, rng), "eye_in_hand": hand(position, rng)}
    times = np.arange(rows) / FPS
    return Take(state, actions, pictures, "put the block away", times, 1000.0 + times)


def front(position: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The arm as a bright square on a background that is the same in all episodes; up is up."""
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    scene = np.stack([40 + 3 * y, 90 + x, 30 + 2 * x + y], axis=2).clip(0, 255) * 0.6
    frames = np.repeat(scene[None], len(position), axis=0) + rng.normal(0, 2, (len(position), SIZE, SIZE, 3))
    for frame, (px, _, pz) in zip(frames, position, strict=True):
        column, row = int(np.clip(24 + 60 * px, 4, 43)), int(np.clip(24 - 60 * pz, 4, 43))
        frame[row - 4 : row + 4, column - 4 : column + 4] = (250, 220, 40)
    return frames.clip(0, 255).astype(np.uint8)


def hand(position: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    shift = (position[:, :1] * 100)[:, :, None]
    stripes = 120 + 60 * np.sin((x - 0.3 * y)[None] / 6 + shift)
    frames = np.stack([stripes, 0.5 * stripes, 200 - 0.6 * stripes], axis=3)
    return (frames + rng.normal(0, 2, frames.shape)).clip(0, 255).astype(np.uint8)


def takes() -> list[Take]:
    return [take(seed) for seed in range(EPISODES)]


def write_hdf5(path: Path, episodes: list[Take]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Arm", "env_kwargs": {"control_freq": FPS}})
        for number, one in enumerate(episodes):
            demo = data.create_group(f"demo_{number}")
            demo["actions"], demo["robot_states"], demo["timestamp"] = one.actions, one.state, one.times
            if len(one.clock):
                demo["wall_clock"] = one.clock
            demo.attrs["task_description"] = one.instruction
            for name, pictures in one.pictures.items():
                demo[f"obs/{name}_rgb"] = pictures
    return path


def write_v21(folder: Path, episodes: list[Take]) -> Path:
    """The same as a LeRobot v2.1 folder, whose every file can be spoilt by itself."""
    return sets.write_v21_of(
        folder,
        [(t.state, t.actions, t.pictures, t.instruction, t.times) for t in episodes],
        FPS,
        {
            "observation.state": ["gripper.0", "gripper.1", "x", "y", "z", "qx", "qy", "qz", "qw"],
            "action": ["dx", "dy", "dz", "rx", "ry", "rz", "gripper"],
        },
    )


def rotated(episodes: list[Take], by: int) -> list[Take]:
    """The same episodes beginning with number ``by``, so that every fault spoils another one."""
    return episodes[by % len(episodes) :] + episodes[: by % len(episodes)]


Spoiler = Callable[[list[Take]], None]


def _set(name: str, change: Callable[[np.ndarray], None], episodes=(2,)) -> Spoiler:
    def spoil(found: list[Take]) -> None:
        for episode in episodes:
            change(getattr(found[episode], name))

    return spoil


def _assign(index, value) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array[index] = value

    return change


def _near_constant(found: list[Take]) -> None:
    for number, one in enumerate(found):
        one.state[:, 3] = 1.56913 + 0.0004 * np.sin(np.arange(len(one.state)) + number)


def _still(found: list[Take]) -> None:
    one = found[2]
    one.state[10:50], one.actions[10:50] = one.state[10], [0.0] * 6 + [one.actions[9, 6]]


def _duplicate(found: list[Take]) -> None:
    found[4] = found[1]


def _negated(found: list[Take]) -> None:
    found[3].actions[:, 6] *= -1


def _pictures(change: Callable[[np.ndarray], np.ndarray], camera: str = "agentview", episode: int = 2) -> Spoiler:
    def spoil(found: list[Take]) -> None:
        found[episode].pictures[camera] = np.ascontiguousarray(change(found[episode].pictures[camera]))

    return spoil


def _black(pictures: np.ndarray) -> np.ndarray:
    pictures[20:24] = 0
    return pictures


def _frozen(pictures: np.ndarray) -> np.ndarray:
    pictures[20:40] = pictures[20]
    return pictures


def _swapped(found: list[Take]) -> None:
    found[2].pictures = dict(zip(found[2].pictures, reversed(found[2].pictures.values()), strict=True))


def _narrow(found: list[Take]) -> None:
    found[2].actions = found[2].actions[:, :6]


def _shorter(found: list[Take]) -> None:
    found[2].state = found[2].state[:-3]


def _cut(found: list[Take], rows: int) -> None:
    one = found[2]
    one.state, one.actions, one.times, one.clock = (
        one.state[:rows],
        one.actions[:rows],
        one.times[:rows],
        one.clock[:rows],
    )
    one.pictures = {name: pictures[:rows] for name, pictures in one.pictures.items()}


def _silent(found: list[Take]) -> None:
    found[2].instruction = ""


def _slow_clock(found: list[Take]) -> None:
    for one in found:
        one.clock = 1000.0 + 2 * np.arange(len(one.actions)) / FPS


def _slow_stamps(found: list[Take]) -> None:
    for one in found:
        one.times = 3 * one.times


def _small(found: list[Take]) -> None:
    found[2].pictures["agentview"] = found[2].pictures["agentview"][:, ::2, ::2]


IN_THE_NUMBERS: dict[str, tuple[str, Spoiler]] = {
    "nan": ("not-finite", _set("state", _assign((30, 4), np.nan))),
    "infinite command": ("not-finite", _set("actions", _assign((7, 1), np.inf))),
    "time gap": ("time-gap", _set("times", lambda t: t.__setitem__(slice(30, None), t[30:] + 0.5))),
    "time backwards": ("time-order", _set("times", lambda t: t.__setitem__(30, t[28]))),
    "constant": ("constant", _set("actions", _assign((slice(None), 4), 0.25), range(EPISODES))),
    "near constant": ("near-constant", _near_constant),
    "outlier": ("outlier", _set("state", _assign((30, 3), 40.0))),
    "idle": ("idle", _still),
    "duplicate": ("duplicate", _duplicate),
    "gripper negated": ("gripper-mixed", _negated),
    "millimetres": ("scale", _set("state", lambda s: s.__imul__(1000.0))),
    "black": ("black-pictures", _pictures(_black)),
    "frozen": ("frozen-camera", _pictures(_frozen)),
    "upside down": ("view", _pictures(lambda p: p[:, ::-1])),
    "turned": ("view", _pictures(lambda p: p[:, ::-1, ::-1])),
    "bgr": ("view", _pictures(lambda p: p[..., ::-1])),
    "cameras swapped": ("view", _swapped),
    "small pictures": ("picture-size", _small),
    "pictures missing": ("picture-count", _pictures(lambda p: p[:-5])),
    "narrow": ("width", _narrow),
    "states missing": ("row-count", _shorter),
    "one row": ("short-episode", lambda found: _cut(found, 1)),
    "no row": ("empty-episode", lambda found: _cut(found, 0)),
    "no instruction": ("no-instruction", _silent),
    "slow clock": ("rate", _slow_clock),
    "slow stamps": ("rate", _slow_stamps),
}
"""What is spoilt: the code that must be found, and how."""


def _table(folder: Path, change: Callable, episode: int = 2) -> None:
    path = folder / f"data/chunk-000/episode_{episode:06d}.parquet"
    pq.write_table(change(pq.read_table(path)), path)


def _video(folder: Path, episode: int = 2, camera: str = "agentview") -> Path:
    return folder / f"videos/chunk-000/observation.images.{camera}/episode_{episode:06d}.mp4"


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _count(folder: Path) -> None:
    info = json.loads((folder / "meta/info.json").read_text())
    (folder / "meta/info.json").write_text(json.dumps(info | {"total_episodes": EPISODES + 1}))


def _stale(folder: Path) -> None:
    rows = {name: {"mean": [0.0] * width} for name, width in (("observation.state", 9), ("action", 7))}
    (folder / "meta/stats.json").write_text(json.dumps(rows))


def _fast_video(folder: Path) -> None:
    one = take(2)
    sets.write_video(_video(folder), one.pictures["agentview"], 3 * FPS)


def _out_of_order(folder: Path) -> None:
    order = [0, 2, 1, *range(3, ROWS)]
    _table(folder, lambda table: table.set_column(3, "frame_index", pa.array(np.array(order))))


IN_THE_FILES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "video missing": ("missing-file", lambda folder: _video(folder).unlink()),
    "video truncated": ("unreadable", lambda folder: _truncate(_video(folder))),
    "video too short": (
        "picture-count",
        lambda folder: sets.write_video(_video(folder), take(2).pictures["agentview"][:-10], FPS),
    ),
    "video at another rate": ("rate", _fast_video),
    "rows missing": ("missing-file", lambda folder: (folder / "data/chunk-000/episode_000002.parquet").unlink()),
    "rows truncated": ("unreadable", lambda folder: _truncate(folder / "data/chunk-000/episode_000002.parquet")),
    "column missing": ("unreadable", lambda folder: _table(folder, lambda t: t.drop_columns(["action"]))),
    "rows fewer than listed": ("row-count", lambda folder: _table(folder, lambda t: t.slice(0, ROWS - 4))),
    "rows out of order": ("boundary", _out_of_order),
    "wrong total": ("count", _count),
    "stale statistics": ("statistics", _stale),
    "stray video": ("stray-file", lambda folder: shutil.copy(_video(folder), _video(folder, 99))),
}
"""What is spoilt in a LeRobot folder: the code that must be found, and how."""
