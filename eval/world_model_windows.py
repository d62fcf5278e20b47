"""What a world model is held against: episodes with what was commanded and what was seen, and windows cut from them.

Axis legend: N commands of an episode, T rows of a chunk, D width of a command, F frames of a window, H W pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import WHOLE_CANVAS, Contract, RobotSpec
from cosmos_robot.errors import InputError
from cosmos_robot.images import compose_canvas, video_size
from cosmos_robot.latent_frames.layout import FUTURE
from cosmos_robot.types import ActionChunk, Image, Observation

Rows = NDArray[np.float64]
State = Mapping[str, NDArray[np.float64]]
Pictures = Mapping[str, Image]


@dataclass(frozen=True, eq=False)
class Seen:
    """What a robot saw on its way: pictures and states by the steps that had been taken."""

    pictures: Mapping[int, Pictures]
    states: Mapping[int, State]


@dataclass(frozen=True, eq=False)
class Run:
    """One episode.

    name: where it comes from, in words. commands: (N, D) what was run. seen: what it looked like, by step; there may be
    fewer pictures than steps. success: how it ended, None if nobody knows. replay: runs other rows (k, D) in the
    simulator from a step of this episode at which a window begins, and returns what was seen by steps taken since then;
    None for a recording.
    """

    name: str
    instruction: str
    commands: Rows
    seen: Seen
    success: bool | None = None
    replay: Callable[[int, Rows], Seen] | None = None

    def __len__(self) -> int:
        return len(self.commands)


@dataclass(frozen=True, eq=False)
class Window:
    """``chunks`` chunks of an episode, from step ``start``."""

    run: Run
    start: int
    chunks: int

    @property
    def key(self) -> str:
        """A name that no other window has."""
        return f"{self.run.name} @ {self.start}"

    def observation(self, contract: Contract) -> Observation:
        """The moment at which the window begins."""
        seen, rows = self.run.seen, contract.model.history_rows
        history = self.run.commands[max(0, self.start - rows) : self.start] if rows else None
        time = self.start / contract.robot.rate_hz
        return Observation(
            seen.pictures[self.start], seen.states[self.start], self.run.instruction, time=time, history=history
        )

    def commands(self, contract: Contract) -> ActionChunk:
        """What was really run in the window, all chunks of it."""
        length = self.chunks * contract.model.chunk
        return as_chunk(contract, self.run.commands[self.start : self.start + length], self.start)

    def truth(self, contract: Contract) -> NDArray[np.uint8]:
        """(F, H, W, 3): what happened, as ``canvases``, at the frames of a prediction."""
        steps = frame_steps(contract, self.chunks)
        return canvases(contract, [self.run.seen.pictures[self.start + step] for step in steps])

    def states(self, contract: Contract) -> list[State]:
        """The state at the beginning of the window and at the end of each chunk, as far as it is known."""
        steps = (self.start + k * contract.model.chunk for k in range(self.chunks + 1))
        return [self.run.seen.states[step] for step in steps if step in self.run.seen.states]


def frame_stride(contract: Contract) -> int:
    """Control steps from one frame of a prediction to the next: latent frames show the end of a chunk alone."""
    return contract.model.chunk if contract.model.frames else contract.model.actions_per_frame


def frame_steps(contract: Contract, chunks: int = 1) -> range:
    """The steps, since a window's beginning, that the frames of its prediction show."""
    return range(0, chunks * contract.model.chunk + 1, frame_stride(contract))


def as_chunk(contract: Contract, rows: Rows, start: int = 0) -> ActionChunk:
    """Rows (k, D) as commands at the robot's rate, given at step ``start``."""
    return ActionChunk(rows, contract.robot.rate_hz, start / contract.robot.rate_hz, source="recorded")


def windows_of(run: Run, contract: Contract, chunks: int, most: int) -> list[Window]:
    """At most ``most`` windows of an episode, spread over all places where one fits whole and every frame was seen, and
    as evenly as may be, no two on the same steps; fewer where the episode is too short. Empty where none fits."""
    length, steps = chunks * contract.model.chunk, frame_steps(contract, chunks)
    fitting = [
        start
        for start in sorted(run.seen.pictures)
        if start + length <= len(run)
        and start in run.seen.states
        and all(start + step in run.seen.pictures for step in steps)
    ]
    return [Window(run, start, chunks) for start in _apart(fitting, length, most)]


def spread(count: int, most: int) -> list[int]:
    """``most`` places of ``count`` in order, or all of them: the middles of so many equal parts."""
    return list(range(count)) if most >= count else [int((i + 0.5) * count / most) for i in range(most)]


def _apart(starts: Sequence[int], length: int, most: int) -> list[int]:
    """At most ``most`` of ``starts``, in order, each at least ``length`` after the one before."""
    latest: list[int] = []  # from the end: where each window begins at the latest, for those after it to fit
    for start in reversed(starts):
        if len(latest) < most and (not latest or start + length <= latest[-1]):
            latest.append(start)
    latest.reverse()
    if not latest:
        return []
    ends = (starts[0], starts[-1])
    wished = np.linspace(*ends, len(latest)) if len(latest) > 1 else [np.mean(ends)]
    chosen: list[int] = []
    for wish, last in zip(wished, latest, strict=True):
        free = [s for s in starts if s <= last and (not chosen or s >= chosen[-1] + length)]
        chosen.append(min(free, key=lambda start: abs(start - wish)))
    return chosen


def canvases(contract: Contract, pictures: Sequence[Pictures]) -> NDArray[np.uint8]:
    """(n, H, W, 3): pictures of several moments as a prediction shows them, see ``predicted_part``."""
    return np.stack([predicted_part(contract, compose_canvas(contract, seen)) for seen in pictures])


def predicted_part(contract: Contract, frame: Image) -> Image:
    """The top left (H, W, 3) of a canvas that a prediction shows, without padding and cut cells (``video_size``);
    places of which nothing is predicted (``unpredicted``) are black."""
    height, width = video_size(contract.model)
    out = frame[:height, :width].copy()
    missing = unpredicted(contract)
    for place in contract.model.canvas.placements:
        if place.camera in missing:
            box = place.to
            out[box.top : box.top + box.height, box.left : box.left + box.width] = 0
    return out


def unpredicted(contract: Contract) -> tuple[str, ...]:
    """The cameras on the canvas of which the model predicts no picture: a layout of latent frames may lack it."""
    frames, cameras = contract.model.frames, sorted({p.camera for p in contract.model.canvas.placements})
    if not frames or FUTURE + WHOLE_CANVAS in frames:
        return ()
    return tuple(camera for camera in cameras if FUTURE + camera not in frames)


def state_fields(robot: RobotSpec, row: NDArray[np.floating]) -> dict[str, NDArray[np.float64]]:
    """A vector of all state fields (Ds,) taken apart. Raises InputError for another width."""
    if len(row) != robot.state_width:
        raise InputError(
            f"state: expected {robot.state_width} numbers, those of {robot.name!r} ({[f.name for f in robot.state]}), "
            f"got {len(row)}"
        )
    ends = np.cumsum([0, *(field.width for field in robot.state)])
    return {
        field.name: np.asarray(row[a:b], np.float64)
        for field, a, b in zip(robot.state, ends[:-1], ends[1:], strict=True)
    }
