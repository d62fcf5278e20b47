"""A Cosmos 3 checkpoint with latent frames in its contract: Cosmos Policy over its video tokens and its flow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cosmos_robot.backbone.cosmos3.checks import check_settings
from cosmos_robot.backbone.cosmos3.layout import TokenPlan
from cosmos_robot.backbone.cosmos3.load import Checkpoint
from cosmos_robot.backbone.cosmos3.runtime import TextCache, encode_text
from cosmos_robot.backbone.cosmos3.sampler import Given, draw_noise, sample
from cosmos_robot.backbone.cosmos3.text import prompt_tokens
from cosmos_robot.backbone.cosmos3.text_cache import TextStore
from cosmos_robot.errors import ContractError
from cosmos_robot.latent_frames.pictures import frame_encoder
from cosmos_robot.policies.latent_frames import LatentFrameModel

TEXT_BYTES = 2**30
"""Of prompts kept ready."""


class Cosmos3FrameBackbone:
    """Cosmos 3's generator and autoencoder as latent frames need them. No weight is copied."""

    def __init__(self, checkpoint: Checkpoint):
        model = checkpoint.contract.model
        check_settings(model.sampler)
        if model.sampler.guidance != 1:
            raise ContractError(f"model.sampler.guidance is {model.sampler.guidance}; latent frames are sampled with 1")
        self.checkpoint, self.source = checkpoint, f"cosmos3:{checkpoint.name}"
        self.frames = frame_encoder(checkpoint.vae, model)
        self.texts = TextStore(self._encode_prompt, TEXT_BYTES)

    def encode(self, pictures: Sequence[NDArray[np.uint8] | None]) -> Tensor:
        """As ``FrameBackbone``."""
        return self.frames.encode(pictures)

    def decode(self, latents: Tensor, frames: Sequence[int]) -> NDArray[np.uint8]:
        """As ``FrameBackbone``."""
        return self.frames.decode(latents, frames)

    def denoise(
        self, latents: Tensor, clean: Tensor, prompts: Sequence[str], seeds: Sequence[int], steps: int | None
    ) -> Tensor:
        """As ``FrameBackbone``; all samples have the same clean frames, since their tokens stand in one plan."""
        model, transformer = self.checkpoint.contract.model, self.checkpoint.transformer
        plan = frame_plan(tuple(latents.shape[2:]), clean, self.checkpoint.contract.fps)
        distinct = list(dict.fromkeys(prompts))
        index = [distinct.index(prompt) for prompt in prompts]
        settings = model.sampler if steps is None else model.sampler.model_copy(update={"steps": steps})
        noise = draw_noise(plan, latents.shape[1], transformer.config.action_dim, 1, seeds, settings.noise)
        given = Given(index, latents, None, int(model.domain_id or 0), 1)
        found = sample(transformer, plan, self.texts.get(distinct), given, settings, noise).video
        assert found is not None
        return found

    @torch.no_grad()
    def _encode_prompt(self, prompt: str) -> TextCache:
        ids = prompt_tokens(self.checkpoint.tokenizer, prompt, self.checkpoint.contract.model.prompt.system_prompt)
        return encode_text(self.checkpoint.transformer, [ids])


def frame_plan(shape: tuple[int, ...], clean: Tensor, fps: float) -> TokenPlan:
    """The token plan of latent frames (L, h, w) alone. clean: (B, L) bool, the same for every sample. Raises
    ContractError where they differ."""
    first = clean[0]
    if not (clean == first).all():
        raise ContractError("latent frames of one batch have different clean frames; sample each mode by itself")
    return TokenPlan((shape[0], shape[1], shape[2]), tuple(first.tolist()), (), fps, 0)


def cosmos3_frame_model(checkpoint: Checkpoint) -> LatentFrameModel:
    """The checkpoint as the one model that its verbs share."""
    return LatentFrameModel(Cosmos3FrameBackbone(checkpoint), checkpoint.contract)
