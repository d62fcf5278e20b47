"""Canvases to standardised latents and back: (posterior mode - mean) / std, with the VAE config's statistics."""

from __future__ import annotations

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from numpy.typing import NDArray
from torch import Tensor

from cosmos_robot.backbone.cosmos3.image_codec import encode_images
from cosmos_robot.errors import CheckpointError, InputError
from cosmos_robot.images import latent_content


@torch.no_grad()
def encode_first_frame(vae: AutoencoderKLWan, canvases: NDArray[np.uint8]) -> Tensor:
    """(B, H, W, 3) uint8 to (B, C, 1, H/16, W/16) float32, on the VAE's device.

    Only this frame is encoded: the Wan VAE is causal, so the first latent depends on nothing later.
    """
    if canvases.ndim != 4 or canvases.shape[3] != 3 or canvases.dtype != np.uint8:
        raise InputError(f"encode: expected uint8 (B, H, W, 3), got {canvases.dtype} {canvases.shape}")
    _check_sides(vae, canvases.shape[1:3])
    pixels = to_pixels(canvases).to(vae.device, vae.dtype)
    if vae.config.is_residual:
        raw = encode_images(vae, pixels).unsqueeze(2)
    else:
        raw = vae.encode(pixels.unsqueeze(2)).latent_dist.mode()
    mean, std = _statistics(vae)
    return (raw.float() - mean) / std


@torch.no_grad()
def encode_clip(vae: AutoencoderKLWan, clips: NDArray[np.uint8]) -> Tensor:
    """(B, F, H, W, 3) uint8 with F = 1 + 4 k frames to (B, C, 1 + k, H/16, W/16) float32: every latent frame."""
    if clips.ndim != 5 or clips.shape[4] != 3 or clips.dtype != np.uint8:
        raise InputError(f"encode: expected uint8 (B, F, H, W, 3), got {clips.dtype} {clips.shape}")
    step = vae.config.scale_factor_temporal
    if (clips.shape[1] - 1) % step:
        raise InputError(f"encode: expected 1 + {step} k frames, got {clips.shape[1]}; drop or repeat the last ones")
    if clips.shape[1] == 1:
        return encode_first_frame(vae, clips[:, 0])
    _check_sides(vae, clips.shape[2:4])
    pixels = to_pixels(clips.reshape(-1, *clips.shape[2:])).unflatten(0, clips.shape[:2]).transpose(1, 2)
    raw = vae.encode(pixels.to(vae.device, vae.dtype)).latent_dist.mode()
    mean, std = _statistics(vae)
    return (raw.float() - mean) / std


def crop_content(latents: Tensor, size: tuple[int, int, int, int], cell: int) -> Tensor:
    """Latents (..., h, w) of a padded canvas to those of the picture at its top left, whole cells only: the padding is
    encoded, so the picture's last cells see it, but it makes no tokens. size: as ``images.image_size``."""
    rows, columns = latent_content(size, cell)
    if not (1 <= rows <= latents.shape[-2] and 1 <= columns <= latents.shape[-1]):
        raise InputError(
            f"a picture of {size[2]}x{size[3]} pixels fills {rows}x{columns} latent cells of {cell} pixels: expected "
            f"1 to {latents.shape[-2]} rows and 1 to {latents.shape[-1]} columns"
        )
    return latents[..., :rows, :columns]


@torch.no_grad()
def decode(vae: AutoencoderKLWan, latents: Tensor) -> NDArray[np.uint8]:
    """(B, C, L, h, w) standardised to video (B, 1 + 4 (L - 1), 16 h, 16 w, 3) uint8. Raises CheckpointError where the
    latents or the pictures are not finite, which would come out black."""
    _require_finite("the generator (transformer/)", "latents", latents)
    mean, std = _statistics(vae)
    video = vae.decode((latents.to(vae.device).float() * std + mean).to(vae.dtype)).sample
    _require_finite("the autoencoder (vae/)", f"pictures in {vae.dtype} from finite latents", video)
    pixels = ((video.float() + 1) * 127.5).round().clamp(0, 255)
    return pixels.to(torch.uint8).permute(0, 2, 3, 4, 1).cpu().numpy()


def to_pixels(canvases: NDArray[np.uint8]) -> Tensor:
    """(B, H, W, 3) uint8 to (B, 3, H, W) float32 in [-1, 1]."""
    pixels = torch.from_numpy(np.ascontiguousarray(canvases)).permute(0, 3, 1, 2)
    return pixels.to(torch.float32).div_(127.5).sub_(1)


def _require_finite(part: str, what: str, found: Tensor) -> None:
    broken = int(found.numel() - torch.isfinite(found).sum())
    if broken:
        raise CheckpointError(
            f"{part} of the checkpoint made {what} with {broken} of {found.numel()} numbers that are not finite; load "
            "it with another dtype (float32 or bfloat16 where it was float16), or repair that part of the checkpoint"
        )


def _check_sides(vae: AutoencoderKLWan, sides: tuple[int, ...]) -> None:
    factor = vae.config.scale_factor_spatial
    if any(side % factor for side in sides):
        raise InputError(f"encode: canvas sides must be multiples of {factor}, got {sides}")


def _statistics(vae: AutoencoderKLWan) -> tuple[Tensor, Tensor]:
    shape = (1, vae.config.z_dim, 1, 1, 1)
    device = vae.device
    return tuple(torch.tensor(v, device=device).view(shape) for v in (vae.config.latents_mean, vae.config.latents_std))
