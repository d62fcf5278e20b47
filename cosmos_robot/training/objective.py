"""The formulas of Cosmos 3's flow training, as pure functions: noise levels, the noised sample, the loss, the average.

Axis legend: B samples, T action rows, D action width, C L h w latents.
(cosmos-framework: diffusion/rectified_flow.py, omni_mot_model.py, algorithm/loss/flow_matching.py)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from cosmos_robot.errors import InputError

Distribution = Literal["uniform", "logitnormal", "waver", "ltx2"]
TIMESTEPS = 1000
"""Timestep per unit of sigma, as the model is told."""

_WAVER = 1.29
_LTX2_LOW, _LTX2_HIGH = -2.5758, 3.0902  # 0.5th and 99.9th percentile of the normal distribution
_LTX2_UNIFORM, _LTX2_END = 0.1, 1e-3
_BASE_TOKENS = "dynamic_shift_base_num_tokens_{}"


@dataclass(frozen=True)
class Draws:
    """Random numbers (B,) behind noise levels. first: uniform, or normal for ``logitnormal`` and ``ltx2``; uniform and
    mixing, both uniform: of ``ltx2`` alone."""

    first: Tensor
    uniform: Tensor | None = None
    mixing: Tensor | None = None


def draw(distribution: Distribution, count: int, generator: torch.Generator) -> Draws:
    """The random numbers of ``count`` samples, in the reference's order."""
    if distribution not in get_args(Distribution):
        raise InputError(f"noise levels {distribution!r}: expected one of {', '.join(get_args(Distribution))}")
    normal = distribution in ("logitnormal", "ltx2")
    first = (torch.randn if normal else torch.rand)(count, generator=generator)
    if distribution != "ltx2":
        return Draws(first)
    return Draws(first, torch.rand(count, generator=generator), torch.rand(count, generator=generator))


def noise_levels(distribution: Distribution, draws: Draws, shifts: Tensor | float | None) -> Tensor:
    """Sigmas (B,) in 0..1. shifts: per sample or one for all, None for none; ``ltx2`` needs them, as the mean of its
    logit-normal part."""
    first = draws.first
    if distribution == "ltx2":
        if shifts is None:
            raise InputError("noise levels 'ltx2' need shifts, got None")
        return _ltx2(draws, torch.as_tensor(shifts, dtype=torch.float32).log())
    if distribution == "logitnormal":
        first = first.sigmoid()
    elif distribution == "waver":
        first = 1 - first - _WAVER * (torch.cos(torch.pi / 2 * first) ** 2 - 1 + first)
    elif distribution != "uniform":
        raise InputError(f"noise levels {distribution!r}: expected one of {', '.join(get_args(Distribution))}")
    return first if shifts is None else shifted(first, shifts)


def shifted(u: Tensor, shift: Tensor | float) -> Tensor:
    """Time shift s u / (1 + (s - 1) u): pushes a draw towards noise."""
    return shift * u / (1 + (shift - 1) * u)


def _ltx2(draws: Draws, mean: Tensor) -> Tensor:
    """Logit-normal, stretched between two percentiles and folded back at the clean end; a tenth is uniform."""
    if draws.uniform is None or draws.mixing is None:
        raise InputError("noise levels 'ltx2' need uniform and mixing draws besides the normal ones")
    low, high = (mean + _LTX2_LOW).sigmoid(), (mean + _LTX2_HIGH).sigmoid()
    stretched = ((draws.first + mean).sigmoid() - low) / (high - low)
    stretched = torch.where(stretched >= _LTX2_END, stretched, 2 * _LTX2_END - stretched).clamp(0, 1)
    return torch.where(draws.mixing > _LTX2_UNIFORM, stretched, (1 - _LTX2_END) * draws.uniform + _LTX2_END)


