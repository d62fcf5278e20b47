"""diffusers' ``CosmosTransformer3DModel`` made to compute what Cosmos Policy's network computes, and its call.

Three things differ and are set here: the norms of queries and keys use 1e-6 (diffusers 1e-5), positions know no frame
rate, and the released code rounds the exponents of the rotary angles to bfloat16, which is an option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import torch
from diffusers import CosmosTransformer3DModel
from torch import Tensor, nn

from cosmos_robot.backbone.cosmos3.modules import unfilled
from cosmos_robot.backbone.predict2.edm import scaling
from cosmos_robot.errors import InputError, UnknownNameError
from cosmos_robot.latent_frames.volumes import select

Rope = Literal["exact", "bfloat16"]
"""Exponents of the rotary angles: as computed, or rounded to bfloat16 as the released loader leaves them. The angles
differ by up to 0.01 rad, a released checkpoint's outputs by less than bfloat16 noise."""

NORM_EPS: Final = 1e-6


class RoundedRope(nn.Module):
    """diffusers' rotary positions with the exponents rounded to bfloat16. No frame rate."""

    def __init__(self, exact: nn.Module):
        super().__init__()
        self.patch_size = exact.patch_size
        self.axes = tuple(
            (width, 10000.0 * factor)
            for width, factor in (
                (exact.dim_t, exact.t_ntk_factor),
                (exact.dim_h, exact.h_ntk_factor),
                (exact.dim_w, exact.w_ntk_factor),
            )
        )

    def forward(self, hidden_states: Tensor, fps: int | None = None) -> tuple[Tensor, Tensor]:
        """Cosines and sines (tokens, head width) of a latent volume (B, C, L, h, w). Raises InputError for a rate."""
        if fps is not None:
            raise InputError(f"positions of predict2 know no frame rate, got {fps}; pass None")
        sizes = [side // patch for side, patch in zip(hidden_states.shape[2:], self.patch_size, strict=True)]
        parts = []
        for axis, ((width, theta), count) in enumerate(zip(self.axes, sizes, strict=True)):
            steps = torch.arange(0, width, 2, device=hidden_states.device, dtype=torch.float32)[: width // 2]
            rates = 1.0 / theta ** (steps / width).bfloat16().float()
            angles = torch.outer(torch.arange(count, device=hidden_states.device, dtype=torch.float32), rates)
            parts.append(angles.view(*(count if a == axis else 1 for a in range(3)), -1).expand(*sizes, -1))
        angles = torch.cat(parts * 2, dim=-1).flatten(0, 2)
        return angles.cos(), angles.sin()


def empty_network(config: Mapping[str, Any], where: Any) -> CosmosTransformer3DModel:
    """The network that ``config`` describes, without weights. ``where`` is for messages."""
    return unfilled(CosmosTransformer3DModel, config, where)


def as_published(network: CosmosTransformer3DModel, rope: Rope = "exact") -> CosmosTransformer3DModel:
    """``network`` itself with the published norms and the chosen positions; asking twice is asking once."""
    if rope not in get_args(Rope):
        raise UnknownNameError("rope", rope, get_args(Rope))
    for block in network.transformer_blocks:
        for attention in (block.attn1, block.attn2):
            attention.norm_q.eps = attention.norm_k.eps = NORM_EPS
    if rope == "bfloat16" and not isinstance(network.rope, RoundedRope):
        network.rope = RoundedRope(network.rope)
    return network


@dataclass(frozen=True)
class Given:
    """What is known of B samples. latents (B, C, L, h, w), of which the ``clean`` (B, L) bool frames are read. text
    (texts, tokens, width); text_index: which of them each sample reads, its own if None."""

    latents: Tensor
    clean: Tensor
    text: Tensor
    text_index: Sequence[int] | None = None

    @property
    def reads(self) -> Sequence[int]:
        """(B,) index of each sample's text."""
        return range(len(self.text)) if self.text_index is None else self.text_index


def predict_clean(network: CosmosTransformer3DModel, given: Given, noisy: Tensor, sigma: Tensor) -> Tensor:
    """The denoised sample (B, C, L, h, w) float32, its clean frames as they are given.

    noisy: (B, C, L, h, w) at level ``sigma`` (B,) of x = x0 + sigma * noise; its clean frames are not read. Clean
    frames enter as they are, at time 0; all else of a frame is as in policy_video2world_model.py, ``denoise``.
    """
    levels = torch.where(given.clean, 0.0, sigma.to(given.latents.device, torch.float32)[:, None])
    skip, out, into, time = (part[:, None, :, None, None] for part in scaling(levels))
    noisy = select(given.clean, given.latents, noisy)
    found = network_output(network, into * noisy, time, given)
    return select(given.clean, given.latents, skip * noisy + out * found)


def network_output(network: CosmosTransformer3DModel, scaled: Tensor, time: Tensor, given: Given) -> Tensor:
    """One call: (B, C, L, h, w) float32. scaled: what enters, noise scaled. time: (B, 1, L, 1, 1) from 0 to 1."""
    kind, (height, width) = network.dtype, scaled.shape[-2:]
    text = given.text if given.text_index is None else given.text[list(given.text_index)]
    mask = given.clean.to(kind)[:, None, :, None, None].expand(-1, -1, -1, height, width)
    return network(
        hidden_states=scaled.to(kind),
        timestep=time.to(kind),
        encoder_hidden_states=text.to(kind),
        fps=None,
        condition_mask=mask,
        padding_mask=torch.zeros(1, 1, height, width, dtype=kind, device=scaled.device),
        return_dict=False,
    )[0].float()
