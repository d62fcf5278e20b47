"""From cameras to the one picture a model sees: the same code in training, simulation and serving."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from cosmos_robot.contract import Box, CanvasSpec, Contract, ModelSpec, Orientation, Placement, ResizeRule, Size
from cosmos_robot.errors import InputError
from cosmos_robot.images.checks import cameras_of, checked_pictures, extra_cameras
from cosmos_robot.images.resize import Array, resize
from cosmos_robot.images.steps import (
    Fitted,
    crop_and_restore,
    downscale_and_pad,
    downscaled_size,
    jpeg_round_trip,
    latent_content,
    letterbox,
    turn,
)
from cosmos_robot.images.tiers import tier_size
from cosmos_robot.types import Image

LOG = logging.getLogger(__name__)

LATENT_CELL = 16
"""Sides in pixels of what one latent of Cosmos 3's autoencoder shows."""


class CanvasComposer:
    """``compose_canvas`` of one contract, which also warns once of each camera that has no place and is ignored."""

    def __init__(self, contract: Contract):
        self.contract = contract
        self._told: set[str] = set()

    def __call__(self, images: Mapping[str, Image]) -> Image:
        """As ``compose_canvas``."""
        extra = [name for name in extra_cameras(self.contract, images) if name not in self._told]
        if extra:
            self._told.update(extra)
            placed = list(cameras_of(self.contract.model.canvas))
            LOG.warning("cameras %s have no place on the model's canvas (%s) and are ignored", extra, placed)
        return compose_canvas(self.contract, images)


def compose_canvas(contract: Contract, images: Mapping[str, Image]) -> Image:
    """The picture (H, W, 3) uint8 that the model of ``contract`` sees, from camera images.

    Only cameras with a place on the canvas are read, so a lazy mapping draws nothing else. Raises InputError on a
    missing camera or a picture that is not uint8 RGB of the contract's size.
    """
    pictures = checked_pictures(contract, images)
    return place_on_canvas(contract.model.canvas, pictures, arriving(contract))


def arriving(contract: Contract) -> dict[str, Orientation]:
    """Camera name to the orientation in which its pictures arrive."""
    return {camera.name: camera.orientation for camera in contract.robot.cameras}


def place_on_canvas(
    canvas: CanvasSpec, images: Mapping[str, Array], orientations: Mapping[str, Orientation] | None = None
) -> Array:
    """Every step of ``canvas`` on pictures (H, W, 3) whose sizes are right; ``CanvasSpec`` gives the order.

    orientations: how each camera's pictures arrive; upright where nothing is said.
    """
    return fit_on_canvas(canvas, images, orientations).canvas


def fit_on_canvas(
    canvas: CanvasSpec, images: Mapping[str, Array], orientations: Mapping[str, Orientation] | None = None
) -> Fitted:
    """As ``place_on_canvas``, with the rectangle of the content beside it."""
    source = _composed(canvas, images, orientations or {})
    if canvas.tier is None:
        return Fitted(source, 0, 0, canvas.height, canvas.width)
    return downscale_and_pad(source, *model_size(canvas), pad=canvas.pad)


def model_size(canvas: CanvasSpec) -> tuple[int, int]:
    """Height and width of the picture the model sees: the tier's canvas, or the composed picture without a tier."""
    return tier_size(canvas.height, canvas.width, canvas.tier) if canvas.tier else (canvas.height, canvas.width)


def image_size(canvas: CanvasSpec) -> tuple[int, int, int, int]:
    """Canvas height, canvas width, content height, content width of ``canvas``: what latents are cropped by."""
    height, width = model_size(canvas)
    return (height, width, *downscaled_size(canvas.height, canvas.width, height, width))


def video_size(model: ModelSpec) -> tuple[int, int]:
    """Height and width of the pictures that ``model`` predicts, the top left of its canvas: latent frames show all of
    it, a video the whole latent cells of its content (``latent_content``), without padding."""
    if model.frames:
        return model_size(model.canvas)
    rows, columns = latent_content(image_size(model.canvas), LATENT_CELL)
    return rows * LATENT_CELL, columns * LATENT_CELL


