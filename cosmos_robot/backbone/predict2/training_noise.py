"""Noise levels that Cosmos Policy is trained at (hybrid_edm_sde.py): mostly log-normal, else uniform."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cosmos_robot.errors import InputError


@dataclass(frozen=True)
class HybridNoise:
    """share: of the samples that are log-normal, with ``mean`` and ``std`` of ln sigma; the others are uniform from
    ``low`` to ``high``. All are multiplied by ``factor``."""

    share: float = 0.7
    mean: float = math.log(4)
    std: float = 1.2
    low: float = 1.0
    high: float = 85.0
    factor: float = 1.0

    @classmethod
    def of_frames(cls, frames: int) -> HybridNoise:
        """As published for a layout of ``frames`` latent frames: factor sqrt(frames), in training only
        (text2world_model.py, ``adjust_video_noise``)."""
        return cls(factor=math.sqrt(frames))

    def levels(self, choice: ArrayLike, quantiles: ArrayLike, uniform: ArrayLike) -> Tensor:
        """(B,) float32 levels from random numbers.

        choice: (B,) in 0..1, below ``share`` is log-normal. quantiles: of the log-normal ones, in their order.
        uniform: levels of the others, in theirs, before the factor. Raises InputError for another number of either.
        """
        normal = np.asarray(choice, np.float32) < np.float32(self.share)
        first, second = np.asarray(quantiles, np.float64), np.asarray(uniform, np.float32)
        if (len(first), len(second)) != (normal.sum(), (~normal).sum()):
            raise InputError(
                f"training noise: {normal.sum()} log-normal and {(~normal).sum()} uniform levels, but "
                f"{len(first)} quantiles and {len(second)} uniform numbers"
            )
        found, distribution = np.empty(len(normal), np.float32), NormalDist(self.mean, self.std)
        found[normal] = np.exp([distribution.inv_cdf(q) for q in first]).astype(np.float32)
        found[~normal] = second
        return torch.from_numpy(found * np.float32(self.factor))

    def draw(self, count: int, generator: np.random.Generator) -> Tensor:
        """(count,) float32 levels."""
        choice = generator.random(count, dtype=np.float32)
        normal = int((choice < np.float32(self.share)).sum())
        tiny = np.finfo(np.float64).tiny  # the quantile 0 has no level
        quantiles = np.maximum(generator.random(normal), tiny)
        return self.levels(choice, quantiles, generator.uniform(self.low, self.high, count - normal))
