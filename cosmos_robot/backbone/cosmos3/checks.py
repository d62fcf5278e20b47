"""What is refused before a sample is computed: shapes, ranges, devices and settings that do not belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from diffusers import Cosmos3OmniTransformer
from torch import Tensor

from cosmos_robot.backbone.cosmos3.layout import TokenPlan
from cosmos_robot.backbone.cosmos3.runtime import TextCache
from cosmos_robot.contract import SamplerSpec
from cosmos_robot.errors import ContractError, InputError

if TYPE_CHECKING:
    from cosmos_robot.backbone.cosmos3.sampler import Given, Noise

FLOW_SOLVERS = ("euler", "unipc")


def check_sampling(
    transformer: Cosmos3OmniTransformer,
    plan: TokenPlan,
    text: TextCache,
    given: Given,
    settings: SamplerSpec,
    noise: Noise,
) -> None:
    """Raise InputError (ContractError for the settings) naming what does not fit."""
    check_settings(settings)
    batch, config = _batch(plan, given.latents, transformer), transformer.config
    _indices("text_index", given.text_index, batch, len(text), "cached prompts")
    if settings.guidance != 1:
        if given.unconditional is None:
            raise InputError(f"guidance {settings.guidance} needs the text index of the empty prompt, got None")
        _indices("unconditional", given.unconditional, batch, len(text), "cached prompts")
    if plan.rows:
        _indices("domain_id", given.domain_id, batch, config.num_embodiment_domains, "domains of the model")
        _check_rows(plan, given, batch, config.action_dim)
    elif given.action_rows is not None:
        raise InputError(f"the plan has no action rows, got {tuple(given.action_rows.shape)}")
    rows, (frames, height, width) = len(plan.noisy_rows), (len(plan.noisy_frames), *plan.latent_grid[1:])
    _check_noise("action", noise.action, (batch, rows, given.action_width) if rows else None)
    _check_noise("video", noise.video, (batch, config.latent_channel, frames, height, width) if frames else None)
    _check_devices(transformer, text, given)


def check_settings(settings: SamplerSpec) -> None:
    """Raise ContractError where Cosmos 3 has no such sampler."""
    if settings.solver not in FLOW_SOLVERS:
        raise ContractError(
            f"model.sampler.solver is {settings.solver!r}; Cosmos 3 follows a flow: expected one of {FLOW_SOLVERS}"
        )


def _batch(plan: TokenPlan, latents: Tensor, transformer: Cosmos3OmniTransformer) -> int:
    expected = (transformer.config.latent_channel, *plan.latent_grid)
    if latents.ndim != 5 or tuple(latents.shape[1:]) != expected or not len(latents):
        raise InputError(f"expected latents (B, {', '.join(map(str, expected))}), got {tuple(latents.shape)}")
    return len(latents)


def _check_rows(plan: TokenPlan, given: Given, batch: int, model_width: int) -> None:
    rows, width = given.action_rows, given.action_width
    if rows is None or rows.ndim != 3 or rows.shape[:2] != (batch, plan.rows):
        got = None if rows is None else tuple(rows.shape)
        raise InputError(f"expected action rows ({batch}, {plan.rows}, W), got {got}")
    if not 1 <= width <= rows.shape[2] or rows.shape[2] > model_width:
        raise InputError(
            f"commands are {width} and rows {rows.shape[2]} wide: expected 1 <= commands <= rows <= {model_width}, the "
            "width of the model"
        )
    mask = given.channels
    if mask is not None and (mask.dtype != torch.bool or tuple(mask.shape) not in ((width,), (batch, width))):
        raise InputError(
            f"channels: expected bool ({width},) or ({batch}, {width}), got {mask.dtype} {tuple(mask.shape)}"
        )
    if mask is not None and not mask.any(-1).all():
        raise InputError("channels: a sample without a single valid column")


def _check_noise(name: str, noise: Tensor | None, expected: tuple[int, ...] | None) -> None:
    got = None if noise is None else tuple(noise.shape)
    if got != expected:
        raise InputError(f"{name} noise: expected {expected}, got {got}")
    if noise is not None and noise.dtype != torch.float32:
        raise InputError(f"{name} noise: expected float32, in which samples are integrated, got {noise.dtype}")


def _check_devices(transformer: Cosmos3OmniTransformer, text: TextCache, given: Given) -> None:
    expected = transformer.embed_tokens.weight.device
    for name, tensor in (("latents", given.latents), ("action rows", given.action_rows), ("text", text)):
        if tensor is None:
            continue
        if tensor.device != expected:
            raise InputError(f"{name} are on {tensor.device}, the model is on {expected}; move them there first")
        if tensor is not text and tensor.dtype != torch.float32:
            raise InputError(f"{name}: expected float32, which the model casts itself, got {tensor.dtype}")


def _indices(name: str, value: int | Sequence[int], batch: int, count: int, what: str) -> None:
    found = [value] if isinstance(value, int) else list(value)
    if not isinstance(value, int) and len(found) != batch:
        raise InputError(f"{name}: expected one for each of {batch} samples, got {len(found)}")
    wrong = [i for i in found if not 0 <= i < count]
    if wrong:
        raise InputError(f"{name} {wrong[0]} is out of range: expected 0 to {count - 1}, the {count} {what}")
