"""From cameras to the one canvas a model sees: the same code in training, simulation and serving."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from PIL import Image as PILImage

from cosmos_robot.contract import CanvasSpec, Contract
from cosmos_robot.errors import InputError
from cosmos_robot.types import Image, check_image


def compose_canvas(contract: Contract, images: Mapping[str, Image]) -> Image:
    """The canvas (H, W, 3) uint8 of ``contract`` from camera images.

    Only cameras with a place on the canvas are read, so a lazy mapping draws nothing else. Raises InputError on a
    missing camera or a picture whose size is not the contract's.
    """
    return place_on_canvas(contract.model.canvas, _checked(contract, images))


def place_on_canvas(canvas: CanvasSpec, images: Mapping[str, Image]) -> Image:
    """Crop each placed camera, resize by area average (PIL ``BOX``) and paste."""
    out = np.zeros((canvas.height, canvas.width, 3), np.uint8)
    for p in canvas.placements:
        part = images[p.camera][p.crop.top : p.crop.top + p.crop.height, p.crop.left : p.crop.left + p.crop.width]
        if part.shape[:2] != (p.to.height, p.to.width):
            picture = PILImage.fromarray(np.ascontiguousarray(part))
            part = np.asarray(picture.resize((p.to.width, p.to.height), PILImage.Resampling.BOX))
        out[p.to.top : p.to.top + p.to.height, p.to.left : p.to.left + p.to.width] = part
    return out


def _checked(contract: Contract, images: Mapping[str, Image]) -> dict[str, Image]:
    found = {}
    for name in dict.fromkeys(p.camera for p in contract.model.canvas.placements):
        if name not in images:
            raise InputError(f"camera {name!r} is missing; got {sorted(images)}")
        camera = contract.robot.camera(name)
        image = check_image(name, images[name])
        if image.shape[:2] != (camera.height, camera.width):
            raise InputError(
                f"camera {name!r}: expected {camera.height}x{camera.width} pixels, "
                f"got {image.shape[0]}x{image.shape[1]}"
            )
        found[name] = image
    return found
