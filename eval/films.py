"""Films of episodes: mp4, H.264 in yuv420p, which every browser plays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from cosmos_robot.errors import DependencyError, InputError
from cosmos_robot.types import Image, check_image


class Film:
    """An mp4 that grows frame by frame and takes its name only when it is complete.

    Frames are (H, W, 3) uint8, all of one even size.
    """

    def __init__(self, path: Path, fps: float):
        self.path = Path(path)
        self._part = self.path.with_name(self.path.name + ".part")
        self._fps = Fraction(fps).limit_denominator(1000)
        self._container = None
        self.frames = 0

    def add(self, frame: Image) -> None:
        """Append one frame."""
        frame = check_image("film frame", frame)
        height, width = frame.shape[:2]
        if height % 2 or width % 2:
            raise InputError(f"film {self.path.name}: yuv420p needs even sizes, got {height}x{width}")
        if self._container is None:
            self._open(height, width)
        if (height, width) != (self._stream.height, self._stream.width):
            raise InputError(
                f"film {self.path.name}: expected {self._stream.height}x{self._stream.width} as before, "
                f"got {height}x{width}"
            )
        picture = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
        self._container.mux(self._stream.encode(picture))
        self.frames += 1

    def close(self) -> Path:
        """Finish the file and give it its name. Raises InputError if it has no frame."""
        if self._container is None:
            raise InputError(f"film {self.path.name} has no frame")
        self._container.mux(self._stream.encode(None))
        self._container.close()
        os.replace(self._part, self.path)
        return self.path

    def discard(self) -> None:
        """Drop an unfinished film."""
        if self._container is not None:
            self._container.close()
            self._part.unlink(missing_ok=True)

    def _open(self, height: int, width: int) -> None:
        try:
            import av
        except ImportError as error:
            raise DependencyError(f"films need PyAV ({error}); install cosmos-robot[libero]") from error
        self._av = av
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(self._part), "w", format="mp4", options={"movflags": "faststart"})
        self._stream = self._container.add_stream("libx264", rate=self._fps)
        self._stream.height, self._stream.width, self._stream.pix_fmt = height, width, "yuv420p"
        self._stream.options = {"crf": "23", "preset": "veryfast"}
        self._stream.codec_context.thread_count = 1


def side_by_side(images: Sequence[Image]) -> Image:
    """Cameras next to each other, on the height of the tallest, black below shorter ones; even width and height."""
    height = max(image.shape[0] for image in images)
    width = sum(image.shape[1] for image in images)
    out = np.zeros((height + height % 2, width + width % 2, 3), np.uint8)
    left = 0
    for image in images:
        out[: image.shape[0], left : left + image.shape[1]] = image
        left += image.shape[1]
    return out
