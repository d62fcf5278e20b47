"""Datasets as flat arrays on disk: what a training step reads costs one gather.

``FrameCache`` holds, per decision moment, the composed canvas and where the objects lie on it; it depends on the
dataset and the canvas only. Latents are a second file that depends on the autoencoder as well. Both are written to a
temporary name and renamed, keyed by a hash of all they depend on, and built again when that hash changes.

Axis legend: N moments, T chunk steps, H W canvas, h w latent cells, P placements on the canvas, S object slots.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from cosmos_robot.contract import CanvasSpec, Contract, require_fit
from cosmos_robot.data.episodes import Episode, executed_commands, require_robot
from cosmos_robot.errors import InputError
from cosmos_robot.images import arriving, place_on_canvas

CELL = 16
"""Canvas pixels per latent cell: the Wan 2.2 autoencoder's spatial compression."""
VALIDATION_EVERY = 20
_FORMAT = 2


class EpisodeSource(Protocol):
    """Episodes by index, with a name that changes when their content does (for instance an ``EpisodeStore``).

    A source that knows how many control steps lie between two of its rows has them as ``stride`` besides."""

    fingerprint: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Episode: ...


class EpisodeList:
    """Episodes in memory as an EpisodeSource. stride: control steps between their rows, None if that is not known."""

    def __init__(self, episodes: Sequence[Episode], stride: int | None = None):
        self._episodes, self.stride = tuple(episodes), stride
        digest = hashlib.blake2b(digest_size=16)
        for episode in self._episodes:
            digest.update(repr((episode.instruction, episode.info)).encode())
            for name, array in _arrays(episode):
                digest.update(repr((name, array.shape, array.dtype.str)).encode())
                digest.update(np.ascontiguousarray(array))
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._episodes)

    def __getitem__(self, index: int) -> Episode:
        return self._episodes[index]


def _arrays(episode: Episode) -> list[tuple[str, NDArray]]:
    """All of an episode by name."""
    columns = [(name, getattr(episode, name)) for name in ("state", "actions", "valid")]
    images = [(f"image {name}", value) for name, value in sorted(episode.images.items())]
    return columns + images + [(f"extra {name}", value) for name, value in sorted(episode.extras.items())]


class StoredEpisodes:
    """A dataset folder as an EpisodeSource. Raises ContractError if it was recorded with another robot."""

    def __init__(self, folder: Path, contract: Contract):
        from cosmos_robot.data.store import SIDECAR, EpisodeStore  # lerobot is heavy and only needed here

        self._store = EpisodeStore(folder)
        require_fit(contract, self._store.robot)
        self.stride: int = self._store.stride
        # The sidecar names every file of the dataset with its size, and every episode with its seed.
        self.fingerprint = hashlib.blake2b((Path(folder) / SIDECAR).read_bytes(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: int) -> Episode:
        return self._store[index]


@dataclass(frozen=True)
class FrameCache:
    """One dataset, flat. States and actions are in robot units: the contract's statistics may come later.

    key: hash of dataset and canvas. canvases: (N, H, W, 3) uint8, a memory map. state (N, Ds), actions (N, T, Da)
    float32, executed (N, T, Da): what was sent, where that is another thing; valid (N, T) bool. instruction (N,)
    indexes ``instructions``. episode (N,); validation (N,) bool: every 20th episode, from the first on. dagger (N,)
    bool. phase, target, goal (N,) int16, -1 where not recorded.
    target_xyz, goal_xyz (N, 3), NaN where not recorded. object_cells (N, P, S, 2): row and column in latent cells (the
    middle of cell i is i + 0.5). object_seen (N, P, S) bool. object_class (N, S) int16, -1 for an empty slot.
    """

    folder: Path
    key: str
    instructions: tuple[str, ...]
    canvases: NDArray[np.uint8]
    state: NDArray[np.float32]
    actions: NDArray[np.float32]
    executed: NDArray[np.float32]
    valid: NDArray[np.bool_]
    instruction: NDArray[np.int32]
    episode: NDArray[np.int32]
    validation: NDArray[np.bool_]
    dagger: NDArray[np.bool_]
    phase: NDArray[np.int16]
    target: NDArray[np.int16]
    goal: NDArray[np.int16]
    target_xyz: NDArray[np.float32]
    goal_xyz: NDArray[np.float32]
    object_cells: NDArray[np.float32]
    object_seen: NDArray[np.bool_]
    object_class: NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.state)


_COLUMNS = tuple(FrameCache.__dataclass_fields__)[4:]


def frame_cache(
    source: EpisodeSource, contract: Contract, root: Path, progress: bool = True, ends: bool = False
) -> FrameCache:
    """The frames of ``source`` on the contract's canvas, from ``root`` if they are there, built otherwise.

    ends: keep the moment that ends a rollout, which has no valid command.
    Raises InputError if an episode is no recording of the contract's robot or its chunk is shorter than the model's.
    """
    canvas = contract.model.canvas
    if canvas.tier or canvas.composed:
        raise InputError(
            "training cache: a canvas with a tier or a composition of another size is not supported here yet"
        )
    height, width = canvas.height, canvas.width
    if height % CELL or width % CELL:
        raise InputError(f"canvas {height}x{width}: both sides must be multiples of {CELL}")
    parts = (
        str(_FORMAT),
        source.fingerprint,
        canvas.model_dump_json(),
        str(contract.model.chunk),
        str(arriving(contract)),
        *(["ends"] if ends else []),
    )
    key = hashlib.blake2b("|".join(parts).encode(), digest_size=8).hexdigest()
    folder = Path(root) / f"frames-{key}"
    if not folder.is_dir():
        _build_frames(source, contract, folder, progress, ends)
    return _open_frames(folder, key)


