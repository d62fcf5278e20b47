"""The values that cross every boundary: frozen, checked when made.

Axis legend: T steps of a chunk, D width of an action, H W image height and width, B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

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
        raise InputError(
            f"image {name!r}: expected uint8 in 0..255, got {image.dtype}; convert it yourself, since only you know "
            "whether its range is 0..1, -1..1 or 0..255"
        )
    return image


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
    """

    images: Mapping[str, Image]
    state: Mapping[str, NDArray[np.float64]]
    instruction: str
    time: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.images, LazyImages):
            checked = {name: check_image(name, image) for name, image in self.images.items()}
            object.__setattr__(self, "images", MappingProxyType(checked))
        if not isinstance(self.instruction, str):
            raise InputError(f"instruction: expected text, got {self.instruction!r}")
        state = {}
        for name, value in self.state.items():
            try:
                vector = np.asarray(value, dtype=np.float64)
            except (TypeError, ValueError) as error:
                raise InputError(f"state {name!r}: expected a finite vector, got {value!r}") from error
            if vector.ndim != 1 or not np.isfinite(vector).all():
                raise InputError(f"state {name!r}: expected a finite vector, got shape {vector.shape}: {value!r}")
            state[name] = vector
        object.__setattr__(self, "state", MappingProxyType(state))


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
