"""Robot units to model units and back: one implementation for training, serving and evaluation.

The methods are Cosmos 3's (cosmos-framework, ``utils/action_processing.py``) and Cosmos Policy's min-max
(``datasets/dataset_utils.py`` of cosmos-policy). With m the middle and s the half-range of q01..q99 or min..max, or the
mean and the standard deviation, z = (x - m) / s is the model value of ``quantile``, ``quantile_rot``, ``minmax`` and
``meanstd``. ``quantile_rot_scale_floor`` raises s until min and max stay within +-5. ``asinh_rot`` gives
asinh(z) / asinh(1); ``piecewise_asinh_rot`` gives z within +-1 and sign(z) (1 + asinh(beta (|z| - 1)) / beta) beyond.
``pose_scale`` multiplies the first three numbers by one factor and the rest by another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.contract import NEEDED_STATISTICS, Normalization
from cosmos_robot.errors import InputError

Formula = Literal["centred", "from_low"]

ASINH_OF_ONE: Final = float(np.arcsinh(1.0))
OUTLIERS_WITHIN: Final = 5.0
LARGEST_NORMALISED: Final = 100.0
"""A normalised row beyond this is a fault of the statistics, not a motion."""


@dataclass(frozen=True)
class LinearMap:
    """x -> (x - offset) / scale + start, and y -> (y - start) inverse_scale + offset; four vectors (D,).

    The scales differ only where a floor holds for one of them.
    """

    offset: NDArray[np.float64]
    start: NDArray[np.float64]
    scale: NDArray[np.float64]
    inverse_scale: NDArray[np.float64]

    def forward(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """(..., D) in robot units to model units."""
        return (x - self.offset) / self.scale + self.start

    def inverse(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        """(..., D) in model units to robot units."""
        return (y - self.start) * self.inverse_scale + self.offset


def range_map(
    low: ArrayLike, high: ArrayLike, *, formula: Formula = "centred", floor: float, inverse_floor: float | None = None,
    target: tuple[float, float] = (-1.0, 1.0),
) -> LinearMap:  # fmt: skip
    """low..high (D,) to the two values of ``target``.

    formula: how a half-range below ``floor`` is placed. ``centred``: around the middle, so that a constant dimension
    gives the middle of ``target``. ``from_low``: upwards from low, so that it gives target's first value; its inverse
    has the floor ``inverse_floor`` (0 by default), that of ``centred`` has the same floor as forward.
    Sources: ``resolve_action_normalization``; ``action_normalization.py``; LIBERO server (floor 0.5e-6).
    """
    lo, hi = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    share = (target[1] - target[0]) / 2
    half = (hi - lo) / 2
    scale = np.maximum(half, floor) / share
    if formula == "centred":
        return LinearMap((hi + lo) / 2, np.full(lo.shape, sum(target) / 2), scale, scale)
    back = np.maximum(half, inverse_floor) if inverse_floor is not None else half
    return LinearMap(lo, np.full(lo.shape, target[0]), scale, back / share)


class Normalizer:
    """A ``Normalization`` over the last axis of arrays, and its inverse. Computed in float64."""

    def __init__(self, spec: Normalization, width: int):
        """width: numbers of one row. Raises InputError if the statistics are of another width, are not there, or hold
        dimensions that ``spec.constant`` refuses."""
        self.spec = spec
        if not spec.usable:
            raise InputError(f"normaliser: no statistics for method {spec.method!r}: {spec.note}")
        if spec.statistics is not None and spec.statistics.width != width:
            raise InputError(f"normaliser: statistics have {spec.statistics.width} dimensions, expected {width}")
        if spec.method == "pose_scale" and width < 3:
            raise InputError(f"normaliser: pose_scale needs a position of 3 numbers, got rows of {width}")
        self.map, self.constant = _with_constants(spec, _native_map(spec, width), width)
        if self.constant.any() and spec.constant == "refuse":
            raise InputError(
                f"normaliser: dimensions {np.flatnonzero(self.constant).tolist()} are constant (half-range or std at "
                f"or below {spec.constant_below:g}); name what to do with them: floor, centre or pass_through"
            )

    def normalize(self, x: ArrayLike) -> NDArray[np.float64]:
        """(..., D) in robot units to model units, clamped where the contract says so."""
        y = self._unclamped(x)
        return np.where(self._beyond(y), np.sign(y) * (self.spec.clamp or 0.0), y)

    def denormalize(self, y: ArrayLike) -> NDArray[np.float64]:
        """(..., D) in model units to robot units."""
        z = self._check(y)
        if self.spec.method == "asinh_rot":
            z = np.where(self._curved, np.sinh(z * ASINH_OF_ONE), z)
        elif self.spec.method == "piecewise_asinh_rot":
            tail = 1 + np.sinh(self.spec.beta * (np.abs(z) - 1)) / self.spec.beta
            z = np.where((np.abs(z) > 1) & self._curved, np.sign(z) * tail, z)
        return self.map.inverse(z)

    def clamped_share(self, x: ArrayLike) -> NDArray[np.float64]:
        """(D,) share of the values of (..., D), robot units, that ``normalize`` clamps."""
        beyond = self._beyond(self._unclamped(x))
        return np.asarray(beyond.reshape(-1, beyond.shape[-1]).mean(axis=0))

    @property
    def _curved(self) -> NDArray[np.bool_]:
        """Dimensions whose curve applies: all but those passed through."""
        return ~self.constant if self.spec.constant == "pass_through" else np.ones_like(self.constant)

    def _unclamped(self, x: ArrayLike) -> NDArray[np.float64]:
        z = self.map.forward(self._check(x))
        if self.spec.method == "asinh_rot":
            return np.where(self._curved, np.arcsinh(z) / ASINH_OF_ONE, z)
        if self.spec.method == "piecewise_asinh_rot":
            tail = 1 + np.arcsinh(self.spec.beta * (np.abs(z) - 1)) / self.spec.beta
            return np.where((np.abs(z) > 1) & self._curved, np.sign(z) * tail, z)
        return z

    def _beyond(self, y: NDArray[np.float64]) -> NDArray[np.bool_]:
        if self.spec.clamp is None:
            return np.zeros(y.shape, dtype=bool)
        beyond = np.abs(y) > self.spec.clamp
        return beyond if self.spec.clamp_mask is None else beyond & np.array(self.spec.clamp_mask)

    def _check(self, x: ArrayLike) -> NDArray[np.float64]:
        array = np.asarray(x, dtype=np.float64)
        if array.shape[-1:] != self.map.offset.shape:
            raise InputError(f"normaliser: expected last axis {len(self.map.offset)}, got shape {array.shape}")
        return array


def _native_map(spec: Normalization, width: int) -> LinearMap:
    """The map of the method and formula, before the policy for constant dimensions."""
    zeros, ones = np.zeros(width), np.ones(width)
    if spec.method == "pose_scale":
        scale = 1 / np.where(np.arange(width) < 3, spec.translation_scale, spec.rotation_scale)
        return LinearMap(zeros, zeros, scale, scale)
    if spec.method == "identity":
        return LinearMap(zeros, zeros, ones, ones)
    if spec.method == "meanstd":
        mean, std = _pair(spec, "mean", "std")
        floored = np.maximum(std, spec.scale_floor)
        return LinearMap(mean, zeros, floored, std if spec.formula == "from_low" else floored)
    low, high = _ends(spec)
    native = range_map(low, high, formula=spec.formula, floor=spec.scale_floor)
    if spec.method != "quantile_rot_scale_floor":
        return native
    smallest, largest = _pair(spec, "min", "max")
    middle = (low + high) / 2
    reach = np.maximum(np.abs(smallest - middle), np.abs(largest - middle)) / OUTLIERS_WITHIN
    scale = np.maximum(native.scale, reach)
    return LinearMap(middle, zeros, scale, scale)


def _with_constants(spec: Normalization, native: LinearMap, width: int) -> tuple[LinearMap, NDArray[np.bool_]]:
    """``native`` with the contract's policy for constant dimensions, and which ones those are (D,)."""
    constant: NDArray[np.bool_] = np.zeros(width, dtype=bool)
    if spec.constant == "floor" or not NEEDED_STATISTICS[spec.method]:
        return native, constant
    if spec.method == "meanstd":
        centre, size = _pair(spec, "mean", "std")
    else:
        low, high = _ends(spec)
        centre, size = (low + high) / 2, (high - low) / 2
        if (size < 0).any():
            raise InputError(f"normaliser: low is above high in dimensions {np.flatnonzero(size < 0).tolist()}")
    constant = size <= spec.constant_below
    if spec.constant == "pass_through":
        centre, scale, back = np.zeros(width), 1.0, 1.0
    else:  # an infinite scale takes every value to 0, a scale of 0 takes every model value to the constant
        scale, back = np.inf, 0.0
    return LinearMap(
        offset=np.where(constant, centre, native.offset),
        start=np.where(constant, 0.0, native.start),
        scale=np.where(constant, scale, native.scale),
        inverse_scale=np.where(constant, back, native.inverse_scale),
    ), constant


