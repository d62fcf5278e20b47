"""A vector as a latent frame and back (policy_text2world_model.py and cosmos_utils.py of Cosmos Policy).

Legend: B samples, C channels, L latent frames, h w latent height and width.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from cosmos_robot.errors import InputError


def tiled(vectors: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """(B, ...) to frames (B, *shape): each sample flattened row by row, repeated, cut to size, the vector running
    fastest along the width. Raises InputError for a vector larger than a frame."""
    flat = vectors.flatten(1)
    size = _checked(flat.shape[1], shape)
    copies = -(-size // flat.shape[1])
    return flat.repeat(1, copies)[:, :size].reshape(len(flat), *shape)


def averaged(frames: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Frames (B, C, h, w) to vectors (B, *shape): the mean of all whole copies; a part of a copy at the end is
    ignored. The inverse of ``tiled`` up to rounding. Raises InputError as there."""
    width = prod(shape)
    size = _checked(width, tuple(frames.shape[1:]))
    whole = frames.flatten(1)[:, : size // width * width]
    return whole.unflatten(1, (-1, width)).mean(1).unflatten(1, shape)


def spread(values: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Values (B,) in [-1, 1] to frames (B, *shape) of one number each."""
    return values.view(-1, 1, 1, 1).expand(-1, *shape)


def mean_of(frames: Tensor) -> Tensor:
    """Frames (B, C, h, w) to the mean (B,) of all their numbers, float32 in [-1, 1] where the model is sure."""
    return frames.float().flatten(1).mean(1)


def value_of(frames: Tensor) -> Tensor:
    """The value (B,) in [0, 1] of value frames: (mean + 1) / 2, clamped."""
    return ((mean_of(frames) + 1) / 2).clamp(0, 1)


def put(latents: Tensor, frame: int, content: Tensor) -> Tensor:
    """``latents`` (B, C, L, h, w), a copy, with ``content`` (B, C, h, w) in one frame, in the type of the latents."""
    out = latents.clone()
    out[:, :, frame] = content.to(latents.dtype)
    return out


def select(clean: Tensor, given: Tensor, other: Tensor) -> Tensor:
    """``given`` in clean frames, ``other`` elsewhere. clean (B, L) bool; both (B, C, L, h, w)."""
    return torch.where(clean[:, None, :, None, None], given, other)


def _checked(width: int, shape: tuple[int, ...]) -> int:
    size = prod(shape)
    if not 0 < width <= size:
        raise InputError(
            f"latent frame: a vector of {width} numbers does not fit a frame of {'x'.join(map(str, shape))} = {size}; "
            "shorten the chunk or enlarge the pictures"
        )
    return size