def train_shifts(
    config: float | Mapping[str, float],
    count: int,
    tiers: Sequence[str] | str | None = None,
    tokens: Sequence[int] | None = None,
    kind: Literal["video", "image"] = "video",
) -> Tensor:
    """The time shift (B,) of each sample: one number for all, a number per canvas tier, or the square root of its
    latent cells (``tokens``, before patching) over a base number. Raises InputError where what a rule reads is missing.
    """
    if isinstance(config, int | float):
        return torch.full((count,), float(config))
    base = config.get(_BASE_TOKENS.format(kind))
    if base is not None:
        if tokens is None or len(tokens) != count:
            raise InputError(f"shift by tokens: expected token counts of {count} samples, got {tokens}")
        return (torch.tensor(tokens, dtype=torch.float32) / base).sqrt()
    names = [tiers] * count if isinstance(tiers, str) else list(tiers or ())
    unknown = [name for name in names if name not in config]
    if len(names) != count or unknown:
        raise InputError(f"shift by tier: expected {count} of {list(config)}, got {names}")
    return torch.tensor([config[name] for name in names], dtype=torch.float32)


def noised(clean: Tensor, noise: Tensor, sigma: Tensor, noisy: Tensor) -> Tensor:
    """(1 - s) clean + s noise, with s = sigma where a token is noisy and 0 elsewhere.

    clean, noise: rows (B, T, D) or latents (B, C, L, h, w). sigma (B,). noisy (B or 1, T or L), 1 or 0.
    """
    level = _along(sigma[:, None] * noisy, clean)
    return noise * level + clean * (1 - level)


def squared_errors(predicted: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Per sample (B,): weighted sum of squared errors, and the sum of the weights over the same elements.

    weight: (B or 1, T or L), or with a value for each column of rows (B or 1, T, D).
    """
    weight = _along(weight, predicted).expand_as(predicted)
    axes = tuple(range(1, predicted.ndim))
    return ((predicted - target).square() * weight).sum(axes), weight.sum(axes)


def sample_losses(
    predicted: Tensor, target: Tensor, noisy: Tensor, channels: Tensor | None = None, by_active: bool = False
) -> Tensor:
    """The reference's loss of each sample (B,): squared errors of noisy tokens over the number of all elements, clean
    ones included; over that of noisy elements with ``by_active``.

    noisy (B or 1, T or L), 1 or 0. channels (D,) or (B, D): the columns of rows that are part of a sample, None for
    all; others count nowhere. The target is noise - clean.
    """
    weight = noisy
    everything = torch.ones_like(noisy)
    if channels is not None:
        columns = torch.atleast_2d(channels.to(noisy.dtype))[:, None]
        weight, everything = (part[..., None] * columns for part in (weight, everything))
    total, active = squared_errors(predicted, target, weight)
    if not by_active:
        active = _along(everything, predicted).expand_as(predicted).flatten(1).sum(1)
    return total / active.clamp_min(1)


def power_exponent(rate: float) -> float:
    """The exponent of an average whose width is ``rate`` of the training so far (cosmos-framework, set_up_model): the
    largest real part among the roots of x^3 + 7 x^2 + (16 - rate^-2) x + 12 - rate^-2."""
    if not 0 < rate < math.inf:
        raise InputError(f"average: expected a positive rate, got {rate}")
    inverse = rate**-2
    return float(np.roots([1, 7, 16 - inverse, 12 - inverse]).real.max())


def power_decay(exponent: float, iteration: int, iteration_shift: int = 0) -> float:
    """What the average keeps of itself at ``iteration``: (1 - 1 / (t + 1)) ^ (exponent + 1); 0 before t = 1."""
    t = iteration + iteration_shift
    return 0.0 if t < 1 else (1 - 1 / (t + 1)) ** (exponent + 1)


def _along(weight: Tensor, like: Tensor) -> Tensor:
    """A weight per token, (B, T) or (B, L), or per column (B, T, D), shaped to multiply ``like``."""
    if weight.ndim == 3:
        return weight
    return weight[:, :, None] if like.ndim == 3 else weight[:, None, :, None, None]
