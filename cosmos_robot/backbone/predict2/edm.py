"""Noise levels, scaling and solver of Cosmos Policy, in the form x = x0 + sigma * noise.

The network is a rectified flow at t = sigma / (1 + sigma) (denoiser_scaling.py); the levels of a sample follow a power
law, and an exponential Adams-Bashforth method of second order follows the denoised samples (res_sampler.py,
multi_step.py). What is returned is the denoised sample at the lowest level, not a step to zero (cosmos_sampler.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cosmos_robot.backbone.cosmos3.sampler import seeded_normal
from cosmos_robot.contract import SamplerSpec
from cosmos_robot.errors import ContractError, InputError

RHO: Final = 7
Denoiser = Callable[[Tensor, float], Tensor]
"""(x, sigma) to the denoised sample, of the shape of x."""


class Scaling(NamedTuple):
    """x0 = skip * x + out * network(into * x, time), each of the shape of sigma."""

    skip: Tensor
    out: Tensor
    into: Tensor
    time: Tensor


def scaling(sigma: Tensor) -> Scaling:
    """The coefficients of a rectified flow at noise level ``sigma``; at 0 nothing is changed and the time is 0."""
    time = sigma / (sigma + 1)
    return Scaling(1 - time, -time, 1 - time, time)


def loss_weight(sigma: Tensor) -> Tensor:
    """(1 + sigma)^2 / sigma^2: the squared error of x0 under it is that of the network's output."""
    return (1 + sigma) ** 2 / sigma**2


def noise_levels(steps: int, sigma_min: float, sigma_max: float) -> list[float]:
    """The levels at which the network is asked, from ``sigma_max`` down to ``sigma_min``.

    One level is one call. Two steps are one call as well, at ``sigma_max``: so the published sampler behaves, which
    never reaches ``sigma_min`` then. Raises InputError for no steps, or levels out of order.
    """
    if steps < 1 or not 0 < sigma_min < sigma_max:
        raise InputError(
            f"noise levels: got {steps} steps from {sigma_max} to {sigma_min}, expected at least 1 and falling levels"
        )
    return power_law(steps - 1, sigma_min, sigma_max) if steps > 2 else [float(sigma_max)]


def power_law(intervals: int, sigma_min: float, sigma_max: float, rho: float = RHO) -> list[float]:
    """``intervals`` + 1 levels, evenly spaced in their ``rho``-th root (res_sampler.py, get_rev_ts)."""
    high, low = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    return [(high + i / intervals * (low - high)) ** rho for i in range(intervals + 1)]


def denoise(denoiser: Denoiser, start: Tensor, levels: Sequence[float]) -> Tensor:
    """From ``start``, noise at ``levels[0]``, to the sample denoised at the last level.

    The state is float64; the denoiser gets it and the level as float32 and is asked once for each level.
    """
    state, before = start.double(), None
    for number, (now, then) in enumerate(pairwise(levels)):
        clean = denoiser(state.float(), float(np.float32(now))).double()
        if before is None:
            state = state + (then - now) * (state - clean) / now
        else:
            state = _two_step(state, clean, before, (levels[number - 1], now, then))
        before = clean
    return denoiser(state.float(), float(np.float32(levels[-1])))


def start_noise(seeds: Sequence[int], shape: tuple[int, ...]) -> Tensor:
    """Standard normal (B, *shape) float32, one seed for each sample, the same on every machine (misc.py,
    arch_invariant_rand)."""
    return torch.from_numpy(np.stack([seeded_normal(np.random.RandomState(seed), shape) for seed in seeds]))


def varied_range(seed: int, sigma_min: float, sigma_max: float) -> tuple[float, float]:
    """Another (sigma_min, sigma_max) for each seed: the upper times 1 to 3, then the lower times 0.1 to 1
    (policy_text2world_model.py, ``use_variance_scale``)."""
    high, low = torch.rand(2, generator=torch.Generator().manual_seed(seed)).tolist()
    return sigma_min * (0.1 + 0.9 * low), sigma_max * (1 + 2 * high)


def levels_of(spec: SamplerSpec, steps: int | None = None) -> list[float]:
    """The noise levels of a contract's sampler, or of another number of ``steps``. Raises ContractError unless it is
    ``edm_2ab`` without guidance, which this network was not trained for."""
    if spec.solver != "edm_2ab" or spec.sigma_min is None or spec.sigma_max is None:
        raise ContractError(f"model.sampler.solver is {spec.solver!r}, but predict2 is sampled with 'edm_2ab'")
    if spec.guidance != 1:
        raise ContractError(
            f"model.sampler.guidance is {spec.guidance}, but predict2 has no branch without text: use 1"
        )
    return noise_levels(spec.steps if steps is None else steps, spec.sigma_min, spec.sigma_max)


def _two_step(state: Tensor, clean: Tensor, before: Tensor, levels: tuple[float, float, float]) -> Tensor:
    """One step from ``levels[1]`` to ``levels[2]`` in lambda = -ln sigma, with the sample denoised at ``levels[0]``."""
    last, now, then = levels
    h = math.log(now / then)
    ratio = -math.log(last / now) / h
    one = -math.expm1(-h) / h
    two = (one - 1) / -h
    return math.exp(-h) * state + h * ((one - two / ratio) * clean + two / ratio * before)
