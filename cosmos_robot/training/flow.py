"""The rectified-flow objective of Cosmos 3 on action rows and on video latents, as far as a plan denoises them.

The network predicts v = noise - clean at timestep 1000 sigma. One sigma per sample, shared by actions and video; clean
tokens (the first frame, the state row, history) are excluded. Formulas in ``objective``.

Axis legend: B samples, U prompts, T chunk steps, D action width, S state width, C L h w latents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from diffusers import Cosmos3OmniTransformer
from torch import Tensor

from cosmos_robot.backbone.cosmos3.layout import TokenPlan
from cosmos_robot.backbone.cosmos3.runtime import TextCache, join_rows, velocity
from cosmos_robot.errors import InputError
from cosmos_robot.training.objective import TIMESTEPS, noised, sample_losses, shifted, squared_errors


@dataclass(frozen=True)
class FlowBatch:
    """Clean samples in model units.

    latents (B, C, L, h, w): standardised; frames beyond the first are read only if the plan has them.
    state (B, S) or None. actions (B, T, D); valid (B, T) False where a chunk runs past its episode.
    text_index (B,) into the text cache. domain_id: one for all.
    video_valid (B, L): False for frames past the episode; None means all valid.
    history (B, H, D): rows before the state. channels (B, D) bool: columns that are part of a sample; None means all.
    """

    latents: Tensor
    state: Tensor | None
    actions: Tensor
    valid: Tensor
    text_index: Tensor
    domain_id: int
    video_valid: Tensor | None = None
    history: Tensor | None = None
    channels: Tensor | None = None


@dataclass(frozen=True)
class FlowNoise:
    """sigma (B,) in 0..1; action (B, T, D) and video (B, C, L, h, w), None where a plan denoises none: standard
    normal."""

    sigma: Tensor
    action: Tensor | None
    video: Tensor | None = None


@dataclass(frozen=True)
class FlowLoss:
    """action, video: mean squared velocity errors (scalars), None where the plan does not denoise them. hidden: the
    residual stream (B, N, E) that was asked for."""

    action: Tensor | None
    video: Tensor | None
    hidden: Tensor | None


def stratified_levels(count: int, shift: float, generator: torch.Generator) -> Tensor:
    """Sigmas (B,), uniform then shifted, one in each of B equal slices in random order: still uniform for every sample,
    with less noise in the loss."""
    u = (torch.randperm(count, generator=generator) + torch.rand(count, generator=generator)) / count
    return shifted(u, shift)


def draw_noise(batch: FlowBatch, plan: TokenPlan, shift: float, generator: torch.Generator) -> FlowNoise:
    """One sigma per sample, as ``stratified_levels``, and standard normal noise."""
    sigma = stratified_levels(len(batch.actions), shift, generator)
    action = torch.randn(batch.actions.shape, generator=generator) if plan.noisy_rows else None
    video = torch.randn(batch.latents.shape, generator=generator) if plan.noisy_frames else None
    return FlowNoise(sigma, action, video)


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

    row_weight (T,): relative weight of each chunk step. Padded steps and frames carry no loss. Raises InputError where
    the plan denoises what the noise has none for.
    """
    out = _predict(transformer, plan, text, batch, noise, hidden_at)
    action = video = None
    if plan.noisy_rows:
        action = _batch_mean(out.action, noise.action - batch.actions, _row_weights(batch, row_weight))
    if plan.noisy_frames:
        video = _batch_mean(out.video, noise.video - batch.latents, _frame_weights(plan, batch))
    return FlowLoss(action, video, out.hidden)


def sample_flow_losses(
    transformer: Cosmos3OmniTransformer,
    plan: TokenPlan,
    text: TextCache,
    batch: FlowBatch,
    noise: FlowNoise,
    by_active: bool = False,
) -> tuple[Tensor | None, Tensor | None]:
    """The reference's losses of each sample (B,) of action rows and of video, None where the plan denoises none; see
    ``objective.sample_losses``. Clean rows and frames count in the denominator unless ``by_active``; what is not valid
    carries no error. Raises as ``flow_loss``."""
    out = _predict(transformer, plan, text, batch, noise)
    action = video = None
    if plan.noisy_rows:
        count = len(plan.noisy_rows)
        flags, target = batch.valid[:, -count:].float(), (noise.action - batch.actions)[:, -count:]
        action = sample_losses(out.action, target, flags, batch.channels, by_active)
        if not by_active:
            action = action * count / plan.rows
    if plan.noisy_frames:
        flags = _frame_weights(plan, batch)
        video = sample_losses(out.video, noise.video - batch.latents, flags, by_active=by_active)
    return action, video


def _predict(transformer, plan: TokenPlan, text: TextCache, batch: FlowBatch, noise: FlowNoise, hidden_at=None):
    for name, wanted, given in (("action", plan.noisy_rows, noise.action), ("video", plan.noisy_frames, noise.video)):
        if bool(wanted) != (given is not None):
            raise InputError(f"flow_loss: the plan denoises {len(wanted)} {name} tokens, its noise is {given!r:.40}")
    want = (("action",) if plan.noisy_rows else ()) + (("video",) if plan.noisy_frames else ())
    return velocity(
        transformer, plan, text, batch.text_index, _latents(plan, batch, noise), _rows(batch, noise),
        noise.sigma * TIMESTEPS, [batch.domain_id] * len(noise.sigma), want, hidden_at, batch.actions.shape[2],
    )  # fmt: skip


def _latents(plan: TokenPlan, batch: FlowBatch, noise: FlowNoise) -> Tensor:
    if not plan.noisy_frames:
        return batch.latents
    return noised(batch.latents, noise.video, noise.sigma, _noisy_frames(plan, noise.sigma))


def _rows(batch: FlowBatch, noise: FlowNoise) -> Tensor:
    """History, state and noised commands (B, R, W), with the columns that are no part of a sample at zero."""
    actions, history = batch.actions, batch.history
    if noise.action is not None:
        actions = noised(actions, noise.action, noise.sigma, noise.sigma.new_ones(1, actions.shape[1]))
    if batch.channels is not None:
        actions = actions * batch.channels[:, None]
        history = None if history is None else history * batch.channels[:, None]
    rows = join_rows(batch.state, actions)
    if history is None:
        return rows
    return torch.cat([F.pad(history, (0, rows.shape[2] - history.shape[2])), rows], dim=1)


def _row_weights(batch: FlowBatch, row_weight: Sequence[float] | None) -> Tensor:
    """(B, T), or (B, T, D) where columns differ."""
    weight = batch.valid.float()
    if row_weight is not None:
        weight = weight * torch.tensor(row_weight, device=weight.device)
    return weight if batch.channels is None else weight[..., None] * batch.channels[:, None]


def _frame_weights(plan: TokenPlan, batch: FlowBatch) -> Tensor:
    """(B, L): 1 for noisy frames of the episode."""
    seen = torch.ones_like(batch.latents[:, 0, :, 0, 0]) if batch.video_valid is None else batch.video_valid.float()
    return _noisy_frames(plan, seen) * seen


def _noisy_frames(plan: TokenPlan, like: Tensor) -> Tensor:
    return torch.tensor([[float(not clean) for clean in plan.clean_frames]], device=like.device)


def _batch_mean(predicted: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean over all elements of the batch."""
    errors, weights = squared_errors(predicted, target, weight)
    return errors.sum() / weights.sum().clamp_min(1e-6)
