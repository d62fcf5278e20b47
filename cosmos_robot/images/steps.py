"""Single steps on one picture (H, W, 3): turning, JPEG, cropping, fitting, padding. None of them knows a contract."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage

from cosmos_robot.contract import Orientation, ResizeRule
from cosmos_robot.errors import InputError
from cosmos_robot.images.resize import Array, resize

_FLIPS: dict[Orientation, tuple[bool, bool]] = {
    "upright": (False, False),
    "flip_vertical": (True, False),
    "mirror": (False, True),
    "rot180": (True, True),
}
"""Whether rows and whether columns are reversed, relative to the true upright picture."""


def turn(picture: Array, arrives: Orientation, wanted: Orientation) -> Array:
    """``picture`` (H, W, ...) that ``arrives`` in one orientation, in the one that is ``wanted``."""
    (rows_a, columns_a), (rows_b, columns_b) = _FLIPS[arrives], _FLIPS[wanted]
    return picture[:: -1 if rows_a != rows_b else 1, :: -1 if columns_a != columns_b else 1]


def jpeg_round_trip(picture: Array, quality: int) -> Array:
    """``picture`` (H, W, 3) uint8 after Pillow's JPEG encoder of ``quality`` (1 to 100, 4:2:0) and decoder."""
    if not 1 <= quality <= 100:
        raise InputError(f"JPEG quality: expected 1 to 100, got {quality}")
    buffer = io.BytesIO()
    PILImage.fromarray(np.ascontiguousarray(picture)).save(buffer, format="JPEG", quality=quality)
    return np.asarray(PILImage.open(buffer))


def centre_crop(picture: Array, fraction: float) -> Array:
    """The centre of ``picture`` that holds ``fraction`` of its area: sides int(side * sqrt(fraction)).

    An odd margin is halved and rounded half to even, so that 1.5 pixels become 2 above and 1 below.
    """
    if not 0 < fraction <= 1:
        raise InputError(f"centre crop: expected a share of the area in (0, 1], got {fraction}")
    height, width = (max(1, int(side * fraction**0.5)) for side in picture.shape[:2])
    top, left = round((picture.shape[0] - height) / 2), round((picture.shape[1] - width) / 2)
    return picture[top : top + height, left : left + width]


def crop_and_restore(picture: Array, fraction: float, rule: ResizeRule = "bilinear_antialias") -> Array:
    """``centre_crop``, then back to the size it came in: what a policy trained on random crops sees at test time."""
    return resize(centre_crop(picture, fraction), picture.shape[0], picture.shape[1], rule)


@dataclass(frozen=True)
class Fitted:
    """A picture on its canvas, and where its content lies (pixels).

    canvas: (H, W, 3). top, left, height, width: the content's rectangle on it.
    """

    canvas: Array
    top: int
    left: int
    height: int
    width: int

    @property
    def image_size(self) -> tuple[int, int, int, int]:
        """Canvas height, canvas width, content height, content width: Cosmos 3's ``image_size``."""
        return self.canvas.shape[0], self.canvas.shape[1], self.height, self.width

    @property
    def content(self) -> Array:
        """The canvas without what was added to it."""
        return self.canvas[self.top : self.top + self.height, self.left : self.left + self.width]


def downscaled_size(height: int, width: int, canvas_height: int, canvas_width: int) -> tuple[int, int]:
    """The (height, width) of a picture shrunk, never enlarged, to lie within a canvas; halves are rounded up."""
    scale = min(canvas_width / width, canvas_height / height, 1.0)
    return int(scale * height + 0.5), int(scale * width + 0.5)


def downscale_and_pad(
    picture: Array,
    height: int,
    width: int,
    *,
    pad: Literal["black", "reflect"] = "reflect",
    rule: ResizeRule = "bicubic_antialias",
) -> Fitted:
    """``picture`` in the top left corner of a ``height`` x ``width`` canvas, shrunk if it has to be, never enlarged.

    ``reflect`` mirrors the content about its last row and column without repeating them, and repeats the last row and
    column where either margin is at least as long as the content (NVIDIA/cosmos-framework, action/utils/transforms.py).
    """
    tall, wide = downscaled_size(picture.shape[0], picture.shape[1], height, width)
    if not (tall and wide):
        raise InputError(
            f"a picture of {picture.shape[:2]} pixels vanishes on a {height}x{width} canvas; crop it first"
        )
    content = resize(picture, tall, wide, rule)
    below, right = height - tall, width - wide
    margins = [(0, below), (0, right), *[(0, 0)] * (picture.ndim - 2)]
    if pad == "black":
        canvas = np.pad(content, margins)
    else:
        canvas = np.pad(content, margins, mode="edge" if below >= tall or right >= wide else "reflect")
    return Fitted(canvas, 0, 0, tall, wide)


def letterbox(picture: Array, height: int, width: int, rule: ResizeRule) -> Fitted:
    """``picture`` as large as it fits with its aspect ratio kept, in the middle, the rest black.

    An odd margin leaves the extra row or column at the bottom or right.
    """
    scale = min(height / picture.shape[0], width / picture.shape[1])
    tall = min(height, max(1, round(picture.shape[0] * scale)))
    wide = min(width, max(1, round(picture.shape[1] * scale)))
    canvas = np.zeros((height, width, *picture.shape[2:]), picture.dtype)
    top, left = (height - tall) // 2, (width - wide) // 2
    canvas[top : top + tall, left : left + wide] = resize(picture, tall, wide, rule)
    return Fitted(canvas, top, left, tall, wide)


def remove_padding(canvas: Array, image_size: tuple[int, int, int, int]) -> Array:
    """The content of a canvas (H, W, ...) by its ``image_size``; raises InputError if they do not belong together."""
    height, width, tall, wide = image_size
    if canvas.shape[:2] != (height, width) or not (0 < tall <= height and 0 < wide <= width):
        raise InputError(f"image_size {image_size} does not fit a canvas of {canvas.shape[0]}x{canvas.shape[1]} pixels")
    return canvas[:tall, :wide]


def latent_content(image_size: tuple[int, int, int, int], pixels_per_latent: int = 16) -> tuple[int, int]:
    """Rows and columns of latents that hold content: floor(content / ``pixels_per_latent``). The rest is cut off."""
    return image_size[2] // pixels_per_latent, image_size[3] // pixels_per_latent


def model_values(pixels: Array, *, bfloat16: bool = False) -> NDArray[np.float32]:
    """uint8 of any shape as the network takes it: x / 127.5 - 1, float32; each step rounded to bfloat16 if asked."""
    values = pixels.astype(np.float32) / np.float32(127.5)
    return _bfloat16(_bfloat16(values) - 1) if bfloat16 else values - 1


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The nearest bfloat16, half to even, as float32; finite values only."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
