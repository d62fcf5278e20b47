"""From noise to actions and video: the native flow schedule with Euler or UniPC steps, guidance in the batch.

Schedule (cosmos-framework, fm_solvers_unipc.py): sigmas linspace(0.999, 0, n + 1) shifted by s x / (1 + (s - 1) x), the
model told int(1000 sigma), truncated. Noise: NumPy RandomState per sample, actions and video each from the start of the
same seed (cosmos-framework, utils/misc.py), so a sample does not depend on its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import Cosmos3OmniTransformer, UniPCMultistepScheduler
from numpy.typing import NDArray
from torch import Tensor

from cosmos_robot.backbone.cosmos3.checks import check_sampling, check_settings
from cosmos_robot.backbone.cosmos3.layout import TokenPlan
from cosmos_robot.backbone.cosmos3.runtime import TextCache, velocity
from cosmos_robot.contract import SamplerSpec

TRAIN_STEPS = 1000
NoiseRule = Literal["per_modality", "joint"]


@dataclass(frozen=True)
class Given:
    """What is known of B samples.

    text_index (B,): prompt of each. latents (B, C, L, h, w) and action_rows (B, R, W) in model units, of which only the
    clean frames and rows are read. domain_id: one for all, or (B,). action_width: columns of a command (W may be wider,
    where the state is).
    unconditional: index of the empty prompt, one for all or (B,); read only where guidance is on.
    channels (action_width,) or (B, action_width) bool: False columns are no part of the sample: they stay zero in every
    row, and nothing is predicted there. None: all are.
    """

    text_index: Sequence[int]
    latents: Tensor
    action_rows: Tensor | None
    domain_id: int | Sequence[int]
    action_width: int
    unconditional: int | Sequence[int] | None = None
    channels: Tensor | None = None


@dataclass(frozen=True)
class Noise:
    """Standard normal starts, None where nothing is denoised: action (B, T, action_width), video (B, C, noisy frames,
    h, w)."""

    action: Tensor | None
    video: Tensor | None


@dataclass(frozen=True)
class Sample:
    """Denoised, float32: action (B, T, action_width); video (B, C, L, h, w) with the given frames in place."""

    action: Tensor | None
    video: Tensor | None


def draw_noise(
    plan: TokenPlan,
    channels: int,
    model_width: int,
    action_width: int,
    seeds: Sequence[int],
    rule: NoiseRule = "per_modality",
) -> Noise:
    """One start per seed. As in the reference whole latents and rows of ``model_width`` are drawn, of which the noisy
    frames, the noisy rows and ``action_width`` columns are kept.

    rule: ``per_modality`` starts the seed's generator anew for the video and for the actions; ``joint`` draws the video
    first and goes on with the actions.
    """
    video_shape, row_shape = (channels, *plan.latent_grid), (plan.rows, model_width)
    videos, rows = [], []
    for seed in seeds:
        generator = np.random.RandomState(seed)  # the reference's generator
        videos.append(seeded_normal(generator, video_shape) if plan.noisy_frames else None)
        if rule == "per_modality":
            generator = np.random.RandomState(seed)
        rows.append(seeded_normal(generator, row_shape) if plan.noisy_rows else None)
    action = video = None
    if plan.noisy_rows:
        action = torch.from_numpy(np.stack(rows))[:, list(plan.noisy_rows), :action_width]
    if plan.noisy_frames:
        video = torch.from_numpy(np.stack(videos))[:, :, list(plan.noisy_frames)]
    return Noise(action, video)


def seeded_normal(generator: np.random.RandomState, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Standard normal numbers of ``shape``, drawn in float64 and rounded: the same on every machine (cosmos-framework,
    utils/misc.py, arch_invariant_rand)."""
    return generator.standard_normal(shape).astype(np.float32)


@torch.no_grad()
def sample(
    transformer: Cosmos3OmniTransformer,
    plan: TokenPlan,
    text: TextCache,
    given: Given,
    settings: SamplerSpec,
    noise: Noise,
) -> Sample:
    """Denoise B samples together, both branches of guidance in one batch. Raises InputError, before anything is
    computed, for whatever does not fit the plan, the model or its device."""
    check_sampling(transformer, plan, text, given, settings, noise)
    device = given.latents.device
    parts = [part.to(device) for part in (noise.video, _masked(noise.action, given)) if part is not None]
    given = replace(given, action_rows=_masked(given.action_rows, given))

    def branches(state: Tensor, timestep: int, guided: bool) -> tuple[Tensor, Tensor | None]:
        return _velocities(transformer, plan, text, given, _split(state, noise), timestep, guided)

    state = denoise(branches, torch.cat([part.flatten(1) for part in parts], dim=1), settings)
    video, action = _split(state, noise)
    latents, _ = _filled(plan, given, video, action)
    return Sample(action, latents if video is not None else None)


Branches = Callable[[Tensor, int, bool], tuple[Tensor, Tensor | None]]
"""(state (B, M), timestep, whether both are wanted) to the conditional and the unconditional velocity (B, M)."""


def denoise(branches: Branches, start: Tensor, settings: SamplerSpec) -> Tensor:
    """From noise ``start`` (B, M) to data, with guidance where ``settings`` puts it; elsewhere the unconditional branch
    is not evaluated."""

    def field(state: Tensor, timestep: int) -> Tensor:
        guided = is_guided(settings, timestep)
        conditional, unconditional = branches(state, timestep, guided)
        return guide(conditional, unconditional, settings) if guided else conditional

    return integrate(field, start, settings)


