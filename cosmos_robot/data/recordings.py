"""One way to read recorded episodes, whatever file format they lie in.

``Recordings`` is a dataset: a sequence of ``Recording`` values (the numbers of one episode at its recorded rate), whose
pictures are decoded only when asked for. ``Window`` is one training sample cut from it; a window never crosses an
episode, and what it takes from beyond the end is marked as such.

Axis legend: N rows of an episode, T steps of a chunk, F rows of a window that are looked at, Ds Da widths, H W pixels.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.data.episodes import chunk_rows
from cosmos_robot.data.findings import Finding
from cosmos_robot.errors import InputError, UnknownNameError, nearest

LEROBOT_MASK = "action_is_pad"
SPLIT = "split it where the task changes, or give all its rows one task_index"
"""What to do with an episode whose rows name several tasks."""


@dataclass(frozen=True, eq=False)
class Recording:
    """The numbers of one episode as its file holds them; nothing is checked, so that ``lint`` sees what is wrong.

    where: the episode's place in words. instruction: the task, empty if the file names none. tasks: all texts that its
    rows name, in their order, where each row names one.
    state: (N, Ds). actions: (N, Da). times: (N,) seconds as recorded, or None where the file keeps none.
    clocks: other columns that look like time, name to (N,) seconds. success: the file's own label, or None.
    """

    where: str
    instruction: str
    state: NDArray[np.floating]
    actions: NDArray[np.floating]
    times: NDArray[np.float64] | None = None
    success: bool | None = None
    clocks: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True, eq=False)
class Window:
    """One sample: the rows ``start + offsets`` of an episode, and the T commands that follow ``start``.

    states: (F, Ds). pictures: camera to (F, H, W, 3) uint8. present: (F,) bool, False where a row lies outside the
    episode and its nearest row stands in. actions: (T, Da) float32. valid: (T,) bool, False for commands past the end,
    where the last one is repeated.
    """

    episode: int
    start: int
    instruction: str
    states: NDArray[np.float32]
    pictures: Mapping[str, NDArray[np.uint8]]
    present: NDArray[np.bool_]
    actions: NDArray[np.float32]
    valid: NDArray[np.bool_]


class Recordings(ABC, Sequence[Recording]):
    """A dataset of episodes. ``open_recordings`` finds the reader for a path.

    path: where it lies. layout: the format in words. fps: rows per second, None where the files do not say.
    cameras: names. state_names, action_names: one per dimension, empty where unknown. lengths: rows per episode as the
    dataset's own tables give them. robot: the robot's name, "" where unknown.
    """

    path: Path
    layout: str
    fps: float | None
    cameras: tuple[str, ...]
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    lengths: tuple[int, ...]
    robot: str = ""

    @abstractmethod
    def recording(self, index: int) -> Recording:
        """The numbers of episode ``index``. Raises CheckpointError if its file is missing or damaged."""

    @abstractmethod
    def pictures(self, index: int, camera: str, rows: Sequence[int] | None = None) -> NDArray[np.uint8]:
        """Pictures (n, H, W, 3) of ``rows`` of episode ``index``, all by default, in the order asked for.

        Raises CheckpointError if the file is missing or damaged, InputError for a row outside the episode.
        """

    @abstractmethod
    def picture_count(self, index: int, camera: str) -> int:
        """How many pictures the file really holds for an episode, found without decoding them."""

    def inspect(self, places: Sequence[int] | None = None) -> list[Finding]:
        """Faults of the files and tables themselves, found without reading the episodes. places: of the episodes that
        matter (all by default); what is wrong with others alone is a warning."""
        return []

    def inspect_rows(self, index: int) -> list[Finding]:
        """Faults of an episode's own bookkeeping columns. Raises CheckpointError as ``recording`` does."""
        return []

    def statistics(self) -> Mapping[str, Mapping[str, NDArray[np.float64]]]:
        """Statistics that the dataset brings along: ``state`` and ``action`` to name to (D,); empty if it has none."""
        return {}

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Recording:  # type: ignore[override]
        return self.recording(range(len(self))[operator.index(index)])

    def require_camera(self, name: str) -> str:
        """``name`` if it is a camera; raises UnknownNameError with the nearest otherwise."""
        if name not in self.cameras:
            raise UnknownNameError(f"camera of {self.path.name}", name, self.cameras)
        return name

    def window(
        self, index: int, start: int, chunk: int, offsets: Sequence[int] = (0,), cameras: Sequence[str] | None = None
    ) -> Window:
        """The sample that begins at row ``start`` of episode ``index``.

        chunk: T commands. offsets: rows to look at, relative to ``start`` (history is negative, the future positive).
        cameras: all by default. Raises InputError if ``start`` is no row or a number in the window is not finite.
        """
        recording = self[index]
        rows, _ = _rows(len(recording), start, offsets)
        names = self.cameras if cameras is None else [self.require_camera(name) for name in cameras]
        pictures = {name: self.pictures(index, name, rows) for name in names}
        return _window(recording, index, start, chunk, offsets, pictures)

    def windows(
        self,
        chunk: int,
        offsets: Sequence[int] = (0,),
        cameras: Sequence[str] | None = None,
        episodes: Sequence[int] | None = None,
    ) -> Iterator[Window]:
        """Every window of every episode in order, equal to what ``window`` gives, each episode decoded once."""
        names = self.cameras if cameras is None else [self.require_camera(name) for name in cameras]
        for index in range(len(self)) if episodes is None else episodes:
            recording = self[index]
            frames = {name: self.pictures(index, name) for name in names}
            for start in range(len(recording)):
                rows, _ = _rows(len(recording), start, offsets)
                seen = {name: value[rows] for name, value in frames.items()}
                yield _window(recording, index, start, chunk, offsets, seen)


