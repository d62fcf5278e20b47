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

from cosmos_robot.contract import Normalization
from cosmos_robot.errors import InputError

Formula = Literal["centred", "from_low"]

ASINH_OF_ONE: Final = float(np.arcsinh(1.0))
OUTLIERS_WITHIN: Final = 5.0
LARGEST_NORMALISED: Final = 100.0
"""A normalised row beyond this is a fault of the statistics, not a motion."""


@dataclass(frozen=True)
class LinearMap:
    """x -> (x - offset) / scale, and y -> y inverse_scale + inverse_offset; four vectors (D,).

    The two halves differ only where a floor holds for one of them.
    """

    offset: NDArray[np.float64]
    scale: NDArray[np.float64]
    inverse_offset: NDArray[np.float64]
    inverse_scale: NDArray[np.float64]

    def forward(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """(..., D) in robot units to model units."""
        return (x - self.offset) / self.scale

    def inverse(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        """(..., D) in model units to robot units."""
        return y * self.inverse_scale + self.inverse_offset


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
    half = np.maximum((hi - lo) / 2, floor)
    back = half
    if formula == "from_low":
        back = np.maximum((hi - lo) / 2, inverse_floor) if inverse_floor is not None else (hi - lo) / 2
    middle, backwards = ((hi + lo) / 2,) * 2 if formula == "centred" else (lo + half, lo + back)
    share = (target[1] - target[0]) / 2
    centre = (target[0] + target[1]) / 2
    return LinearMap(
        offset=middle - half * centre / share,
        scale=half / share,
        inverse_offset=backwards - back * centre / share,
        inverse_scale=back / share,
    )


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

    def require_bounded(self, x: ArrayLike, limit: float = LARGEST_NORMALISED) -> None:
        """Raises InputError naming the dimensions in which (..., D), robot units, lies beyond ``limit`` model units:
        statistics of a near-constant dimension, or of other data."""
        y = np.abs(self.normalize(x)).reshape(-1, len(self.map.offset))
        if not len(y):
            return
        largest = y.max(axis=0)
        wrong = np.flatnonzero(~(largest <= limit))
        if len(wrong):
            worst = ", ".join(f"{i} (up to {largest[i]:.3g}, scale {self.map.scale[i]:.3g})" for i in wrong)
            raise InputError(
                f"normaliser: beyond {limit:g} model units in dimensions {worst}; raise scale_floor, pass the "
                "dimension through (constant, constant_below), or recompute the statistics on these data"
            )

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
    ones, zeros, s = np.ones(width), np.zeros(width), spec.statistics
    if spec.method == "pose_scale":
        factors = np.where(np.arange(width) < 3, spec.translation_scale, spec.rotation_scale)
        return LinearMap(zeros, 1 / factors, zeros, 1 / factors)
    if spec.method == "identity" or s is None:
        return LinearMap(zeros, ones, zeros, ones)
    if spec.method == "meanstd":
        mean, std = np.array(s.column("mean")), np.array(s.column("std"))
        floored = np.maximum(std, spec.scale_floor)
        return LinearMap(mean, floored, mean, std if spec.formula == "from_low" else floored)
    low, high = (np.array(s.column(name)) for name in (("min", "max") if spec.method == "minmax" else ("q01", "q99")))
    native = range_map(low, high, formula=spec.formula, floor=spec.scale_floor)
    if spec.method != "quantile_rot_scale_floor":
        return native
    reach = np.maximum(np.abs(np.array(s.column("min")) - native.offset), np.abs(s.column("max") - native.offset))
    scale = np.maximum(native.scale, reach / OUTLIERS_WITHIN)
    return LinearMap(native.offset, scale, native.offset, scale)


def _with_constants(spec: Normalization, native: LinearMap, width: int) -> tuple[LinearMap, NDArray[np.bool_]]:
    """``native`` with the contract's policy for constant dimensions, and which ones those are (D,)."""
    constant: NDArray[np.bool_] = np.zeros(width, dtype=bool)
    if spec.constant == "floor" or spec.statistics is None or spec.method in ("identity", "pose_scale"):
        return native, constant
    s = spec.statistics
    if spec.method == "meanstd":
        centre, size = np.array(s.column("mean")), np.array(s.column("std"))
    else:
        low, high = (np.array(s.column(n)) for n in (("min", "max") if spec.method == "minmax" else ("q01", "q99")))
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
        scale=np.where(constant, scale, native.scale),
        inverse_offset=np.where(constant, centre, native.inverse_offset),
        inverse_scale=np.where(constant, back, native.inverse_scale),
    ), constant


def to_bfloat16(values: ArrayLike) -> NDArray[np.float32]:
    """Values rounded to the nearest bfloat16 (ties to even), kept as float32: what a bf16 model reads."""
    bits = np.ascontiguousarray(np.asarray(values, dtype=np.float32)).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.asarray(np.where(np.isfinite(values), rounded, bits).astype(np.uint32).view(np.float32))
