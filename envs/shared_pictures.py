"""Pictures between two processes through memory that has no name, so a crash of either end leaves nothing behind."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable
from typing import TypedDict

import numpy as np

from cosmos_robot.types import Image


class Entry(TypedDict):
    """Where one picture lies: camera name, byte offset, (H, W, 3), and the control step it shows."""

    camera: str
    offset: int
    shape: list[int]
    step: int


class SharedPictures:
    """A block of memory that both ends map, found by its file descriptor. The writer lets it grow.

    The two ends take turns by request and reply, and the reader copies, so no lock is needed.
    """

    def __init__(self, fd: int | None = None):
        self.fd = _anonymous_file() if fd is None else fd
        self._map: mmap.mmap | None = None

    def write(self, pictures: Iterable[tuple[str, int, Image]]) -> list[Entry]:
        """Store (camera, control step, picture) triples from the start of the block; returns where each one lies."""
        pictures = list(pictures)
        self._grow(sum(image.nbytes for _, _, image in pictures))
        entries: list[Entry] = []
        offset = 0
        for camera, step, image in pictures:
            self._map[offset : offset + image.nbytes] = image.tobytes()
            entries.append({"camera": camera, "offset": offset, "shape": list(image.shape), "step": step})
            offset += image.nbytes
        return entries

    def read(self, entry: Entry) -> Image:
        """A copy of one picture."""
        height, width, channels = entry["shape"]
        end = entry["offset"] + height * width * channels
        if self._map is None or len(self._map) < end:
            self._remap(os.fstat(self.fd).st_size)
        return np.frombuffer(self._map[entry["offset"] : end], np.uint8).reshape(entry["shape"]).copy()

    def close(self) -> None:
        """Unmap and close the descriptor; calling it again does nothing."""
        if self._map is not None:
            self._map.close()
            self._map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _grow(self, size: int) -> None:
        if size and (self._map is None or len(self._map) < size):
            os.ftruncate(self.fd, size)
            self._remap(size)

    def _remap(self, size: int) -> None:
        if self._map is not None:
            self._map.close()
        self._map = mmap.mmap(self.fd, size)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("cosmos-robot-pictures")
    with tempfile.TemporaryFile() as file:  # already unlinked
        return os.dup(file.fileno())