class Chosen(Recordings):
    """Some episodes of a dataset, by their places in it. What files say of all together (statistics) is left out."""

    def __init__(self, whole: Recordings, places: Sequence[int]):
        self.whole, self.places = whole, tuple(places)
        self.path, self.layout, self.fps, self.robot = whole.path, whole.layout, whole.fps, whole.robot
        self.cameras, self.state_names, self.action_names = whole.cameras, whole.state_names, whole.action_names
        self.lengths = tuple(whole.lengths[place] for place in self.places)

    def recording(self, index: int) -> Recording:
        return self.whole[self.places[index]]

    def pictures(self, index: int, camera: str, rows: Sequence[int] | None = None) -> NDArray[np.uint8]:
        return self.whole.pictures(self.places[index], camera, rows)

    def picture_count(self, index: int, camera: str) -> int:
        return self.whole.picture_count(self.places[index], camera)

    def inspect(self, places: Sequence[int] | None = None) -> list[Finding]:
        chosen = self.places if places is None else [self.places[place] for place in places]
        return self.whole.inspect(chosen)

    def inspect_rows(self, index: int) -> list[Finding]:
        return self.whole.inspect_rows(self.places[index])


def window_of_sample(sample: Mapping[str, Any], action: str = "action", mask: str = LEROBOT_MASK) -> Window:
    """A LeRobot sample, read with ``delta_timestamps`` for its actions, as a ``Window`` without pictures or states.

    sample: what ``LeRobotDataset.__getitem__`` returns. Raises InputError if the actions or their padding mask are not
    under these keys: a chunk without its mask would be trained as if the robot stood still past the end.
    """
    for key, what in ((action, "actions"), (mask, "padding mask")):
        if key not in sample:
            near = nearest(key, map(str, sample))
            hint = f"did you mean {near[0]!r}?" if near else f"there are {sorted(map(str, sample))}"
            raise InputError(f"sample: no {what} under {key!r}; {hint}")
    actions, padded = np.asarray(sample[action], np.float32), np.asarray(sample[mask])
    if actions.ndim != 2 or padded.shape != actions.shape[:1] or padded.dtype != np.bool_:
        raise InputError(
            f"sample: expected {action!r} (T, D) with {mask!r} (T,) bool, got {actions.shape} and {padded.shape} "
            f"{padded.dtype}; read it with delta_timestamps"
        )
    place = [int(sample.get(key, 0)) for key in ("episode_index", "frame_index")]
    nothing = np.zeros((0, 0), np.float32)
    return Window(*place, str(sample.get("task", "")), nothing, {}, np.zeros(0, bool), actions, ~padded)


def _rows(count: int, start: int, offsets: Sequence[int]) -> tuple[list[int], NDArray[np.bool_]]:
    if not 0 <= start < count:
        raise InputError(f"window: got start {start}, the episode has rows 0 to {count - 1}")
    wanted = start + np.asarray(offsets, dtype=np.int64)
    return np.clip(wanted, 0, count - 1).tolist(), (wanted >= 0) & (wanted < count)


def _window(
    recording: Recording,
    index: int,
    start: int,
    chunk: int,
    offsets: Sequence[int],
    pictures: Mapping[str, NDArray[np.uint8]],
) -> Window:
    if chunk < 1:
        raise InputError(f"window: got a chunk of {chunk} commands, expected at least 1")
    rows, present = _rows(len(recording), start, offsets)
    states = np.asarray(recording.state[rows], np.float32)
    if not np.isfinite(states).all():
        raise InputError(f"{recording.where}: the state is not finite in rows {rows}; run cosmos-robot data lint")
    stop = start + chunk
    actions, valid = chunk_rows(recording.actions[start:stop], np.zeros(1, np.int64), chunk)
    return Window(index, start, recording.instruction, states, pictures, present, actions[0], valid[0])