def _open_frames(folder: Path, key: str) -> FrameCache:
    meta = json.loads((folder / "meta.json").read_text())
    canvases = np.memmap(folder / "canvases.u8", np.uint8, "r", shape=tuple(meta["canvases"]))
    columns = {name: np.load(folder / f"{name}.npy") for name in _COLUMNS}
    return FrameCache(folder, key, tuple(meta["instructions"]), canvases, **columns)


def _build_frames(source: EpisodeSource, contract: Contract, folder: Path, progress: bool, ends: bool) -> None:
    if not len(source):
        raise InputError("training cache: the dataset has no episodes")
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    canvas, instructions, columns = contract.model.canvas, {}, []
    orientations = arriving(contract)
    with (part / "canvases.u8").open("wb") as file:
        for index in track(range(len(source)), "composing canvases", disable=not progress):
            episode = source[index]
            require_robot(episode, contract.robot)
            rows = len(episode) if ends else episode.decisions
            for row in range(rows):
                pictures = {name: frames[row] for name, frames in episode.images.items()}
                file.write(place_on_canvas(canvas, pictures, orientations))
            code = instructions.setdefault(episode.instruction, len(instructions))
            columns.append(_episode_columns(episode, contract, index, code, rows, getattr(source, "stride", None) or 1))
    for name in _COLUMNS:
        np.save(part / f"{name}.npy", np.concatenate([c[name] for c in columns]))
    shape = (sum(len(c["state"]) for c in columns), canvas.height, canvas.width, 3)
    (part / "meta.json").write_text(json.dumps({"canvases": shape, "instructions": list(instructions)}))
    part.rename(folder)


def _episode_columns(
    episode: Episode, contract: Contract, index: int, instruction: int, rows: int, stride: int
) -> dict[str, NDArray]:
    chunk = contract.model.chunk
    if episode.actions.shape[1] < chunk:
        raise InputError(f"episode {index}: {episode.actions.shape[1]} commands per row, the model predicts {chunk}")
    extras = {name: value[:rows] for name, value in episode.extras.items()}
    labelled = episode.info.source == "dagger"
    executed = episode.actions if labelled else executed_commands(episode, stride, f"episode {index}")
    missing = np.full((rows, 3), np.nan, np.float32)

    def number(name: str) -> NDArray[np.int16]:
        return np.asarray(extras.get(name, np.full(rows, -1))).astype(np.int16)

    classes = np.asarray(extras.get("object_class", np.full((rows, 0), -1))).astype(np.int16)
    cells, seen = _object_cells(contract, episode, classes >= 0)
    return {
        "state": episode.state[:rows],
        "actions": episode.actions[:rows, :chunk],
        "executed": executed[:rows, :chunk],
        "valid": episode.valid[:rows, :chunk],
        "instruction": np.full(rows, instruction, np.int32),
        "episode": np.full(rows, index, np.int32),
        "validation": np.full(rows, index % VALIDATION_EVERY == 0),
        "dagger": np.full(rows, episode.info.source == "dagger"),
        "phase": number("phase"),
        "target": number("target"),
        "goal": number("goal"),
        "target_xyz": extras.get("target_xyz", missing),
        "goal_xyz": extras.get("goal_xyz", missing),
        "object_cells": cells,
        "object_seen": seen,
        "object_class": classes,
    }


def _object_cells(contract: Contract, episode: Episode, filled: NDArray[np.bool_]) -> tuple[NDArray, NDArray]:
    """Cells (N, P, S, 2) and whether each is on the canvas (N, P, S), from the extras ``object_uv_<camera>``."""
    rows, slots = filled.shape
    placements = contract.model.canvas.placements
    cells = np.zeros((rows, len(placements), slots, 2), np.float32)
    seen = np.zeros((rows, len(placements), slots), bool)
    for p, placement in enumerate(placements):
        uv = episode.extras.get(f"object_uv_{placement.camera}")
        if uv is None:
            continue
        uv = uv[:rows]
        camera, crop, to = contract.robot.camera(placement.camera), placement.crop, placement.to
        down = (uv[..., 1] * camera.height - crop.top) / crop.height
        right = (uv[..., 0] * camera.width - crop.left) / crop.width
        cells[:, p, :, 0] = (to.top + down * to.height) / CELL
        cells[:, p, :, 1] = (to.left + right * to.width) / CELL
        inside = (down >= 0) & (down < 1) & (right >= 0) & (right < 1)
        seen[:, p] = inside & (uv[..., 2] > 0) & filled
    cells[~seen] = 0
    return cells, seen


def placement_cells(canvas: CanvasSpec) -> NDArray[np.bool_]:
    """(P, h, w): the latent cells whose middle lies in each placement."""
    height, width = canvas.height // CELL, canvas.width // CELL
    down, right = np.mgrid[:height, :width] * CELL + CELL / 2
    boxes = [p.to for p in canvas.placements]
    return np.stack(
        [(down >= b.top) & (down < b.top + b.height) & (right >= b.left) & (right < b.left + b.width) for b in boxes]
    )
