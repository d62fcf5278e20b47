"""Datasets in every layout whose numbers and pictures tell which episode and row they belong to.

Numbers: state (episode, row, row / 10), action (episode, row, -row). Pictures spell (episode, row, camera).
"""

from __future__ import annotations

import io
import json
from fractions import Fraction
from pathlib import Path

import av
import data_oracle as oracle
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

ROWS = (17, 14, 19)
FPS = 10
CAMERAS = oracle.CAMERAS
SCALARS = ("timestamp", "frame_index", "episode_index", "index", "task_index")


def state(episode: int, rows: int) -> np.ndarray:
    row = np.arange(rows, dtype=np.float32)
    return np.stack([np.full(rows, episode, np.float32), row, row / 10], axis=1)


def actions(episode: int, rows: int) -> np.ndarray:
    row = np.arange(rows, dtype=np.float32)
    return np.stack([np.full(rows, episode, np.float32), row, -row], axis=1)


def frames(episode: int, rows: int, camera: int) -> np.ndarray:
    return np.stack([oracle.picture(episode, row, camera) for row in range(rows)])


def instruction(episode: int) -> str:
    return f"do task {episode}"


def features(video: str = "video") -> dict:
    vector = {"dtype": "float32", "shape": (3,)}
    image = {"dtype": video, "shape": (oracle.SIZE, oracle.SIZE, 3), "names": ["height", "width", "channels"]}
    return {
        **{f"observation.images.{name}": image for name in CAMERAS},
        "observation.state": {**vector, "names": ["x", "y", "z"]},
        "action": {**vector, "names": ["dx", "dy", "gripper"]},
    }


def write_v3(folder: Path, rows=ROWS, video_mb: float = 0.0042) -> Path:
    """Version 3 by LeRobot's writer: one table, and so small video files that a few episodes need several."""
    from cosmos_robot.data.lerobot_writing import open_writer, quiet

    with quiet():
        writer = open_writer(folder, FPS, features(), "oracle-arm", video_mb)
        for episode, count in enumerate(rows):
            pictures = {f"observation.images.{n}": frames(episode, count, c) for c, n in enumerate(CAMERAS)}
            columns = {**pictures, "observation.state": state(episode, count), "action": actions(episode, count)}
            for row in range(count):
                frame = {name: value[row] for name, value in columns.items()}
                writer.add_frame({**frame, "task": instruction(episode)})
            writer.save_episode(parallel_encoding=False)
        writer.finalize()
    return folder


def write_v21(folder: Path, rows=ROWS, version: str = "v2.1") -> Path:
    episodes = [
        (
            state(episode, count),
            actions(episode, count),
            {name: frames(episode, count, number) for number, name in enumerate(CAMERAS)},
            instruction(episode),
            np.arange(count) / FPS,
        )
        for episode, count in enumerate(rows)
    ]
    names = {"observation.state": ["x", "y", "z"], "action": ["dx", "dy", "gripper"]}
    return write_v21_of(folder, episodes, FPS, names, version)


