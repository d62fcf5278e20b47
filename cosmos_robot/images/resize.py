"""Bringing a picture to a size, by exactly the rule that a checkpoint was trained with.

The rules differ in ways that matter to a model: Pillow rounds to 8 bits between its horizontal and vertical pass, so a
bicubic overshoot is cut off in the middle, where torch rounds once at the end (up to 15 levels apart on noise).
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage

from cosmos_robot.contract import ResizeRule
from cosmos_robot.errors import InputError, UnknownNameError

Array = NDArray[Any]

_EIGHT_BIT = {
    "area": PILImage.Resampling.BOX,
    "pillow_bilinear": PILImage.Resampling.BILINEAR,
    "pillow_bicubic": PILImage.Resampling.BICUBIC,
}
_ONE_ROUNDING = {
    "bilinear_antialias": PILImage.Resampling.BILINEAR,
    "bicubic_antialias": PILImage.Resampling.BICUBIC,
}


def resize(picture: Array, height: int, width: int, rule: ResizeRule) -> Array:
    """``picture`` (H, W, 3), uint8 or float32, as (``height``, ``width``, 3) of the same type.

    A picture of that size comes back as it is. float32 is neither rounded nor clipped, and has no 8-bit rules. Raises
    UnknownNameError for an unknown rule and InputError for a size below one pixel.
    """
    if rule not in get_args(ResizeRule):
        raise UnknownNameError("resize rule", rule, get_args(ResizeRule))
    if height < 1 or width < 1:
        raise InputError(f"resize: expected at least 1x1 pixels, got {height}x{width}")
    if picture.shape[:2] == (height, width):
        return picture
    if rule in _EIGHT_BIT:
        if picture.dtype != np.uint8:
            raise InputError(f"resize rule {rule!r} is defined on uint8 only, got {picture.dtype}")
        image = PILImage.fromarray(np.ascontiguousarray(picture))
        return np.asarray(image.resize((width, height), _EIGHT_BIT[rule]))
    values = picture.astype(np.float32)
    out = _filtered(values, height, width, rule) if rule in _ONE_ROUNDING else _two_neighbours(values, height, width)
    if picture.dtype != np.uint8:
        return out
    return (np.clip(out, 0, 255) if rule == "bilinear_truncated" else np.rint(np.clip(out, 0, 255))).astype(np.uint8)


def _filtered(values: NDArray[np.float32], height: int, width: int, rule: str) -> NDArray[np.float32]:
    """Each channel through Pillow's float resize, which keeps its sums unrounded between the passes."""
    channels = [PILImage.fromarray(np.ascontiguousarray(values[..., c])) for c in range(values.shape[2])]
    return np.stack([np.asarray(c.resize((width, height), _ONE_ROUNDING[rule])) for c in channels], axis=-1)


def _two_neighbours(values: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    top, bottom, down = _neighbours(values.shape[0], height)
    left, right, along = _neighbours(values.shape[1], width)
    down, along = down[:, None, None], along[None, :, None]
    rows = [(1 - along) * values[r][:, left] + along * values[r][:, right] for r in (top, bottom)]
    return (1 - down) * rows[0] + down * rows[1]


def _neighbours(count: int, wanted: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """Indices of the two source pixels of each of ``wanted`` pixels, and the second one's weight; all in float32."""
    scale = np.float32(count) / np.float32(wanted)
    at = np.maximum(scale * (np.arange(wanted, dtype=np.float32) + np.float32(0.5)) - np.float32(0.5), np.float32(0))
    low = np.minimum(at.astype(np.intp), count - 1)
    return low, np.minimum(low + 1, count - 1), (at - low).astype(np.float32)