def _ends(spec: Normalization) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Low and high of a method that normalises by a range, (D,) each."""
    return _pair(spec, "min", "max") if spec.method == "minmax" else _pair(spec, "q01", "q99")


def _pair(spec: Normalization, first: str, second: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    assert spec.statistics is not None  # the contract's validator guarantees it
    return np.array(spec.statistics.column(first)), np.array(spec.statistics.column(second))


def require_bounded(rows: ArrayLike, limit: float = LARGEST_NORMALISED, what: str = "rows") -> None:
    """Raises InputError naming the dimensions in which (..., D) rows of model units lie beyond ``limit``, or are not
    numbers: a near-constant dimension, or statistics of other data."""
    y = np.abs(np.asarray(rows, dtype=np.float64))
    if not y.size:
        return
    largest = y.reshape(-1, y.shape[-1]).max(axis=0)
    wrong = np.flatnonzero(~(largest <= limit))
    if len(wrong):
        worst = ", ".join(f"{i} (up to {largest[i]:.3g})" for i in wrong)
        raise InputError(
            f"{what}: beyond {limit:g} model units in dimensions {worst}; raise scale_floor, pass the dimension "
            "through (constant, constant_below), or recompute the statistics on these data"
        )


def to_bfloat16(values: ArrayLike) -> NDArray[np.float32]:
    """Values rounded to the nearest bfloat16 (ties to even), kept as float32: what a bf16 model reads."""
    bits = np.ascontiguousarray(np.asarray(values, dtype=np.float32)).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.asarray(np.where(np.isfinite(values), rounded, bits).astype(np.uint32).view(np.float32))
