"""Cosmos 3's table of canvas sizes: five or six shapes a tier, the nearest by height over width.

Sizes are facts of the public NVIDIA/cosmos-framework (data/generator/utils.py, utils/generator/image_resize.py). This
module knows nothing of contracts.
"""

from __future__ import annotations

import math

from cosmos_robot.errors import InputError, UnknownNameError

Shape = tuple[int, int]
"""Width and height in pixels, in the order of the public table."""


def _tier(square: int, wide43: Shape, wide169: Shape) -> dict[str, Shape]:
    return {
        "1,1": (square, square),
        "4,3": wide43,
        "3,4": (wide43[1], wide43[0]),
        "16,9": wide169,
        "9,16": (wide169[1], wide169[0]),
    }


TIERS: dict[str, dict[str, Shape]] = {
    "256": _tier(256, (320, 256), (320, 192)),
    "480": {**_tier(640, (736, 544), (832, 480)), "2,3": (512, 768)},
    "704": _tier(960, (1088, 832), (1280, 704)),
    "720": _tier(960, (1104, 832), (1280, 720)),
    "768": _tier(1024, (1184, 880), (1360, 768)),
    "1080": _tier(1440, (1664, 1248), (1920, 1080)),
    "1280": _tier(1712, (1968, 1472), (2272, 1280)),
    "2048": _tier(2728, (3160, 2368), (3640, 2048)),
    "gt_2048": _tier(5464, (6304, 4728), (7280, 4096)),
}
"""Tier to aspect ratio ("width,height") to (width, height)."""

_BY_SHORT_SIDE = ((256, "256"), (640, "480"), (960, "720"), (2048, "768"))


def tier_size(height: int, width: int, tier: str | int) -> tuple[int, int]:
    """The (height, width) of ``tier``'s canvas whose height over width is nearest; the first one where two tie.

    Raises UnknownNameError for a tier the table lacks and InputError for a size that is not positive.
    """
    _positive(height, width)
    if str(tier) not in TIERS:
        raise UnknownNameError("canvas tier", str(tier), TIERS)
    shapes = TIERS[str(tier)].values()
    best = min(shapes, key=lambda shape: abs(height / width - shape[1] / shape[0]))
    return best[1], best[0]


def auto_tier(height: int, width: int) -> str:
    """The tier that Cosmos 3 picks for a picture when none is named: by its shorter side.

    The five shapes of tier 768 keep their tier. Raises InputError for a shorter side over 2048 pixels.
    """
    _positive(height, width)
    if (width, height) in TIERS["768"].values():
        return "768"
    for limit, tier in _BY_SHORT_SIDE:
        if min(height, width) <= limit:
            return tier
    raise InputError(f"no canvas tier for {height}x{width}: expected a shorter side of at most 2048; resize it first")


def aspect_name(height: int, width: int) -> str:
    """The aspect ratio as prompts state it, "width,height": the table's name of a canvas it holds, else reduced."""
    _positive(height, width)
    for shapes in TIERS.values():
        for name, shape in shapes.items():
            if shape == (width, height):
                return name
    divisor = math.gcd(width, height)
    return f"{width // divisor},{height // divisor}"


def _positive(height: int, width: int) -> None:
    if height < 1 or width < 1:
        raise InputError(f"expected a height and width of at least 1 pixel, got {height}x{width}")
