"""3-D rotary positions (t, h, w) of Cosmos 3, all float32.

Text counts 0, 1, 2, ... on all three axes. Generation tokens start at ``text length + margin``: latent frame i of a
video at ``fps`` sits ``base_fps * i / fps`` later, action row j ``base_fps / 4 * (j + start) / fps`` later (four
control steps make one latent frame). Formulas: cosmos-framework, sequence_packing/mrope.py.

The order of operations is that of the reference: near 15000 a float32 resolves only 1e-3, and another order would
round differently.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cosmos_robot.backbone.cosmos3.layout import TEMPORAL_COMPRESSION, TokenPlan, check_fps


def text_positions(count: int, offset: float = 0) -> Tensor:
    """(3, count): the same running number on each axis, from ``offset``."""
    return (torch.arange(count, dtype=torch.float32) + offset).expand(3, -1)


def plan_positions(plan: TokenPlan, text_length: int, patch: int, margin: int, base_fps: float = 24.0) -> Tensor:
    """(3, tokens) of a plan's generation tokens behind ``text_length`` text tokens. ``patch``: latent cells per side of
    a vision token. Video and actions share one origin."""
    frames, height, width = plan.latent_grid
    offset = text_length + margin
    vision = vision_positions(frames, -(-height // patch), -(-width // patch), plan.fps, offset, base_fps)
    rows = action_positions(plan.rows, plan.action_fps or plan.fps, offset, plan.action_start, base_fps)
    return torch.cat([vision, rows], dim=1)


def vision_positions(frames: int, height: int, width: int, fps: float, offset: float, base_fps: float = 24.0) -> Tensor:
    """(3, frames * height * width) of a patch grid, row-major; rows and columns count from 0."""
    return grid_positions((frames, height, width), offset, fps, base_fps)


def action_positions(rows: int, fps: float, offset: float, start: int, base_fps: float = 24.0) -> Tensor:
    """(3, rows): row j stands at control step ``j + start`` of the clock of ``fps``; h = w = 0."""
    return grid_positions((rows, 1, 1), offset, fps, base_fps, 1, TEMPORAL_COMPRESSION, start)


def grid_positions(
    grid: tuple[int, int, int],
    offset: float,
    fps: float | None,
    base_fps: float = 24.0,
    compression: int = TEMPORAL_COMPRESSION,
    base_compression: int | None = None,
    start: int = 0,
    reset_spatial: bool = True,
) -> Tensor:
    """(3, t * h * w) of any grid, row-major: time ``(index + start) / (fps / compression) * (base_fps /
    base_compression) + offset``.

    fps: None counts whole steps from the offset without its fraction. base_compression: ``compression`` if None.
    reset_spatial: whether rows and columns count from 0, or from the whole part of the offset.
    """
    index = torch.arange(grid[0], dtype=torch.float32)
    if fps is None:
        time = index + int(offset) + start
    else:
        check_fps(fps)
        time = (index + start) / (fps / compression) * (base_fps / (base_compression or compression)) + offset
    first = 0 if reset_spatial else int(offset)
    row, column = (torch.arange(first, first + side, dtype=torch.float32) for side in grid[1:])
    return torch.stack(torch.meshgrid(time, row, column, indexing="ij")).flatten(1)


def rotary_angles(positions: Tensor, head_dim: int, theta: float, axes: tuple[int, int, int]) -> Tensor:
    """(3, N) positions to (N, head_dim / 2) angles, radians.

    Frequency k belongs to h where k = 1 mod 3 and k < 3 * axes[1], to w where k = 2 mod 3 and k < 3 * axes[2], to t
    otherwise (interleaved sections of Qwen3-VL).
    """
    frequencies = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    axis = torch.zeros(head_dim // 2, dtype=torch.long)
    for number in (1, 2):
        axis[number : 3 * axes[number] : 3] = number
    return positions.to(torch.float32)[axis].T * frequencies