def canvas_parts(canvas: CanvasSpec, picture: Array) -> list[Array]:
    """The places of a composed ``picture`` (H, W, 3), cut apart again in their order. Raises InputError with a tier."""
    if canvas.tier or canvas.composed:
        raise InputError("a canvas that was resized after composing cannot be cut into its places")
    boxes = (p.to for p in canvas.placements)
    return [picture[b.top : b.top + b.height, b.left : b.left + b.width] for b in boxes]


def _composed(canvas: CanvasSpec, images: Mapping[str, Array], orientations: Mapping[str, Orientation]) -> Array:
    size = canvas.composed or Size(height=canvas.height, width=canvas.width)
    prepared: dict[str, Array] = {}
    out = np.zeros((size.height, size.width, 3), np.uint8)
    for place in canvas.placements:
        if place.camera not in prepared:
            picture = turn(images[place.camera], orientations.get(place.camera, "upright"), canvas.orientation)
            prepared[place.camera] = jpeg_round_trip(picture, canvas.jpeg_quality) if canvas.jpeg_quality else picture
        box = place.to
        out[box.top : box.top + box.height, box.left : box.left + box.width] = _part(
            canvas, place, prepared[place.camera]
        )
    return resize(out, canvas.height, canvas.width, canvas.resize)


def _part(canvas: CanvasSpec, place: Placement, picture: Array) -> Array:
    crop, to = place.crop, place.to
    part = picture[crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
    if canvas.fit == "letterbox":
        part = letterbox(part, to.height, to.width, canvas.resize).canvas
    else:
        part = resize(part, to.height, to.width, canvas.resize)
    return crop_and_restore(part, canvas.crop_fraction) if canvas.crop_fraction else part


def side_by_side(cameras: Mapping[str, Size], height: int, width: int) -> tuple[Placement, ...]:
    """Places of ``height`` x ``width`` pixels, one whole camera each, from left to right."""
    return tuple(
        Placement(
            camera=name,
            crop=Box(top=0, left=0, height=size.height, width=size.width),
            to=Box(top=0, left=i * width, height=height, width=width),
        )
        for i, (name, size) in enumerate(cameras.items())
    )


def one_above_two(
    cameras: Mapping[str, Size], *, keep_aspect: bool = False, resize_rule: ResizeRule = "bilinear_truncated"
) -> CanvasSpec:
    """The composition of DROID: the first camera at full size, the other two below it at half its width.

    cameras: names to sizes, in order top, left, right. keep_aspect: the lower two keep their own aspect ratio instead
    of taking half the height of the first. Raises InputError for an odd width, which two halves cannot fill, for
    another number of cameras, and for lower pictures of two heights.
    """
    if len(cameras) != 3:
        raise InputError(f"one above two: expected three cameras, got {list(cameras)}")
    (top_name, top), *lower = cameras.items()
    if top.width % 2:
        raise InputError(f"one above two: camera {top_name!r} is {top.width} pixels wide; expected an even width")
    half = top.width // 2
    heights = [round(s.height * half / s.width) if keep_aspect else top.height // 2 for _, s in lower]
    if heights[0] != heights[1]:
        raise InputError(f"one above two: the lower pictures would be {heights} pixels high; expected one height")
    placed = [_whole(top_name, top, 0, 0, top.height, top.width)]
    placed += [_whole(n, s, top.height, i * half, heights[i], half) for i, (n, s) in enumerate(lower)]
    return CanvasSpec(height=top.height + heights[0], width=top.width, placements=tuple(placed), resize=resize_rule)


def _whole(name: str, size: Size, top: int, left: int, height: int, width: int) -> Placement:
    crop = Box(top=0, left=0, height=size.height, width=size.width)
    return Placement(camera=name, crop=crop, to=Box(top=top, left=left, height=height, width=width))
