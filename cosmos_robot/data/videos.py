"""Frames of a video file by number, and how many it really holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.errors import CheckpointError

# A frame is taken if it lies within this share of a frame interval of its time.
TOLERANCE = 0.3


def read_frames(path: Path, rows: Sequence[int], fps: float, start: float = 0.0) -> NDArray[np.uint8]:
    """Frames ``rows`` (n, H, W, 3) of the stretch of ``path`` that begins at ``start`` seconds, with LeRobot's decoder.

    Raises CheckpointError if the file is missing, damaged, or ends before the last row.
    """
    import av
    from lerobot.datasets.video_utils import decode_video_frames

    require_file(path)
    av.logging.set_libav_level(av.logging.FATAL)
    times = [start + row / fps for row in rows]
    try:
        # PyAV brings its FFmpeg along; torchcodec needs one that is installed on the system.
        frames = decode_video_frames(path, times, TOLERANCE / fps, backend="pyav", return_uint8=True)
    except (av.FFmpegError, ValueError, IndexError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f"{path}: no frames {min(rows)} to {max(rows)} from {start:.3f} s on ({reason}); the file is damaged or "
            "shorter than its table says: copy or record it again"
        ) from error
    return np.ascontiguousarray(frames.permute(0, 2, 3, 1).numpy())


def frame_times(path: Path) -> NDArray[np.float64]:
    """Presentation times (n,) of all frames in seconds, from the packets alone, sorted.

    Raises CheckpointError if the file is missing or no video.
    """
    import av

    require_file(path)
    av.logging.set_libav_level(av.logging.FATAL)
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            ticks = [packet.pts for packet in container.demux(stream) if packet.pts is not None]
            return np.sort(np.array(ticks, np.float64)) * float(stream.time_base)
    except (av.FFmpegError, IndexError, OSError) as error:
        raise CheckpointError(f"{path} is no readable video ({error}); copy or record it again") from error


def require_file(path: Path) -> None:
    """Raise CheckpointError if ``path`` is no file."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; copy the dataset again, or remove its episodes from the tables")
