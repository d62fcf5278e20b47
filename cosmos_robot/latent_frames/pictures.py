"""Pictures to latent frames and back, with a Wan autoencoder, 2.1 or 2.2: one black or shown picture a frame.

As a video, the first latent frame is one picture, every other four times the same one. The autoencoder looks back and
never ahead: so only frames up to the last known picture are encoded, and the black ones that they start with only
once. As stills, each frame is the first of a video of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import patchify
from numpy.typing import NDArray
from torch import Tensor

from cosmos_robot.backbone.cosmos3.latents import decode, encode_first_frame, to_pixels
from cosmos_robot.contract import WHOLE_CANVAS, ModelSpec
from cosmos_robot.errors import CheckpointError, InputError

Pictures = Sequence[NDArray[np.uint8] | None]
"""What each latent frame shows, in their order: (B, H, W, 3) uint8, or None for black."""


class FrameEncoder:
    """Latent frames of one autoencoder for pictures of one size (height, width), as one video."""

    def __init__(self, vae: AutoencoderKLWan, size: tuple[int, int]):
        config = vae.config
        if config.scale_factor_temporal != 4:
            raise CheckpointError(
                f"latent frames are four pictures each, of this autoencoder {config.scale_factor_temporal}"
            )
        if any(side % config.scale_factor_spatial for side in size):
            raise InputError(f"pictures of {size} pixels: expected multiples of {config.scale_factor_spatial}")
        self.vae, self.size = vae, size
        self.grid = (size[0] // config.scale_factor_spatial, size[1] // config.scale_factor_spatial)
        self._dark: dict[int, tuple[list[Tensor], list[Any]]] = {}

    @torch.no_grad()
    def encode(self, pictures: Pictures) -> Tensor:
        """(B, C, L, h, w) float32, standardised, L = len(pictures). Raises InputError for pictures of another size."""
        batch = self._batch(pictures)
        first = next((i for i, p in enumerate(pictures) if p is not None), len(pictures))
        frames, memory = self._after_black(first)
        frames = [f.expand(batch, *f.shape[1:]) for f in frames]
        memory = [m.expand(batch, *m.shape[1:]) if isinstance(m, Tensor) else m for m in memory]
        black = np.zeros((batch, *self.size, 3), np.uint8)
        for number, picture in enumerate(pictures[first:], first):
            frames.append(self._one(black if picture is None else picture, number, memory))
        return self._standard(self.vae.quant_conv(torch.cat(frames, dim=2)))

    def decode(self, latents: Tensor, frames: Sequence[int]) -> NDArray[np.uint8]:
        """(B, len(frames), H, W, 3) uint8: the pictures of some latent frames of (B, C, L, h, w), each the first of its
        four (cosmos_utils.py). Frames after the last are not decoded."""
        video = decode(self.vae, latents[:, :, : max(frames) + 1])
        return video[:, [4 * (frame - 1) + 1 if frame else 0 for frame in frames]]

    def _batch(self, pictures: Pictures) -> int:
        """How many pictures each shown frame has, 1 if none is shown; those that do not fit are refused."""
        shown = [p for p in pictures if p is not None]
        batch = len(shown[0]) if shown else 1
        for picture in shown:
            if picture.shape != (batch, *self.size, 3) or picture.dtype != np.uint8:
                raise InputError(
                    f"encode: expected uint8 {(batch, *self.size, 3)}, got {picture.dtype} {picture.shape}"
                )
        return batch

    def _after_black(self, count: int) -> tuple[list[Tensor], list[Any]]:
        """``count`` black frames of one sample, before the last layer, and what the encoder remembers after them."""
        if count not in self._dark:
            memory: list[Any] = [None] * self.vae._cached_conv_counts["encoder"]
            black = np.zeros((1, *self.size, 3), np.uint8)
            self._dark[count] = [self._one(black, number, memory) for number in range(count)], memory
        frames, memory = self._dark[count]
        return list(frames), list(memory)

    def _one(self, picture: NDArray[np.uint8], number: int, memory: list[Any]) -> Tensor:
        """One latent frame (B, C', 1, h, w) after those before, which ``memory`` stands for and is brought up to."""
        pixels = to_pixels(picture).to(self.vae.device, self.vae.dtype).unsqueeze(2)
        copies = pixels if number == 0 else pixels.expand(-1, -1, 4, -1, -1)
        if self.vae.config.patch_size is not None:
            copies = patchify(copies, self.vae.config.patch_size)
        return self.vae.encoder(copies, feat_cache=memory, feat_idx=[0])

    def _standard(self, moments: Tensor) -> Tensor:
        config = self.vae.config
        mean, std = (
            torch.tensor(v, device=moments.device).view(1, -1, 1, 1, 1)
            for v in (config.latents_mean, config.latents_std)
        )
        return (moments[:, : config.z_dim].float() - mean) / std


class StillEncoder(FrameEncoder):
    """Latent frames that know nothing of each other."""

    @torch.no_grad()
    def encode(self, pictures: Pictures) -> Tensor:
        """As ``FrameEncoder``."""
        batch, frames = self._batch(pictures), []
        for picture in pictures:
            shown = self._black() if picture is None else encode_first_frame(self.vae, picture)
            frames.append(shown.expand(batch, *shown.shape[1:]))
        return torch.cat(frames, dim=2)

    def decode(self, latents: Tensor, frames: Sequence[int]) -> NDArray[np.uint8]:
        """As ``FrameEncoder``."""
        return np.stack([decode(self.vae, latents[:, :, frame : frame + 1])[:, 0] for frame in frames], axis=1)

    def _black(self) -> Tensor:
        if 1 not in self._dark:
            black = encode_first_frame(self.vae, np.zeros((1, *self.size, 3), np.uint8))
            self._dark[1] = [black], []
        return self._dark[1][0][0]


_ENCODERS: dict[Literal["video", "stills"], type[FrameEncoder]] = {"video": FrameEncoder, "stills": StillEncoder}


def frame_encoder(vae: AutoencoderKLWan, model: ModelSpec) -> FrameEncoder:
    """The encoder of a contract's latent frames."""
    place = model.canvas if WHOLE_CANVAS in model.frames else model.canvas.placements[0].to
    return _ENCODERS[model.frame_encoding](vae, (place.height, place.width))
