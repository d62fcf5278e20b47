"""Random changes to training pictures: crop, turn, colours. One draw serves all cameras and moments of a sample.

Order, ranges and rounding are those of NVlabs/cosmos-policy (datasets/dataset_utils.py), which runs torchvision's
tensor operations on uint8; every colour step cuts fractions off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import Box
from cosmos_robot.errors import InputError
from cosmos_robot.images.resize import resize
from cosmos_robot.types import Image

Floats = NDArray[np.float32]
_LUMA = np.array([0.2989, 0.587, 0.114], np.float32)
_TO_BYTE = np.float32(255.999)


@dataclass(frozen=True)
class AugmentRange:
    """How far training pictures may be changed: factors lie in 1 +- range.

    crop_fraction: share of the area that is kept, brought back to size. rotate: degrees. hue: turns of the circle.
    """

    crop_fraction: float = 1.0
    rotate: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0


COSMOS_POLICY = AugmentRange(0.9, rotate=5.0, brightness=0.3, contrast=0.4, saturation=0.5, hue=0.05)
"""What the released Cosmos Policy checkpoints were trained with."""


@dataclass(frozen=True)
class Augmentation:
    """One draw. crop: the rectangle that is kept. rotate: degrees, counter-clockwise, black corners. hue: turns."""

    crop: Box | None = None
    rotate: float = 0.0
    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        if min(self.brightness, self.contrast, self.saturation) < 0 or not -0.5 <= self.hue <= 0.5:
            raise InputError(f"augmentation: factors must not be negative and hue lie in -0.5..0.5, got {self}")


def draw_augmentation(limits: AugmentRange, height: int, width: int, random: np.random.Generator) -> Augmentation:
    """Draw the changes of one sample whose pictures are ``height`` x ``width``."""
    tall, wide = (max(1, round(side * limits.crop_fraction**0.5)) for side in (height, width))
    top, left = (int(random.integers(0, margin + 1)) for margin in (height - tall, width - wide))

    def factor(limit: float) -> float:
        return float(random.uniform(1 - limit, 1 + limit))

    return Augmentation(
        Box(top=top, left=left, height=tall, width=wide),
        rotate=float(random.uniform(-limits.rotate, limits.rotate)),
        brightness=factor(limits.brightness),
        contrast=factor(limits.contrast),
        saturation=factor(limits.saturation),
        hue=float(random.uniform(-limits.hue, limits.hue)),
    )


def augment(picture: Image, change: Augmentation) -> Image:
    """``picture`` (H, W, 3) uint8 after crop and resize, rotation, brightness, contrast, saturation and hue."""
    height, width = picture.shape[:2]
    if (box := change.crop) is not None:
        if box.top + box.height > height or box.left + box.width > width:
            raise InputError(f"augmentation: crop {box} leaves the {height}x{width} picture")
        part = picture[box.top : box.top + box.height, box.left : box.left + box.width]
        picture = resize(part, height, width, "bilinear_antialias")
    if change.rotate:
        picture = _rotated(picture, change.rotate)
    picture = _mixed(picture, np.float32(0), change.brightness)
    picture = _mixed(picture, _grey(picture).astype(np.float32).mean(dtype=np.float32), change.contrast)
    picture = _mixed(picture, _grey(picture)[..., None].astype(np.float32), change.saturation)
    return _hue_turned(picture, change.hue)


def _rotated(picture: Image, degrees: float) -> Image:
    """Nearest pixel about the picture's centre; black where there is none."""
    height, width = picture.shape[:2]
    angle = np.deg2rad(-degrees)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    x = np.arange(width, dtype=np.float32)[None] - np.float32(width / 2 - 0.5)
    y = np.arange(height, dtype=np.float32)[:, None] - np.float32(height / 2 - 0.5)
    half_width, half_height = np.float32(width / 2), np.float32(height / 2)
    across = x * (cos / half_width) + y * (sin / half_width)
    down = x * (-sin / half_height) + y * (cos / half_height)
    column = np.rint(((across + 1) * width - 1) / 2).astype(np.intp)
    row = np.rint(((down + 1) * height - 1) / 2).astype(np.intp)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    found = picture[np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
    return np.asarray(np.where(inside[..., None], found, 0), np.uint8)


def _grey(picture: Image) -> Image:
    weighted = picture.astype(np.float32) * _LUMA
    return np.asarray(weighted[..., 0] + weighted[..., 1] + weighted[..., 2]).astype(np.uint8)


def _mixed(picture: Image, other: Floats | np.float32, share: float) -> Image:
    mixed: Floats = np.float32(share) * picture.astype(np.float32) + np.float32(1 - share) * other
    return np.clip(mixed, 0, 255).astype(np.uint8)


def _hue_turned(picture: Image, turns: float) -> Image:
    """Through hue, saturation and value, in float32, even where ``turns`` is 0: the way there and back rounds too."""
    colours = picture.astype(np.float32) / 255
    value, low = colours.max(-1), colours.min(-1)
    spread = value - low
    divisor = np.where(spread == 0, np.float32(1), spread)
    red, green, blue = np.moveaxis((value[..., None] - colours) / divisor[..., None], -1, 0)
    sixths = np.select(
        [value == colours[..., 0], value == colours[..., 1]], [blue - green, 2 + red - blue], 4 + green - red
    )
    hue = np.mod(np.fmod(sixths / 6 + 1, 1) + np.float32(turns), 1) * 6
    saturation = spread / np.where(spread == 0, np.float32(1), value)
    # A channel falls from full value to the lowest within a sixth of the circle, 2/6 after its own hue.
    sector = np.floor(hue)
    part = hue - sector
    lowest, falling = value * (1 - saturation), value * (1 - saturation * part)
    rising = value * (1 - saturation * (1 - part))
    order = np.stack([value, falling, lowest, lowest, rising, value])  # red, in each sector
    index = sector.astype(np.intp) % 6
    channels = [np.take_along_axis(order, ((index + shift) % 6)[None], 0)[0] for shift in (0, 4, 2)]
    turned: Floats = np.clip(np.stack(channels, -1), 0, 1) * _TO_BYTE
    return turned.astype(np.uint8)
