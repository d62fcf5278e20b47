"""A Cosmos Policy checkpoint (backbone ``predict2``) as policy, world model and value, over one copy of its weights.

model = cosmos_policy_model(load_checkpoint("..."))
policy, world, value = LatentFramePolicy(model), LatentFrameWorldModel(model), LatentFrameValueModel(model)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cosmos_robot.backbone.predict2.edm import levels_of
from cosmos_robot.backbone.predict2.load import Checkpoint, load_checkpoint
from cosmos_robot.backbone.predict2.network import Given
from cosmos_robot.backbone.predict2.sampler import sample
from cosmos_robot.contract import Contract
from cosmos_robot.latent_frames.layout import ValueMode
from cosmos_robot.latent_frames.pictures import frame_encoder
from cosmos_robot.policies.latent_frames import (
    LatentFrameModel,
    LatentFramePolicy,
    LatentFrameValueModel,
    LatentFrameWorldModel,
)


class Predict2Backbone:
    """Cosmos Policy's network and autoencoder as latent frames need them. No weight is copied."""

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint, self.source = checkpoint, f"predict2:{checkpoint.name}"
        self.frames = frame_encoder(checkpoint.vae, checkpoint.contract.model)
        levels_of(checkpoint.contract.model.sampler)

    def encode(self, pictures: Sequence[NDArray[np.uint8] | None]) -> Tensor:
        """As ``FrameBackbone``."""
        return self.frames.encode(pictures)

    def decode(self, latents: Tensor, frames: Sequence[int]) -> NDArray[np.uint8]:
        """As ``FrameBackbone``."""
        return self.frames.decode(latents, frames)

    def denoise(
        self, latents: Tensor, clean: Tensor, prompts: Sequence[str], seeds: Sequence[int], steps: int | None
    ) -> Tensor:
        """As ``FrameBackbone``; steps: the contract's if None. Raises InputError for a prompt without embedding."""
        levels = levels_of(self.checkpoint.contract.model.sampler, steps)
        distinct = list(dict.fromkeys(prompts))
        texts = self.checkpoint.texts.batch(distinct, latents.device)
        given = Given(latents, clean, texts, [distinct.index(prompt) for prompt in prompts])
        return sample(self.checkpoint.transformer, given, seeds, levels)


def cosmos_policy_model(checkpoint: Checkpoint) -> LatentFrameModel:
    """The checkpoint as the one model that its verbs share."""
    return LatentFrameModel(Predict2Backbone(checkpoint), checkpoint.contract)


def load(ref: str | Path, device: str = "cpu") -> LatentFramePolicy:
    """The policy of a checkpoint given by name, folder or hub id."""
    return LatentFramePolicy(cosmos_policy_model(load_checkpoint(ref, device=device)))


def load_world_model(ref: str | Path, device: str = "cpu", contract: Contract | None = None) -> LatentFrameWorldModel:
    """The world model of a checkpoint given by name, folder or hub id; ``contract`` instead of its own."""
    return LatentFrameWorldModel(cosmos_policy_model(load_checkpoint(ref, device=device, contract=contract)))


def load_value_model(
    ref: str | Path, device: str = "cpu", contract: Contract | None = None, reads: ValueMode = "value"
) -> LatentFrameValueModel:
    """The value model of a checkpoint given by name, folder or hub id; ``contract`` instead of its own."""
    return LatentFrameValueModel(cosmos_policy_model(load_checkpoint(ref, device=device, contract=contract)), reads)
