"""A contact sheet of what a model sees: the cameras as they arrive, and the canvas they become, each with its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image as PILImage
from PIL import ImageDraw, ImageFont

from cosmos_robot.contract import Contract
from cosmos_robot.images.canvas import compose_canvas, image_size
from cosmos_robot.images.checks import cameras_of
from cosmos_robot.types import Image, check_image

MARGIN, LABEL = 8, 18
INK, PAPER, FRAME = (30, 30, 30), (250, 250, 250), (220, 60, 30)


def model_sheet(contract: Contract, images: Mapping[str, Image], training: Image | None = None) -> PILImage.Image:
    """Cameras in the left column, the canvas the model of ``contract`` sees beside them at its own size.

    training: a canvas (H, W, 3) from the training data, drawn below for comparison by eye. Places are outlined where
    the canvas is the composed picture itself. Raises what ``compose_canvas`` raises.
    """
    canvas = compose_canvas(contract, images)
    height, width, tall, wide = image_size(contract.model.canvas)
    rows = [_labelled(images[n], _camera_label(contract, n)) for n in cameras_of(contract.model.canvas)]
    about = f"{contract.model.name} sees {height}x{width}, content {tall}x{wide}"
    seen = [_labelled(_outlined(contract, canvas), about)]
    if training is not None:
        seen.append(_labelled(check_image("training", training), "a training frame"))
    columns = [_stacked(rows), _stacked(seen)]
    sheet = PILImage.new(
        "RGB", (sum(c.width for c in columns) + 3 * MARGIN, max(c.height for c in columns) + 2 * MARGIN), PAPER
    )
    left = MARGIN
    for column in columns:
        sheet.paste(column, (left, MARGIN))
        left += column.width + MARGIN
    return sheet


def write_model_sheet(
    contract: Contract, images: Mapping[str, Image], path: str | Path, training: Image | None = None
) -> Path:
    """Write ``model_sheet`` as a PNG; returns its path."""
    path = Path(path)
    model_sheet(contract, images, training).save(path, format="PNG")
    return path


def _camera_label(contract: Contract, name: str) -> str:
    camera = contract.robot.camera(name)
    wanted = contract.model.canvas.orientation
    turned = "" if wanted == camera.orientation else f", arrives {camera.orientation}, seen {wanted}"
    return f"{name} {camera.height}x{camera.width}{turned}"


def _outlined(contract: Contract, canvas: Image) -> PILImage.Image:
    picture = PILImage.fromarray(np.ascontiguousarray(canvas))
    spec = contract.model.canvas
    if spec.tier or spec.composed:
        return picture
    draw = ImageDraw.Draw(picture)
    for place in spec.placements:
        box = place.to
        draw.rectangle((box.left, box.top, box.left + box.width - 1, box.top + box.height - 1), outline=FRAME)
        draw.text(
            (box.left + 3, box.top + 1), place.camera, fill=PAPER, stroke_width=1, stroke_fill=INK, font=_font(10)
        )
    return picture


def _labelled(picture: Image | PILImage.Image, text: str) -> PILImage.Image:
    image = picture if isinstance(picture, PILImage.Image) else PILImage.fromarray(np.ascontiguousarray(picture))
    width = max(image.width, round(_font(12).getlength(text)) + 2)
    out = PILImage.new("RGB", (width, image.height + LABEL), PAPER)
    ImageDraw.Draw(out).text((0, 0), text, fill=INK, font=_font(12))
    out.paste(image, (0, LABEL))
    return out


def _stacked(pictures: list[PILImage.Image]) -> PILImage.Image:
    height = sum(p.height for p in pictures) + MARGIN * (len(pictures) - 1)
    out = PILImage.new("RGB", (max(p.width for p in pictures), height), PAPER)
    top = 0
    for picture in pictures:
        out.paste(picture, (0, top))
        top += picture.height + MARGIN
    return out


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
