"""What latent frames are trained for: which frames of a sample learn, and how much (policy_text2world_model.py).

The loss is the mean over all frames, so a sample that learns one frame weighs less than one that learns five; the
published training does no more about it than a factor for the action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from cosmos_robot.errors import InputError
from cosmos_robot.latent_frames.layout import ACTION, FrameLayout, SampleKind, ValueMode

EVERY: Final = ("action", "future", "value")
LOSS_SCALE: Final = 10.0


@dataclass(frozen=True)
class Targets:
    """What each kind of sample learns, of ``action``, ``future`` and ``value``, as far as it asks for them; taking the
    auxiliary parts away leaves the action of the policy, the future of the world model and the value of the value.

    value_reads: what a value sample is given. action_weight: of the action frame.
    """

    policy: tuple[str, ...] = EVERY
    world_model: tuple[str, ...] = EVERY
    value_reads: ValueMode = "value"
    action_weight: float = 1.0

    @classmethod
    def alone(cls, value_reads: ValueMode = "value", action_weight: float = 1.0) -> Targets:
        """No auxiliary targets (``mask_loss_for_action_future_state_prediction``)."""
        return cls(("action",), ("future",), value_reads, action_weight)


def clean_frames(layout: FrameLayout, kinds: Sequence[SampleKind], targets: Targets) -> Tensor:
    """(B, L) bool: which frames each sample is given."""
    modes = [targets.value_reads if kind == "value" else kind for kind in kinds]
    return torch.tensor([layout.clean(mode) for mode in modes])


def frame_weights(layout: FrameLayout, kinds: Sequence[SampleKind], targets: Targets) -> Tensor:
    """(B, L) float32: the weight of each frame's loss, 0 where it learns nothing. Frames that a value sample is neither
    given nor asked for, as under V(s') and Q(s, a), learn nothing."""
    chosen = {"policy": targets.policy, "world_model": targets.world_model, "value": ("value",)}
    weights = torch.tensor([layout.trained(kind, chosen[kind]) for kind in kinds], dtype=torch.float32)
    weights[:, layout.index(ACTION)] *= targets.action_weight
    return weights


@dataclass(frozen=True)
class LatentLoss:
    """total: what is minimised. frames (B, L): error of each frame before its frame weight, without a gradient."""

    total: Tensor
    frames: Tensor


def latent_loss(
    found: Tensor, expected: Tensor, level_weight: Tensor, weights: Tensor, scale: float = LOSS_SCALE
) -> LatentLoss:
    """Weighted squared error of denoised latents.

    found, expected: (B, C, L, h, w). level_weight: (B,) of each sample's noise level. weights: (B, L) of
    ``frame_weights``. Raises InputError where the shapes differ.
    """
    if found.shape != expected.shape or weights.shape != (found.shape[0], found.shape[2]):
        raise InputError(
            f"loss: found {tuple(found.shape)}, expected {tuple(expected.shape)}, weights {tuple(weights.shape)}; "
            "expected two of (B, C, L, h, w) and (B, L)"
        )
    error = (found - expected).square().mean(dim=(1, 3, 4)) * level_weight[:, None]
    return LatentLoss(scale * (error * weights).mean(), error.detach())
