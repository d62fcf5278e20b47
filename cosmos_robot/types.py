"""The values that cross every boundary: frozen, checked when made.

Axis legend: T steps of a chunk, D width of an action, F frames of a video, H W image height and width, B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.errors import InputError, UnknownNameError

Image = NDArray[np.uint8]


def check_image(name: str, image: object) -> Image:
    """``image`` if it is an RGB uint8 array (H, W, 3); raises InputError naming the camera otherwise."""
    if not isinstance(image, np.ndarray):
        raise InputError(f"image {name!r}: expected a numpy array (H, W, 3) uint8, got {type(image).__name__}")
    if image.ndim != 3 or image.shape[2] != 3:
        raise InputError(f"image {name!r}: expected shape (H, W, 3), got {image.shape}")
    if image.dtype != np.uint8:
        raise InputError(f"image {name!r}: expected uint8 in 0..255, got {image.dtype} {_range_of(image)}")
    return image


def _range_of(image: NDArray[Any]) -> str:
    """What the values of a picture that is not uint8 look like, and how its sender can convert it."""
    if image.dtype.kind not in "fiu" or not image.size:
        return "values; send uint8"
    broken = int(image.size - np.count_nonzero(np.isfinite(image)))
    if broken:
        return f"with {broken} values that are not finite; repair its source"
    low, high = float(image.min()), float(image.max())
    if image.dtype.kind == "f" and low >= 0 and high <= 1:
        advice = "if the range is 0..1, unit_float_to_uint8 of cosmos_robot.images converts it exactly"
    elif image.dtype.kind == "f" and low >= -1 and high <= 1:
        advice = "the range may be -1..1; bring it to 0..255 and cast it where it is made"
    elif low >= 0 and high <= 255:
        advice = "if the range is 0..255, round and cast it where it is made"
    else:
        advice = "no usual range of a picture"
    return f"from {low:g} to {high:g}; {advice}"


class LazyImages(Mapping[str, Image]):
    """Camera name to image, drawn on first reading and kept.

    ``draw(name)`` renders; ``fresh()`` tells whether the simulator still stands where this observation was made, so
    that a late reading is refused instead of showing another moment.
    """

    def __init__(self, names: tuple[str, ...], draw: Callable[[str], Image], fresh: Callable[[], bool] = lambda: True):
        self._names, self._draw, self._fresh = names, draw, fresh
        self._drawn: dict[str, Image] = {}

    def __getitem__(self, name: str) -> Image:
        if name not in self._names:
            raise UnknownNameError("camera", str(name), self._names)
        if name not in self._drawn:
            if not self._fresh():
                raise InputError(
                    f"image {name!r} was first read after the environment had moved on; read it before the next "
                    "step() or reset()"
                )
            self._drawn[name] = check_image(name, self._draw(name))
        return self._drawn[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class Observation:
    """What a robot sees at one moment.

    images: camera name to uint8 (H, W, 3) RGB, upright unless the robot's spec says otherwise; may be lazy.
    state: field name to float vector, in the units of the robot's spec.
    instruction: the task in words.
    time: seconds since the episode began.
    history: (N, D) the last N command rows before this moment, oldest first, in the robot's units; only a model whose
    contract has ``history_rows`` reads them. None is no row.
    """

    images: Mapping[str, Image]
    state: Mapping[str, NDArray[np.float64]]
    instruction: str
    time: float = 0.0
    history: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.images, LazyImages):
            checked = {name: check_image(name, image) for name, image in self.images.items()}
            object.__setattr__(self, "images", MappingProxyType(checked))
        object.__setattr__(self, "instruction", _text(self.instruction))
        object.__setattr__(self, "state", _state(self.state))
        object.__setattr__(self, "history", _history(self.history))


@dataclass(frozen=True)
class Clip:
    """A piece of video that actions are to be found for.

    frames: (F, H, W, 3) uint8, as the model sees them (on its canvas), at the frame rate of its contract.
    state, instruction, time, history: as in ``Observation``, at the first frame.
    """

    frames: NDArray[np.uint8]
    instruction: str
    state: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    time: float = 0.0
    history: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        check_frames("clip", self.frames)
        object.__setattr__(self, "instruction", _text(self.instruction))
        object.__setattr__(self, "state", _state(self.state))
        object.__setattr__(self, "history", _history(self.history))


@dataclass(frozen=True)
class ActionChunk:
    """A run of commands, in the robot's own units.

    values: (T, D) float64, finite; row i is meant for ``start_time + i / rate_hz``.
    rate_hz: control rate the rows are spaced for.
    start_time: seconds, on the clock of the observation it answers.
    source: who made it, for logs (for instance ``"cosmos3:tiny-libero"``).
    """

    values: NDArray[np.float64]
    rate_hz: float
    start_time: float = 0.0
    source: str = ""
    info: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)
        if values.ndim != 2 or 0 in values.shape:
            raise InputError(f"action chunk: expected shape (T, D) with T, D >= 1, got {values.shape}")
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            raise InputError(f"action chunk: value at step {row}, dimension {column} is {values[row, column]}")
        if not self.rate_hz > 0:
            raise InputError(f"action chunk: rate_hz must be positive, got {self.rate_hz}")
        values.setflags(write=False)
        object.__setattr__(self, "values", values)

    def __len__(self) -> int:
        return len(self.values)


class LazyFrames:
    """A video (F, H, W, 3) uint8 of known ``shape``, decoded when first asked for, and kept."""

    def __init__(self, decode: Callable[[], NDArray[np.uint8]], shape: tuple[int, int, int, int]):
        if len(shape) != 4 or shape[3] != 3 or min(shape) < 1:
            raise InputError(f"video: expected shape (F, H, W, 3) with F, H, W >= 1, got {shape}")
        self.shape = shape
        self._decode = decode
        self._frames: NDArray[np.uint8] | None = None

    def __call__(self) -> NDArray[np.uint8]:
        """The frames, read-only."""
        if self._frames is None:
            frames = check_frames("video", self._decode())
            if frames.shape != self.shape:
                raise InputError(f"video: its decoder gave {frames.shape}, announced were {self.shape}")
            frames.setflags(write=False)
            self._frames = frames
        return self._frames

    @property
    def decoded(self) -> bool:
        """Whether anybody has asked for them."""
        return self._frames is not None


@dataclass(frozen=True, eq=False)
class VideoPrediction:
    """A future that a model imagined.

    video: its pictures, on the model's canvas; frame 0 is the moment it started from. actions: the chunk it answers.
    instruction: the text it was imagined under. rate_hz: frames per second; frame i is ``start_time + i / rate_hz``.
    latents: what the model itself keeps of it, for continuing or scoring without pictures; its kind is the model's.
    source: who made it, for logs.
    """

    video: LazyFrames
    actions: ActionChunk
    instruction: str
    rate_hz: float
    start_time: float = 0.0
    source: str = ""
    latents: object = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "instruction", _text(self.instruction))
        if not self.rate_hz > 0:
            raise InputError(f"video: rate_hz must be positive, got {self.rate_hz}")

    @property
    def frames(self) -> NDArray[np.uint8]:
        """(F, H, W, 3) uint8, read-only; decoded when first asked for."""
        return self.video()

    @property
    def end_time(self) -> float:
        """The time of the last frame, seconds."""
        return self.start_time + (len(self) - 1) / self.rate_hz

    def __len__(self) -> int:
        """Frames, the first included."""
        return self.video.shape[0]


def check_frames(name: str, frames: object) -> NDArray[np.uint8]:
    """``frames`` if they are uint8 (F, H, W, 3) with F >= 1; raises InputError otherwise."""
    if not isinstance(frames, np.ndarray) or frames.ndim != 4 or frames.shape[3] != 3 or 0 in frames.shape:
        raise InputError(f"{name}: expected frames (F, H, W, 3), got {getattr(frames, 'shape', type(frames).__name__)}")
    if frames.dtype != np.uint8:
        raise InputError(f"{name}: expected uint8 in 0..255, got {frames.dtype}; convert it yourself")
    return frames


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InputError(f"instruction: expected text, got {value!r}")
    return value


def _state(given: Mapping[str, NDArray[np.float64]]) -> Mapping[str, NDArray[np.float64]]:
    state = {}
    for name, value in given.items():
        try:
            vector = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"state {name!r}: expected a finite vector, got {value!r}") from error
        if vector.ndim != 1 or not np.isfinite(vector).all():
            raise InputError(f"state {name!r}: expected a finite vector, got shape {vector.shape}: {value!r}")
        state[name] = vector
    return MappingProxyType(state)


def _history(given: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    if given is None:
        return None
    rows = np.array(given, dtype=np.float64)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise InputError(f"history: expected finite rows (N, D), got shape {rows.shape}")
    rows.setflags(write=False)
    return rows if len(rows) else None
