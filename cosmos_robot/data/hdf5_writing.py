"""Rollouts as Cosmos Policy's own HDF5 files, one per episode (its libero_dataset.py, robocasa_dataset.py and
aloha_dataset.py read them, and ``hdf5.py``).

A file has one row per control step: what was there before the step, and the command. LIBERO and RoboCasa: ``actions``,
``proprio``, ``<view>_images_jpeg``. ALOHA: ``action``, ``observations/qpos``, the same pictures. Attributes:
``success``, ``success_score``, ``task_description``; ours are ``seed``, ``policy`` and ``fps``. Pictures are JPEG of
quality 95, upright, of the size that the cameras have.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import h5py
import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage

from cosmos_robot.contract import RobotSpec
from cosmos_robot.errors import InputError

JPEG_QUALITY: Final = 95
VIEWS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "agentview": "primary",
        "robot0_agentview_left": "primary",
        "robot0_agentview_right": "secondary",
        "robot0_eye_in_hand": "wrist",
        "cam_high": "primary",
        "top": "primary",
        "cam_left_wrist": "wrist_left",
        "cam_right_wrist": "wrist_right",
    }
)
"""Our cameras' names to the published ones; another camera keeps its own."""


@dataclass(frozen=True, eq=False)
class StepRecord:
    """One episode of S control steps.

    pictures: camera name to S JPEG files. states: (S, P) as the published recordings hold them. actions: (S, Da), as
    the robot received them. success, score: as of ``Rollout``; the rest says where it came from.
    """

    instruction: str
    pictures: Mapping[str, Sequence[bytes]]
    states: NDArray[np.floating]
    actions: NDArray[np.floating]
    success: bool
    score: float
    seed: int
    policy: str

    def __post_init__(self) -> None:
        rows = len(self.actions)
        counts = {"states": len(self.states), **{name: len(files) for name, files in self.pictures.items()}}
        if not rows or any(count != rows for count in counts.values()):
            raise InputError(f"steps: expected {rows or 'some'} rows of everything, one per command, got {counts}")


def as_jpeg(picture: NDArray[np.uint8]) -> bytes:
    """A picture (H, W, 3) as the published recordings keep it."""
    file = io.BytesIO()
    PILImage.fromarray(picture).save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()


def write_hdf5(record: StepRecord, path: Path, robot: RobotSpec) -> Path:
    """Write one episode of ``robot``; the file appears under its name only once it is complete, over an older one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with h5py.File(partial, "w") as file:
            _fill(file, record, robot)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _fill(file: h5py.File, record: StepRecord, robot: RobotSpec) -> None:
    aloha = "aloha" in robot.name
    file["action" if aloha else "actions"] = np.asarray(record.actions, np.float32)
    file["observations/qpos" if aloha else "proprio"] = np.asarray(record.states, np.float32)
    for name, pictures in record.pictures.items():
        stored = file.create_dataset(
            f"{VIEWS.get(name, name)}_images_jpeg", (len(pictures),), h5py.vlen_dtype(np.dtype("uint8"))
        )
        for row, picture in enumerate(pictures):
            stored[row] = np.frombuffer(picture, np.uint8)
    file.attrs["success"] = record.success
    file.attrs["success_score"] = record.score
    file.attrs["task_description"] = record.instruction
    file.attrs["seed"], file.attrs["policy"], file.attrs["fps"] = record.seed, record.policy, robot.rate_hz
