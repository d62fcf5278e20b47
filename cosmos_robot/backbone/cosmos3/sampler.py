"""From noise to actions (and video): the native flow schedule with Euler or UniPC steps, guidance in the batch.

Schedule (cosmos-framework, fm_solvers_unipc.py): sigmas linspace(0.999, 0, n + 1) shifted by s x / (1 + (s - 1) x), the
model told int(1000 sigma), truncated. Noise: NumPy RandomState per sample, actions and video each from the start of the
same seed (cosmos-framework, utils/misc.py), so a sample does not depend on its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from diffusers import Cosmos3OmniTransformer, UniPCMultistepScheduler
from torch import Tensor

from cosmos_robot.backbone.cosmos3.layout import TokenPlan
from cosmos_robot.backbone.cosmos3.runtime import TextCache, velocity
from cosmos_robot.contract import SamplerSpec
from cosmos_robot.errors import InputError

TRAIN_STEPS = 1000


@dataclass(frozen=True)
class Given:
    """What is known of B samples.

    text_index (B,): prompt of each. latents (B, C, L, h, w) and action_rows (B, R, W) in model units, of which only the
    clean frames and rows are read. domain_id: one for all. action_width: columns of a command (W may be wider, where
    the state is).
    """

    text_index: Sequence[int]
    latents: Tensor
    action_rows: Tensor | None
    domain_id: int
    action_width: int


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


def draw_noise(plan: TokenPlan, channels: int, model_width: int, action_width: int, seeds: Sequence[int]) -> Noise:
    """One start per seed. As in the reference whole latents and rows of ``model_width`` are drawn, of which the noisy
    frames, the noisy rows and ``action_width`` columns are kept."""

    def normal(shape: tuple[int, ...]) -> Tensor:
        # The legacy generator is the reference's.
        draws = [np.random.RandomState(seed).standard_normal(shape).astype(np.float32) for seed in seeds]
        return torch.from_numpy(np.stack(draws))

    action = video = None
    if plan.noisy_rows:
        action = normal((plan.rows, model_width))[:, list(plan.noisy_rows), :action_width]
    if plan.noisy_frames:
        video = normal((channels, *plan.latent_grid))[:, :, list(plan.noisy_frames)]
    return Noise(action, video)


@torch.no_grad()
def sample(
    transformer: Cosmos3OmniTransformer,
    plan: TokenPlan,
    text: TextCache,
    given: Given,
    settings: SamplerSpec,
    noise: Noise,
    unconditional: int | None = None,
) -> Sample:
    """Denoise B samples together.

    unconditional: index in ``text`` of the empty prompt; needed, and only read, where ``settings.guidance`` is not 1.
    """
    if settings.guidance != 1 and unconditional is None:
        raise InputError(f"guidance {settings.guidance} needs the text index of the empty prompt, got None")
    device = given.latents.device
    parts = [part.to(device) for part in (noise.video, noise.action) if part is not None]

    def field(state: Tensor, timestep: int) -> Tensor:
        video, action = _split(state, noise)
        latents, rows = _filled(plan, given, video, action)
        guided = _guided(transformer, plan, text, given, settings.guidance, unconditional)
        return torch.cat([part.flatten(1) for part in guided(latents, rows, timestep)], dim=1)

    state = integrate(field, torch.cat([part.flatten(1) for part in parts], dim=1), settings)
    video, action = _split(state, noise)
    latents, _ = _filled(plan, given, video, action)
    return Sample(action, latents if video is not None else None)


def flow_schedule(steps: int, shift: float) -> tuple[list[int], list[float]]:
    """Timesteps (steps,) and sigmas (steps + 1,), the last one 0."""
    scheduler = _unipc(steps, shift)
    return scheduler.timesteps.tolist(), scheduler.sigmas.tolist()


def integrate(field: Callable[[Tensor, int], Tensor], start: Tensor, settings: SamplerSpec) -> Tensor:
    """Follow velocity ``field(state, timestep)`` from noise ``start`` (B, M) at sigma near 1 to sigma 0."""
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


def _guided(transformer, plan: TokenPlan, text: TextCache, given: Given, guidance: float, unconditional: int | None):
    """A function (latents, rows, timestep) to the velocities of the denoised parts, video first.

    Guidance u + g (c - u) runs as one batch of twice the size.
    """
    want = (("video",) if plan.noisy_frames else ()) + (("action",) if plan.noisy_rows else ())
    batch, double = len(given.latents), guidance != 1
    index = list(given.text_index) + ([unconditional] * batch if double else [])

    def predict(latents: Tensor, rows: Tensor | None, timestep: int) -> list[Tensor]:
        if double:
            latents = torch.cat([latents, latents])
            rows = None if rows is None else torch.cat([rows, rows])
        times = torch.full((len(index),), float(timestep), device=latents.device)
        domains = [given.domain_id] * len(index)
        out = velocity(
            transformer, plan, text, index, latents, rows, times, domains, want, action_width=given.action_width
        )
        video = None if out.video is None else out.video[:, :, list(plan.noisy_frames)]
        parts = [part for part in (video, out.action) if part is not None]
        if double:
            parts = [part[batch:] + guidance * (part[:batch] - part[batch:]) for part in parts]
        return parts

    return predict
