"""Pictures of recorded cases as this package takes them."""

from __future__ import annotations

from cosmos_robot.contract import Box, CanvasSpec, Placement
from cosmos_robot.images import auto_tier


def source_canvas(height: int, width: int, tier: str | int | None) -> CanvasSpec:
    """One picture of that size on the canvas of ``tier``, picked by its size if None."""
    whole = Box(top=0, left=0, height=height, width=width)
    return CanvasSpec(
        height=height,
        width=width,
        placements=(Placement(camera="camera", crop=whole, to=whole),),
        tier=str(tier) if tier is not None else auto_tier(height, width),
        pad="reflect",
    )
