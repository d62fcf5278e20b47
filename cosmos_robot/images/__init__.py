"""Pictures: from cameras to the one canvas a model sees, by the contract and nothing else."""

from __future__ import annotations

from cosmos_robot.images.canvas import (
    CanvasComposer,
    arriving,
    canvas_parts,
    compose_canvas,
    fit_on_canvas,
    image_size,
    model_size,
    one_above_two,
    place_on_canvas,
    side_by_side,
    video_size,
)
from cosmos_robot.images.checks import cameras_of, checked_pictures, extra_cameras, unit_float_to_uint8
from cosmos_robot.images.resize import resize
from cosmos_robot.images.steps import (
    Fitted,
    centre_crop,
    crop_and_restore,
    downscale_and_pad,
    jpeg_round_trip,
    latent_content,
    letterbox,
    model_values,
    remove_padding,
    turn,
)
from cosmos_robot.images.tiers import TIERS, aspect_name, auto_tier, tier_size

__all__ = [
    "TIERS",
    "CanvasComposer",
    "Fitted",
    "arriving",
    "aspect_name",
    "auto_tier",
    "cameras_of",
    "canvas_parts",
    "centre_crop",
    "checked_pictures",
    "compose_canvas",
    "crop_and_restore",
    "downscale_and_pad",
    "extra_cameras",
    "fit_on_canvas",
    "image_size",
    "jpeg_round_trip",
    "latent_content",
    "letterbox",
    "model_size",
    "model_values",
    "one_above_two",
    "place_on_canvas",
    "remove_padding",
    "resize",
    "side_by_side",
    "tier_size",
    "turn",
    "unit_float_to_uint8",
    "video_size",
]
