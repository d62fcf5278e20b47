"""What writing a LeRobot v3 dataset takes: a partial folder that is renamed when whole, and LeRobot's own writer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.data.lerobot import numbers
from cosmos_robot.errors import CheckpointError

REPOSITORY = "local/cosmos-robot"
# Appending an episode rewrites the video file it goes to, so small files keep that cheap; they hold about 15 episodes.
VIDEO_FILE_MB = 10


def partial_of(folder: Path) -> Path:
    """Where a dataset lies while it is being written."""
    return folder.with_name(folder.name + ".partial")


def remedy(folder: Path) -> str:
    """What to do about a half-written dataset."""
    return (
        f"delete {partial_of(folder)} and run the same command again (a collection keeps its episodes until its "
        "dataset is complete)"
    )


def require_absent(folder: Path) -> None:
    """Raise CheckpointError if a dataset, whole or half-written, is at ``folder``."""
    if folder.exists():
        raise CheckpointError(f"{folder} is already there; choose another folder or delete it yourself")
    if partial_of(folder).exists():
        raise CheckpointError(f"an earlier run was killed while it wrote {folder}; {remedy(folder)}")


def open_writer(folder: Path, fps: int, features: Mapping[str, Any], robot: str | None, video_mb: int) -> Any:
    """LeRobot's dataset writer for ``folder``, with our video encoder. video_mb: size at which a video file ends."""
    from lerobot.configs import RGBEncoderConfig
    from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata
    from lerobot.datasets.dataset_writer import DatasetWriter

    from cosmos_robot.data.video import ENCODER, EpisodeEncoder

    settings = RGBEncoderConfig(**ENCODER)
    meta = LeRobotDatasetMetadata.create(
        REPOSITORY,
        fps,
        dict(features),
        robot_type=robot,
        root=folder,
        metadata_buffer_size=100,
        video_files_size_in_mb=video_mb,
    )
    return DatasetWriter(
        meta=meta,
        root=meta.root,
        rgb_encoder=settings,
        depth_encoder=None,
        encoder_threads=1,
        batch_encoding_size=1,
        streaming_encoder=EpisodeEncoder(fps, settings),
    )


def correct_statistics(folder: Path) -> None:
    """Compute ``meta/stats.json`` of a finished dataset again for state and action, from all rows.

    LeRobot sums squares of float32 and averages the quantiles of episodes: the deviation of a column that hardly moves
    comes out a fifth off, and quantiles are not those of the dataset.
    """
    path = folder / "meta" / "stats.json"
    stored = json.loads(path.read_text())
    for column in ("observation.state", "action"):
        rows = _rows(folder, column)
        found = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
        quantiles = {name: np.quantile(rows, int(name[1:]) / 100, axis=0) for name in stored[column] if name[0] == "q"}
        stored[column] |= {name: value.tolist() for name, value in (found | quantiles).items()}
    path.write_text(json.dumps(stored, indent=4) + "\n")


def _rows(folder: Path, column: str) -> NDArray[np.float64]:
    """(N, D) all rows of a column, in the order of the files."""
    import pyarrow.parquet

    files = sorted((folder / "data").rglob("*.parquet"))
    parts = [numbers(pyarrow.parquet.read_table(file, columns=[column]), column) for file in files]
    return np.concatenate(parts).astype(np.float64)


def ahead[T](items: Iterable[T]) -> Iterator[T]:
    """The same items, each fetched while the one before it is in use. None is no item."""
    source = iter(items)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, source, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, source, None)
            yield item


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bar for each episode from ``datasets``, no codec chatter: LeRobot switches libav's printing on."""
    import av
    import datasets

    av.logging.set_libav_level(av.logging.ERROR)
    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
