"""Pictures cropped, turned and recoloured for training (cosmos-policy: dataset_utils.py): one draw for a whole episode,
so that a moment and the one after it change alike.

Axis legend: N pictures, H W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cosmos_robot.contract import CanvasSpec
from cosmos_robot.errors import InputError

CROP_AREA: Final = 0.9
DEGREES: Final = 5.0
BRIGHTNESS: Final = 0.3
CONTRAST: Final = 0.4
SATURATION: Final = 0.5
HUE: Final = 0.05
"""Largest changes, the published "stronger" set; hue in turns of the colour circle."""
_GREY = (0.2989, 0.587, 0.114)


@dataclass(frozen=True)
class PictureChange:
    """One draw. left, top: of the crop, as shares of what it leaves free. degrees: of the turn. brightness, contrast,
    saturation: factors. hue: turns."""

    left: float
    top: float
    degrees: float
    brightness: float
    contrast: float
    saturation: float
    hue: float


def draw_change(rng: np.random.Generator) -> PictureChange:
    """A change within the published ranges."""
    around = lambda width: float(rng.uniform(-width, width))  # noqa: E731
    return PictureChange(
        *(float(v) for v in rng.uniform(size=2)), around(DEGREES), 1 + around(BRIGHTNESS), 1 + around(CONTRAST),
        1 + around(SATURATION), around(HUE),
    )  # fmt: skip


def changed(pictures: NDArray[np.uint8], change: PictureChange) -> NDArray[np.uint8]:
    """(N, H, W, 3) uint8, all changed alike: cropped to ``CROP_AREA`` of the area and brought to size, turned about the
    middle (black outside), recoloured."""
    if pictures.ndim != 4 or pictures.shape[3] != 3 or pictures.dtype != np.uint8:
        raise InputError(f"pictures: expected (N, H, W, 3) uint8, got {pictures.shape} {pictures.dtype}")
    x = torch.from_numpy(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2).float() / 255
    x = _recoloured(F.grid_sample(x, _grid(x, change), "bilinear", "zeros", align_corners=False), change)
    return (x * 255).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()


def changed_canvases(canvas: CanvasSpec, canvases: NDArray[np.uint8], change: PictureChange) -> NDArray[np.uint8]:
    """Canvases (N, H, W, 3) with the part of each camera ``changed`` by itself."""
    out = np.array(canvases)
    for place in canvas.placements:
        box = place.to
        here = np.s_[:, box.top : box.top + box.height, box.left : box.left + box.width]
        out[here] = changed(out[here], change)
    return out


def _grid(x: Tensor, change: PictureChange) -> Tensor:
    """Where each pixel is read, (N, H, W, 2) from -1 to 1."""
    height, width = x.shape[2:]
    side, angle = CROP_AREA**0.5, np.deg2rad(change.degrees)
    free = 1 - side
    across, down = free * (2 * change.left - 1), free * (2 * change.top - 1)
    cos, sin, aspect = np.cos(angle), np.sin(angle), height / width
    rows = [[side * cos, -side * sin * aspect, across], [side * sin / aspect, side * cos, down]]
    theta = torch.tensor(rows, dtype=x.dtype).expand(len(x), 2, 3)
    return F.affine_grid(theta, list(x.shape), align_corners=False)


def _recoloured(x: Tensor, change: PictureChange) -> Tensor:
    weights = torch.tensor(_GREY).view(1, 3, 1, 1)
    x = (x * change.brightness).clamp(0, 1)
    middle = (x * weights).sum(1, keepdim=True).mean((1, 2, 3), keepdim=True)
    x = (middle + (x - middle) * change.contrast).clamp(0, 1)
    grey = (x * weights).sum(1, keepdim=True)
    x = (grey + (x - grey) * change.saturation).clamp(0, 1)
    return torch.einsum("ij,njhw->nihw", _hue_turn(change.hue), x).clamp(0, 1)


def _hue_turn(turns: float) -> Tensor:
    """The rotation (3, 3) of colours about the grey axis: for small turns, what a shift of hue does."""
    angle = 2 * np.pi * turns
    axis = np.full(3, 3**-0.5)
    cross = np.cross(np.eye(3), axis)
    turn = np.cos(angle) * np.eye(3) + np.sin(angle) * cross.T + (1 - np.cos(angle)) * np.outer(axis, axis)
    return torch.tensor(turn, dtype=torch.float32)
