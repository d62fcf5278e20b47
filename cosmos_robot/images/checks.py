"""What is wrong with the pictures that arrive, said by camera name before a model sees them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import CameraSpec, CanvasSpec, Contract
from cosmos_robot.errors import InputError, nearest
from cosmos_robot.types import Image, check_image

ASPECT_TOLERANCE = 0.02


def checked_pictures(contract: Contract, images: Mapping[str, Image]) -> dict[str, Image]:
    """The pictures of the cameras that have a place on the canvas, checked.

    Other cameras are never read, so a lazy mapping draws nothing else. Raises InputError for a camera that is missing
    (naming the nearest one there is) and for a picture that is not uint8 RGB of the contract's size.
    """
    found: dict[str, Image] = {}
    for name in cameras_of(contract.model.canvas):
        if name not in images:
            near = nearest(name, images)
            hint = f"; rename {near[0]!r} to {name!r} if that is what it shows" if near else ""
            raise InputError(f"camera {name!r} is missing; got {sorted(images)}{hint}")
        picture = check_image(name, images[name])
        check_size(contract.robot.camera(name), picture, contract.model.canvas)
        found[name] = picture
    return found


def cameras_of(canvas: CanvasSpec) -> tuple[str, ...]:
    """Names of the cameras on ``canvas``, each once, in the order of their places."""
    return tuple(dict.fromkeys(p.camera for p in canvas.placements))


def extra_cameras(contract: Contract, images: Mapping[str, Image]) -> tuple[str, ...]:
    """Names in ``images`` that are neither on the canvas nor among the robot's cameras, in order. Reads no picture."""
    known = {*cameras_of(contract.model.canvas), *(camera.name for camera in contract.robot.cameras)}
    return tuple(name for name in images if name not in known)


def check_size(camera: CameraSpec, picture: Image, canvas: CanvasSpec) -> None:
    """Raise InputError if ``picture`` (H, W, 3) is not of ``camera``'s size, saying how it probably came about."""
    got, expected = picture.shape[:2], (camera.height, camera.width)
    if got == expected:
        return
    places = {(p.to.height, p.to.width) for p in canvas.placements if p.camera == camera.name}
    message = f"camera {camera.name!r}: expected {expected[0]}x{expected[1]} pixels, got {got[0]}x{got[1]}"
    aspect, wanted = got[1] / got[0], expected[1] / expected[0]
    if got in places or got == (canvas.height, canvas.width):
        message += "; that is already the size the model sees, so resizing it here would be the second resize"
    elif abs(aspect / wanted - 1) > ASPECT_TOLERANCE:
        message += f"; width over height is {aspect:.3f} instead of {wanted:.3f}, so it was squeezed, cropped or padded"
    else:
        message += "; same aspect ratio, so it was resized before"
    raise InputError(f"{message}. Send the camera's own picture, or change the camera's size in the contract")


def unit_float_to_uint8(name: str, picture: NDArray[np.floating]) -> Image:
    """A picture (H, W, 3) of floats known to lie in 0..1 as uint8: x * 255, rounded half to even.

    For a caller who knows the range; nothing converts on its own. Raises InputError outside 0..1 and for NaN.
    """
    values = np.asarray(picture)
    if not np.issubdtype(values.dtype, np.floating):
        raise InputError(f"image {name!r}: expected floats in 0..1, got {values.dtype}")
    if values.ndim != 3 or values.shape[2] != 3:
        raise InputError(f"image {name!r}: expected shape (H, W, 3), got {values.shape}")
    low, high = values.min(initial=0), values.max(initial=0)
    if not (np.isfinite(values).all() and low >= 0 and high <= 1):
        raise InputError(f"image {name!r}: expected floats in 0..1, got {low} to {high}; say what its range is")
    return np.asarray(np.rint(values * 255), np.uint8)
