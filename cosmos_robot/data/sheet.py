"""A picture of what was recorded: one row per episode, time from left to right, each camera below the other."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage
from PIL import ImageDraw, ImageFont

from cosmos_robot.data.episodes import Episode, EpisodeInfo
from cosmos_robot.errors import InputError

MARGIN = 6
CAPTION_WIDTH = 190
INK, PAPER = (30, 30, 30), (250, 250, 250)


def spread(count: int, wanted: int) -> list[int]:
    """At most ``wanted`` indices below ``count``, evenly spread, first and last among them."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, wanted))})


@dataclass(frozen=True, eq=False)
class Strip:
    """One line of a sheet: a caption, the rows that are shown, and the pictures (n, H, W, 3) of each camera."""

    caption: str
    rows: Sequence[int]
    pictures: Mapping[str, NDArray[np.uint8]]


def contact_sheet(episodes: Iterable[Episode], *, columns: int = 8, size: int = 96) -> PILImage.Image:
    """Draw ``columns`` moments of every episode, each picture ``size`` pixels high, with a caption on the left.

    Raises InputError if there are no episodes.
    """
    return draw_sheet((_strip(episode, columns) for episode in episodes), columns=columns, size=size)


def draw_sheet(strips: Iterable[Strip], *, columns: int = 8, size: int = 96) -> PILImage.Image:
    """Strips of at most ``columns`` moments below each other. Raises InputError if there are none."""
    drawn = [_drawn(strip, columns, size) for strip in strips]
    if not drawn:
        raise InputError("contact sheet: there are no episodes")
    width = max(strip.width for strip in drawn) + 2 * MARGIN
    sheet = PILImage.new("RGB", (width, sum(strip.height + MARGIN for strip in drawn) + MARGIN), PAPER)
    top = MARGIN
    for strip in drawn:
        sheet.paste(strip, (MARGIN, top))
        top += strip.height + MARGIN
    return sheet


def write_sheet(
    episodes: Sequence[Episode], path: str | Path, *, rows: int = 24, columns: int = 8, size: int = 96
) -> Path:
    """Write the contact sheet of up to ``rows`` episodes, evenly spread over ``episodes``, as a PNG; returns its path.

    Give an ``EpisodeStore`` to read only the episodes that are drawn.
    """
    path = Path(path)
    contact_sheet((episodes[i] for i in spread(len(episodes), rows)), columns=columns, size=size).save(path)
    return path


def _strip(episode: Episode, columns: int) -> Strip:
    rows = spread(len(episode), columns)
    return Strip(_caption(episode), rows, {name: frames[rows] for name, frames in episode.images.items()})


def _drawn(strip: Strip, columns: int, size: int) -> PILImage.Image:
    pictures = [[_scaled(frame, size) for frame in frames] for frames in strip.pictures.values()]
    step = max((picture.width for line in pictures for picture in line), default=size) + 2
    drawn = PILImage.new("RGB", (CAPTION_WIDTH + step * columns, size * max(1, len(pictures))), PAPER)
    draw = ImageDraw.Draw(drawn)
    draw.multiline_text((0, 0), strip.caption, fill=INK, font=ImageFont.load_default(12), spacing=2)
    for line, pictures_of_camera in enumerate(pictures):
        for column, picture in enumerate(pictures_of_camera):
            drawn.paste(picture, (CAPTION_WIDTH + column * step, line * size))
            if line == 0:
                corner = (CAPTION_WIDTH + column * step + 2, 1)
                draw.text(corner, str(strip.rows[column]), fill=PAPER, stroke_width=1, stroke_fill=INK)
    return drawn


def _caption(episode: Episode) -> str:
    info = episode.info
    about = [
        f"{info.suite}/{info.task}  seed {info.seed}",
        f"{info.source}, {_outcome(info)}",
    ]
    return "\n".join([*textwrap.wrap(episode.instruction, 30), *about, f"{len(episode)} rows", *episode.images])


def _outcome(info: EpisodeInfo) -> str:
    if info.success or not info.score:
        return "success" if info.success else "failure"
    return f"failure, score {info.score:.2f}"


def _scaled(frame: np.ndarray, height: int) -> PILImage.Image:
    width = round(frame.shape[1] * height / frame.shape[0])
    return PILImage.fromarray(frame).resize((width, height), PILImage.BOX)
