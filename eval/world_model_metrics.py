"""How near a predicted picture is to what happened: pure functions over uint8 pictures.

Axis legend: F frames, H W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import correlate1d

from cosmos_robot.errors import InputError

Frames = NDArray[np.uint8]

BEST_DB = 60.0
"""PSNR is not counted beyond this: the rounding to whole levels alone leaves 58.9 dB."""
MOVED_LEVELS = 16
"""Levels of 255 by which a pixel must differ from the first picture to count as moved; videos are coded lossily."""
LEAST_MOVED = 16
"""Moved pixels, of a place of one frame or of all frames of a window, below which nothing is said about them."""

_WINDOW, _SIGMA = 11, 1.5


def squared_error(predicted: Frames, truth: Frames, mask: NDArray[np.bool_] | None = None) -> float:
    """Mean squared error in levels, over the pixels of ``mask`` (the same shape less the colours); NaN over none.
    Raises InputError where the shapes differ."""
    if predicted.shape != truth.shape:
        raise InputError(f"pictures of {predicted.shape} and {truth.shape} cannot be compared; compose both alike")
    apart = (predicted.astype(np.float64) - truth.astype(np.float64)) ** 2
    if mask is not None:
        apart = apart[mask]
    return float(apart.mean()) if apart.size else float("nan")


def decibels(error: float) -> float:
    """PSNR of a mean squared error in levels of 255, at most ``BEST_DB``; NaN stays NaN."""
    if error != error:
        return error
    return BEST_DB if error <= 0 else min(BEST_DB, float(10 * np.log10(255**2 / error)))


def psnr(predicted: Frames, truth: Frames, mask: NDArray[np.bool_] | None = None) -> float:
    """Peak signal-to-noise ratio, dB, of pictures of any equal shape; at most ``BEST_DB``."""
    return decibels(squared_error(predicted, truth, mask))


def ssim(predicted: Frames, truth: Frames) -> float:
    """Structural similarity of two pictures (H, W, 3), -1 to 1: Wang et al., "Image quality assessment: from error
    visibility to structural similarity", IEEE TIP 13 (2004), with its Gaussian window of 11 pixels and sigma 1.5,
    K1 = 0.01 and K2 = 0.03, averaged over the windows that lie inside the picture and over colours.

    Raises InputError for pictures smaller than the window, or of different shapes.
    """
    if predicted.shape != truth.shape or min(truth.shape[:2]) < _WINDOW:
        raise InputError(
            f"ssim: expected two pictures of one size, at least {_WINDOW} pixels a side, got {predicted.shape} and "
            f"{truth.shape}"
        )
    a, b = predicted.astype(np.float64), truth.astype(np.float64)
    mean_a, mean_b = _blurred(a), _blurred(b)
    var_a, var_b = _blurred(a * a) - mean_a**2, _blurred(b * b) - mean_b**2
    both = _blurred(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    likeness = ((2 * mean_a * mean_b + c1) * (2 * both + c2)) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    return float(likeness.mean())


def moved(frames: Frames) -> NDArray[np.bool_]:
    """(F - 1, H, W): where each later frame differs from the first by more than ``MOVED_LEVELS`` in some colour."""
    apart = np.abs(frames[1:].astype(np.int16) - frames[0].astype(np.int16)).max(axis=-1)
    return apart > MOVED_LEVELS


def motion_ratio(predicted: Frames, truth: Frames, mask: NDArray[np.bool_]) -> float:
    """How much the prediction changed where the truth did, as a share of how much the truth changed there: 1 where they
    agree, 0 for a still picture. predicted, truth: (F, H, W, 3) with the first picture; mask: as ``moved``."""

    def change(frames: Frames) -> float:
        return float(np.abs(frames[1:].astype(np.float64) - frames[0].astype(np.float64))[mask].mean())

    return change(predicted) / change(truth) if mask.any() else float("nan")


def frame_scores(predicted: Frames, truth: Frames, mask: NDArray[np.bool_]) -> dict[str, float]:
    """``psnr``, ``ssim``, ``moving_psnr`` and ``moving_error``, the squared error it comes from, of one picture
    (H, W, 3); NaN where there is nothing to say, such as about fewer than ``LEAST_MOVED`` pixels of ``mask`` (H, W)."""
    small = min(truth.shape[:2]) < _WINDOW
    moving = squared_error(predicted, truth, mask) if mask.sum() >= LEAST_MOVED else float("nan")
    return {
        "psnr": psnr(predicted, truth),
        "ssim": float("nan") if small else ssim(predicted, truth),
        "moving_psnr": decibels(moving),
        "moving_error": moving,
    }


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of those that are numbers, None of none."""
    found = [v for v in values if v is not None and v == v]
    return float(np.mean(found)) if found else None


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: NaN as None, arrays as lists."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _blurred(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The Gaussian mean of every window that lies inside."""
    reach = np.arange(_WINDOW) - _WINDOW // 2
    weights = np.exp(-(reach**2) / (2 * _SIGMA**2))
    weights /= weights.sum()
    out = correlate1d(correlate1d(values, weights, axis=0), weights, axis=1)
    edge = _WINDOW // 2
    return out[edge : values.shape[0] - edge, edge : values.shape[1] - edge]
