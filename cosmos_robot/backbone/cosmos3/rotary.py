"""Rotary cosines and sines of text and generation tokens, computed once per (plan, text length)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from diffusers import Cosmos3OmniTransformer
from torch import Tensor

from cosmos_robot.backbone.cosmos3.layout import TokenPlan
from cosmos_robot.backbone.cosmos3.positions import plan_positions, rotary_angles, text_positions
from cosmos_robot.errors import CheckpointError


@dataclass(frozen=True)
class Rotary:
    """(1 or B, tokens, 1, head_dim): both halves of a head turn by the same angles; sin is negated in the first."""

    cos: Tensor
    sin: Tensor

    def take(self, tokens: range | list[int]) -> Rotary:
        """The turns of those tokens."""
        if isinstance(tokens, range):
            return Rotary(self.cos[:, tokens.start : tokens.stop], self.sin[:, tokens.start : tokens.stop])
        index = torch.tensor(tokens, device=self.cos.device)
        return Rotary(self.cos.index_select(1, index), self.sin.index_select(1, index))


def rotate(x: Tensor, turn: Rotary) -> Tensor:
    """(B, tokens, heads, head_dim) turned: (a, b) to (a cos - b sin, b cos + a sin) over the two halves."""
    a, b = x.chunk(2, dim=-1)
    return torch.addcmul(x * turn.cos.to(x.dtype), torch.cat([b, a], dim=-1), turn.sin.to(x.dtype))


@dataclass(frozen=True)
class _Geometry:
    """What of a transformer's config decides its angles. The module's own frequency buffer is not read: casting the
    model to bfloat16 rounds it."""

    head_dim: int
    theta: float
    axes: tuple[int, int, int]
    patch: int
    margin: int
    base_fps: float


def rotary(transformer: Cosmos3OmniTransformer, plan: TokenPlan, lengths: Sequence[int], device) -> Rotary:
    """Turns of the generation tokens for each sample's text length; one row if all lengths are equal."""
    geometry = _geometry(transformer)
    distinct = sorted(set(lengths))
    tables = [_generation_table(geometry, plan, length, str(device)) for length in distinct]
    if len(tables) == 1:
        return tables[0]
    rows = torch.tensor([distinct.index(length) for length in lengths], device=device)
    return Rotary(torch.cat([t.cos for t in tables])[rows], torch.cat([t.sin for t in tables])[rows])


def text_rotary(transformer: Cosmos3OmniTransformer, count: int) -> Rotary:
    """Turns of ``count`` text tokens."""
    return _text_table(_geometry(transformer), count, str(transformer.embed_tokens.weight.device))


def _geometry(transformer: Cosmos3OmniTransformer) -> _Geometry:
    config = transformer.config
    if not (config.enable_fps_modulation and config.unified_3d_mrope_reset_spatial_ids):
        raise CheckpointError(
            "this transformer's config turns enable_fps_modulation or unified_3d_mrope_reset_spatial_ids off; every "
            "released Cosmos 3 has both on, and no other position scheme is implemented"
        )
    return _Geometry(
        head_dim=config.head_dim,
        theta=float(config.rope_theta),
        axes=tuple(config.rope_axes_dim),
        patch=config.latent_patch_size,
        margin=config.unified_3d_mrope_temporal_modality_margin,
        base_fps=float(config.base_fps),
    )


@lru_cache(maxsize=256)
def _generation_table(geometry: _Geometry, plan: TokenPlan, text_length: int, device: str) -> Rotary:
    positions = plan_positions(plan, text_length, geometry.patch, geometry.margin, geometry.base_fps)
    return _table(geometry, positions, device)


@lru_cache(maxsize=256)
def _text_table(geometry: _Geometry, count: int, device: str) -> Rotary:
    return _table(geometry, text_positions(count), device)


def _table(geometry: _Geometry, positions: Tensor, device: str) -> Rotary:
    # A table first made under inference_mode would be an inference tensor, useless to a later training step.
    with torch.inference_mode(False), torch.autocast(device.split(":")[0], enabled=False):
        angles = rotary_angles(positions.clone(), geometry.head_dim, geometry.theta, geometry.axes)
        angles = angles[None, :, None].to(device)
        cos, sin = angles.cos(), angles.sin()
        return Rotary(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1))