def write_v21_of(folder: Path, episodes: list[tuple], fps: int, names: dict, version: str = "v2.1") -> Path:
    """Version 2: a parquet file and a video per episode and camera. episodes: (state, actions, pictures, instruction,
    times)."""
    (folder / "meta").mkdir(parents=True)
    total = 0
    entries, stats = [], []
    for episode, (states, commands, pictures, task, times) in enumerate(episodes):
        row = np.arange(len(states))
        columns = {
            "observation.state": list(states),
            "action": list(commands),
            "timestamp": times.astype(np.float32),
            "frame_index": row,
            "episode_index": np.full(len(row), episode),
            "index": total + row,
            "task_index": np.full(len(row), episode),
        }
        path = folder / f"data/chunk-000/episode_{episode:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
        for name, shown in pictures.items():
            write_video(folder / f"videos/chunk-000/observation.images.{name}/episode_{episode:06d}.mp4", shown, fps)
        entries.append({"episode_index": episode, "tasks": [task], "length": len(row)})
        stats.append({"episode_index": episode, "stats": _stats(columns)})
        total += len(row)
    size = next(iter(pictures.values())).shape[1:]
    image = {"dtype": "video", "shape": size, "names": ["height", "width", "channels"]}
    vectors = {k: {"dtype": "float32", "shape": (len(v),), "names": v} for k, v in names.items()}
    info = {
        "codebase_version": version,
        "robot_type": "oracle-arm",
        "total_episodes": len(entries),
        "total_frames": total,
        "total_tasks": len(entries),
        "total_videos": len(entries) * len(pictures),
        "total_chunks": 1,
        "chunks_size": 1000,
        "fps": fps,
        "splits": {"train": f"0:{len(entries)}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": {f"observation.images.{name}": image for name in pictures}
        | vectors
        | {name: _scalar(name) for name in SCALARS},
    }
    tasks = [{"task_index": e, "task": task} for e, (*_, task, _) in enumerate(episodes)]
    (folder / "meta/info.json").write_text(json.dumps(info))
    for name, lines in (("episodes", entries), ("tasks", tasks), ("episodes_stats", stats)):
        (folder / f"meta/{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def _scalar(name: str) -> dict:
    return {"dtype": "float32" if name == "timestamp" else "int64", "shape": (1,), "names": None}


def _stats(columns: dict) -> dict:
    found = {}
    for name in ("observation.state", "action"):
        value = np.stack(columns[name])
        found[name] = {k: getattr(value, k)(axis=0).tolist() for k in ("min", "max", "mean", "std")}
        found[name]["count"] = [len(value)]
    return found


def write_video(path: Path, pictures: np.ndarray, fps: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("h264", fps, options={"crf": "12", "preset": "ultrafast", "g": "5"})
        stream.pix_fmt, stream.height, stream.width = "yuv444p", *pictures.shape[1:3]
        stream.time_base = Fraction(1, fps)
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def jpegs(pictures: np.ndarray) -> list[np.ndarray]:
    found = []
    for picture in pictures:
        data = io.BytesIO()
        Image.fromarray(picture).save(data, "JPEG", quality=95)
        found.append(np.frombuffer(data.getvalue(), np.uint8))
    return found


def put_pictures(group: h5py.Group, name: str, pictures: np.ndarray, compressed: bool) -> None:
    if not compressed:
        group.create_dataset(name, data=pictures)
        return
    stored = group.create_dataset(f"{name}_jpeg", (len(pictures),), dtype=h5py.vlen_dtype(np.uint8))
    for row, data in enumerate(jpegs(pictures)):
        stored[row] = data


def write_demos(path: Path, rows=ROWS, compressed: bool = False, names=("agentview_rgb", "eye_in_hand_rgb")) -> Path:
    """LIBERO and Cosmos Policy demonstrations in one file; task and rate in the attributes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Oracle", "env_kwargs": {"control_freq": FPS}})
        for episode, count in enumerate(rows):
            demo = data.create_group(f"demo_{episode}")
            demo["actions"], demo["robot_states"] = actions(episode, count), state(episode, count)
            demo.attrs["task_description"] = instruction(episode)
            for number, name in enumerate(names):
                put_pictures(demo.require_group("obs"), name, frames(episode, count, number), compressed)
    return path


def write_rollouts(folder: Path, rows=ROWS, compressed: bool = True, names=("primary_images", "wrist_images")) -> Path:
    """Cosmos Policy rollouts: one file an episode."""
    folder.mkdir(parents=True, exist_ok=True)
    for episode, count in enumerate(rows):
        with h5py.File(folder / f"ep{episode}.hdf5", "w") as file:
            file["actions"], file["proprio"] = actions(episode, count), state(episode, count)
            file.attrs.update(success=episode != 1, task_description=instruction(episode), fps=FPS)
            for number, name in enumerate(names):
                put_pictures(file, name, frames(episode, count, number), compressed)
    return folder


def write_aloha(folder: Path, rows=ROWS, videos: bool = False) -> Path:
    """ALOHA episodes; pictures as arrays or as MP4 files beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    for episode, count in enumerate(rows):
        with h5py.File(folder / f"episode_{episode}.hdf5", "w") as file:
            file["action"], file["observations/qpos"] = actions(episode, count), state(episode, count)
            file.attrs.update(task_description=instruction(episode), fps=FPS)
            for number, name in enumerate(CAMERAS):
                pictures = frames(episode, count, number)
                if videos:
                    write_video(folder / f"episode_{episode}_{name}.mp4", pictures, FPS)
                    file[f"observations/video_paths/{name}"] = f"episode_{episode}_{name}.mp4"
                else:
                    file[f"observations/images/{name}"] = pictures
    return folder
