"""Robot units to model units and back: one implementation for training, serving and evaluation."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.contract import Normalization, Statistics
from cosmos_robot.errors import InputError


def statistics(rows: ArrayLike) -> Statistics:
    """Exact per-dimension statistics of (N, D) finite rows, in float64."""
    x = np.asarray(rows, dtype=np.float64)
    if x.ndim != 2 or not len(x):
        raise InputError(f"statistics: expected (N, D) with N >= 1, got {x.shape}")
    if not np.isfinite(x).all():
        raise InputError(f"statistics: row {int(np.argwhere(~np.isfinite(x))[0, 0])} is not finite")
    q01, q99 = np.quantile(x, [0.01, 0.99], axis=0)
    columns = {"mean": x.mean(0), "std": x.std(0), "min": x.min(0), "max": x.max(0), "q01": q01, "q99": q99}
    return Statistics(count=len(x), **{k: tuple(v.tolist()) for k, v in columns.items()})


class Normalizer:
    """The affine map of a ``Normalization`` over the last axis, and its inverse."""

    def __init__(self, spec: Normalization, width: int):
        self.spec = spec
        self.offset: NDArray[np.float64] = np.zeros(width)
        self.scale: NDArray[np.float64] = np.ones(width)
        if spec.method != "identity":
            s = spec.statistics
            assert s is not None  # the contract's validator guarantees it
            if spec.method == "meanstd":
                offset, scale = np.array(s.mean), np.array(s.std)
            else:
                low, high = (s.q01, s.q99) if spec.method == "quantile" else (s.min, s.max)
                offset, scale = (np.array(high) + low) / 2, (np.array(high) - low) / 2
            self.offset, self.scale = offset, np.maximum(scale, spec.scale_floor)
        if len(self.offset) != width:
            raise InputError(f"normaliser: statistics have {len(self.offset)} dimensions, expected {width}")

    def normalize(self, x: ArrayLike) -> NDArray[np.float64]:
        """(..., D) in robot units to model units."""
        y = (self._check(x) - self.offset) / self.scale
        return y if self.spec.clamp is None else np.clip(y, -self.spec.clamp, self.spec.clamp)

    def denormalize(self, y: ArrayLike) -> NDArray[np.float64]:
        """(..., D) in model units to robot units."""
        return self._check(y) * self.scale + self.offset

    def _check(self, x: ArrayLike) -> NDArray[np.float64]:
        array = np.asarray(x, dtype=np.float64)
        if array.shape[-1:] != self.offset.shape:
            raise InputError(f"normaliser: expected last axis {len(self.offset)}, got shape {array.shape}")
        return array
