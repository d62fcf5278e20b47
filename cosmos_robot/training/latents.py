"""Latents of a frame cache, encoded once per autoencoder and kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from diffusers import AutoencoderKLWan
from numpy.typing import NDArray
from rich.progress import track

from cosmos_robot.backbone.cosmos3.latents import encode_first_frame
from cosmos_robot.training.cache import CELL, FrameCache


def vae_fingerprint(vae: AutoencoderKLWan) -> str:
    """Hash of the encoder's weights and of the latent statistics."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(vae.state_dict().items()):
        if name.startswith(("encoder", "quant_conv")):
            digest.update(name.encode())
            digest.update(tensor.detach().float().cpu().contiguous().numpy())
    digest.update(repr((list(vae.config.latents_mean), list(vae.config.latents_std))).encode())
    return digest.hexdigest()


Alter = Callable[[NDArray[np.uint8], NDArray[np.int64]], NDArray[np.uint8]]
"""Canvases (N, H, W, 3) and their rows (N,) to the canvases that are encoded instead."""


def latent_cache(
    frames: FrameCache,
    vae: AutoencoderKLWan,
    progress: bool = True,
    batch: int = 32,
    name: str = "",
    alter: Alter | None = None,
) -> NDArray:
    """Standardised latents (N, C, h, w) float16 of every canvas, a memory map beside the frames.

    alter, name: canvases changed before they are encoded, and what tells these latents from others in the folder.
    Encoded in float32 if no file for this autoencoder is there yet; half-written files have another name.
    """
    path = frames.folder / f"latents-{vae_fingerprint(vae)}{name}.npy"
    if not path.is_file():
        _, height, width, _ = frames.canvases.shape
        shape = (len(frames), vae.config.z_dim, height // CELL, width // CELL)
        part = path.with_suffix(".part")
        out = np.lib.format.open_memmap(part, "w+", np.float16, shape)
        for start in track(range(0, len(frames), batch), "encoding canvases", disable=not progress):
            canvases = np.array(frames.canvases[start : start + batch])
            if alter is not None:
                canvases = alter(canvases, np.arange(start, start + len(canvases)))
            out[start : start + batch] = encode_first_frame(vae, canvases)[:, :, 0].cpu().numpy()
        out.flush()
        part.rename(path)
    return np.load(path, mmap_mode="r")


def black_latents(vae: AutoencoderKLWan, height: int, width: int) -> NDArray[np.float16]:
    """(C, h, w) of the black canvas that a blind policy reads."""
    black = encode_first_frame(vae, np.zeros((1, height, width, 3), np.uint8))[0, :, 0]
    return black.cpu().numpy().astype(np.float16)
