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

from cosmos_robot.errors import InputError

TEMPORAL_COMPRESSION = 4
"""Pixel frames (and control steps) per latent frame of the Wan VAE."""


def text_positions(count: int) -> Tensor:
    """(3, count): the same running number on each axis."""
    return torch.arange(count, dtype=torch.float32).expand(3, -1)


def vision_positions(frames: int, height: int, width: int, fps: float, offset: float, base_fps: float = 24.0) -> Tensor:
    """(3, frames * height * width) of a patch grid, row-major; rows and columns count from 0."""
    _check_fps(fps)
    index = torch.arange(frames, dtype=torch.float32)
    time = index / (fps / TEMPORAL_COMPRESSION) * (base_fps / TEMPORAL_COMPRESSION) + offset
    row, column = (torch.arange(side, dtype=torch.float32) for side in (height, width))
    return torch.stack(torch.meshgrid(time, row, column, indexing="ij")).flatten(1)


def action_positions(rows: int, fps: float, offset: float, start: int, base_fps: float = 24.0) -> Tensor:
    """(3, rows): row j stands at control step ``j + start`` of the video's clock; h = w = 0."""
    _check_fps(fps)
    time = (torch.arange(rows, dtype=torch.float32) + start) / fps * (base_fps / TEMPORAL_COMPRESSION) + offset
    return torch.stack([time, torch.zeros(rows), torch.zeros(rows)])


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


def _check_fps(fps: float) -> None:
    if not fps > 0:
        raise InputError(f"fps must be positive, got {fps}")
