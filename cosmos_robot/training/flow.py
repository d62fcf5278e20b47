"""The rectified-flow objective of Cosmos 3 on action rows and, if wanted, on future video latents.

x_sigma = (1 - sigma) x0 + sigma eps; the network predicts v = eps - x0 at timestep 1000 sigma. One sigma per sample,
shared by actions and video; clean tokens (the first frame, the state row) are excluded.
(cosmos-framework: rectified_flow.py, omni_mot_model.py; reference recipe: uniform draw, then time shift.)

Axis legend: B samples, U prompts, T chunk steps, D action width, S state width, C L h w latents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from diffusers import Cosmos3OmniTransformer
from torch import Tensor

from cosmos_robot.backbone.cosmos3.layout import TokenPlan
from cosmos_robot.backbone.cosmos3.runtime import TextCache, join_rows, velocity
from cosmos_robot.errors import InputError


@dataclass(frozen=True)
class FlowBatch:
    """Clean samples in model units.

    latents (B, C, L, h, w): standardised; frames beyond the first are read only if the plan denoises them.
    state (B, S) or None. actions (B, T, D); valid (B, T) False where a chunk runs past its episode.
    text_index (B,) into the text cache. domain_id: one for all.
    video_valid (B, L): False for frames past the episode; None means all valid.
    """

    latents: Tensor
    state: Tensor | None
    actions: Tensor
    valid: Tensor
    text_index: Tensor
    domain_id: int
    video_valid: Tensor | None = None


@dataclass(frozen=True)
class FlowNoise:
    """sigma (B,) in 0..1, action (B, T, D) and video (B, C, L, h, w) or None: standard normal."""

    sigma: Tensor
    action: Tensor
    video: Tensor | None = None


@dataclass(frozen=True)
class FlowLoss:
    """action, video: mean squared velocity errors (scalars; video None unless denoised). hidden: the residual stream
    (B, N, E) that was asked for."""

    action: Tensor
    video: Tensor | None
    hidden: Tensor | None


def shifted(u: Tensor, shift: float) -> Tensor:
    """Time shift s u / (1 + (s - 1) u): pushes a uniform draw towards noise."""
    return shift * u / (1 + (shift - 1) * u)


def draw_noise(batch: FlowBatch, plan: TokenPlan, shift: float, generator: torch.Generator) -> FlowNoise:
    """One sigma per sample, uniform then shifted, and standard normal noise. Sigmas are stratified over the batch (one
    in each of B equal slices, in random order): still uniform for every sample, with less noise in the loss."""
    count = len(batch.actions)
    u = (torch.randperm(count, generator=generator) + torch.rand(count, generator=generator)) / count
    action = torch.randn(batch.actions.shape, generator=generator)
    video = torch.randn(batch.latents.shape, generator=generator) if plan.noisy_frames else None
    return FlowNoise(shifted(u, shift), action, video)


def flow_loss(
    transformer: Cosmos3OmniTransformer,
    plan: TokenPlan,
    text: TextCache,
    batch: FlowBatch,
    noise: FlowNoise,
    hidden_at: int | None = None,
    row_weight: Sequence[float] | None = None,
) -> FlowLoss:
    """Velocity errors of one noised batch; gradients flow into ``transformer`` and ``text``.

    row_weight (T,): relative weight of each chunk step. Padded steps and frames carry no loss.
    """
    sigma = noise.sigma
    noisy_actions = torch.lerp(batch.actions, noise.action, sigma[:, None, None])
    latents, want = batch.latents, ("action",)
    if plan.noisy_frames:
        if noise.video is None:
            raise InputError("flow_loss: the plan denoises video frames but the noise has none")
        latents = _noised_frames(latents, noise.video, sigma, plan)
        want = ("action", "video")
    out = velocity(
        transformer, plan, text, batch.text_index, latents, join_rows(batch.state, noisy_actions), sigma * 1000,
        [batch.domain_id] * len(sigma), want, hidden_at, batch.actions.shape[2],
    )  # fmt: skip
    weight = batch.valid.float()
    if row_weight is not None:
        weight = weight * torch.tensor(row_weight)
    action = _masked_mean((out.action - (noise.action - batch.actions)).square(), weight.unsqueeze(-1))
    video = None
    if plan.noisy_frames:
        frames = list(plan.noisy_frames)
        error = (out.video - (noise.video - batch.latents))[:, :, frames].square()
        seen = torch.ones(error.shape[0], len(frames)) if batch.video_valid is None else batch.video_valid[:, frames]
        video = _masked_mean(error, seen.float()[:, None, :, None, None])
    return FlowLoss(action, video, out.hidden)


def _noised_frames(latents: Tensor, noise: Tensor, sigma: Tensor, plan: TokenPlan) -> Tensor:
    level = torch.tensor([not clean for clean in plan.clean_frames], dtype=sigma.dtype)
    return torch.lerp(latents, noise, sigma[:, None, None, None, None] * level[None, None, :, None, None])


def _masked_mean(error: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean over all elements of the batch; ``weight`` broadcasts to ``error``."""
    weight = weight.expand_as(error)
    return (error * weight).sum() / weight.sum().clamp_min(1e-6)