def is_guided(settings: SamplerSpec, timestep: int) -> bool:
    """Whether guidance is on at ``timestep``: never at 1, and only strictly inside its interval."""
    interval = settings.guidance_interval
    return settings.guidance != 1 and (interval is None or interval[0] < timestep < interval[1])


def guide(conditional: Tensor, unconditional: Tensor, settings: SamplerSpec) -> Tensor:
    """u + g (c - u) over (B, M); with ``guidance_clamp`` scaled down, never up, to the norm of c, sample by sample and
    over video and actions together (cosmos-framework, omni_mot_model.py)."""
    velocity_ = unconditional + settings.guidance * (conditional - unconditional)
    if settings.guidance_clamp:
        norm = torch.linalg.vector_norm
        scale = norm(conditional, dim=1, keepdim=True) / (norm(velocity_, dim=1, keepdim=True) + 1e-8)
        velocity_ = velocity_ * scale.clamp(max=1)
    return velocity_


def flow_schedule(steps: int, shift: float) -> tuple[list[int], list[float]]:
    """Timesteps (steps,) and sigmas (steps + 1,), the last one 0."""
    scheduler = _unipc(steps, shift)
    return scheduler.timesteps.tolist(), scheduler.sigmas.tolist()


def integrate(field: Callable[[Tensor, int], Tensor], start: Tensor, settings: SamplerSpec) -> Tensor:
    """Follow velocity ``field(state, timestep)`` from noise ``start`` (B, M) at sigma near 1 to sigma 0."""
    check_settings(settings)
    scheduler = _unipc(settings.steps, settings.shift)
    sigmas, state = scheduler.sigmas.tolist(), start
    for step, timestep in enumerate(scheduler.timesteps):
        speed = field(state, int(timestep))
        if settings.solver == "unipc":
            state = scheduler.step(speed, timestep, state, return_dict=False)[0]
        else:
            state = state + (sigmas[step + 1] - sigmas[step]) * speed
    return state


def native_scheduler(shift: float) -> UniPCMultistepScheduler:
    """diffusers' UniPC set up as the native sampler: order 2, bh2, x0 prediction, no Karras sigmas."""
    return UniPCMultistepScheduler(
        num_train_timesteps=TRAIN_STEPS,
        solver_order=2,
        solver_type="bh2",
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=shift,
        final_sigmas_type="zero",
    )


def _unipc(steps: int, shift: float) -> UniPCMultistepScheduler:
    scheduler = native_scheduler(shift)
    # Explicit sigmas: diffusers' own default starts at 1 and gives another table. The first one is rounded to float32
    # as in the reference, without which some timesteps truncate to one less (3 steps, shift 1: 665 instead of 666).
    first = float(np.float32(1 - 1 / TRAIN_STEPS))
    scheduler.set_timesteps(steps, sigmas=np.linspace(first, 0, steps + 1)[:-1])
    return scheduler


def _split(state: Tensor, noise: Noise) -> tuple[Tensor | None, Tensor | None]:
    """The flat state as (video, action); video comes first."""
    video_size = 0 if noise.video is None else noise.video[0].numel()
    video = None if noise.video is None else state[:, :video_size].view(noise.video.shape)
    action = None if noise.action is None else state[:, video_size:].view(noise.action.shape)
    return video, action


def _filled(plan: TokenPlan, given: Given, video: Tensor | None, action: Tensor | None):
    """Latents and action rows with the noisy entries put in; columns beyond a command's width stay zero."""
    latents, rows = given.latents, given.action_rows
    if video is not None:
        latents = latents.clone()
        latents[:, :, list(plan.noisy_frames)] = video
    if action is not None:
        rows = rows.clone()
        rows[:, list(plan.noisy_rows)] = 0
        rows[:, list(plan.noisy_rows), : given.action_width] = action
    return latents, rows


def _velocities(
    transformer, plan: TokenPlan, text: TextCache, given: Given, parts, timestep: int, guided: bool
) -> tuple[Tensor, Tensor | None]:
    """Flat velocities (B, M) of the denoised parts, video first: with the prompt and, if ``guided``, without."""
    latents, rows = _filled(plan, given, *parts)
    batch, times = len(latents), 1 + guided  # both branches in one batch
    index = list(given.text_index)
    want = (("video",) if plan.noisy_frames else ()) + (("action",) if plan.noisy_rows else ())
    out = velocity(
        transformer,
        plan,
        text,
        [index, _each(given.unconditional, batch)] if guided else index,
        latents,
        rows,
        torch.full((batch,), float(timestep), device=latents.device),
        _each(given.domain_id, batch),
        want,
        action_width=given.action_width,
    )
    flat = []
    if out.video is not None:
        flat.append(out.video[:, :, list(plan.noisy_frames)].flatten(1))
    if out.action is not None:
        flat.append(_masked(out.action.unflatten(0, (times, batch)), given).flatten(0, 1).flatten(1))
    both = torch.cat(flat, dim=1)
    return both[:batch], both[batch:] if guided else None


def _masked(rows: Tensor | None, given: Given) -> Tensor | None:
    """Action rows (..., B, R, W) with the columns that are no part of a sample set to zero."""
    if rows is None or given.channels is None:
        return rows
    mask = given.channels.to(rows.device, rows.dtype).expand(rows.shape[-3], -1)
    return rows * F.pad(mask, (0, rows.shape[-1] - mask.shape[-1]), value=1.0).unsqueeze(-2)


def _each(value: int | Sequence[int] | None, batch: int) -> list[int]:
    return [value] * batch if isinstance(value, int) else list(value)
