"""What a run is made from besides its settings: its data and the weights it starts with, as fingerprints.

They stand in the run's config, so that a run is resumed with the same or not at all.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor, nn

from cosmos_robot.training.latents import vae_fingerprint
from cosmos_robot.training.session import MADE_FROM


def ingredients(data: Mapping[str, Iterable[str]], weights: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """The part of a run's config that says what it is made from. data: fingerprints of the sources of each part.
    weights: fingerprints by what they are of."""
    return {MADE_FROM: {**{f"data of {name}": list(of) for name, of in data.items()}, **weights}}


def start_weights(transformer: nn.Module, vae: AutoencoderKLWan) -> dict[str, str]:
    """Fingerprints of a start's two parts, as ``ingredients`` takes them."""
    return {"start weights": module_fingerprint(transformer), "autoencoder": autoencoder_fingerprint(vae)}


def autoencoder_fingerprint(vae: AutoencoderKLWan) -> str:
    """Hash of all weights, the decoder's too, and of the latent statistics."""
    return f"{vae_fingerprint(vae)}-{module_fingerprint(vae)}"


def module_fingerprint(module: nn.Module) -> str:
    """Hash of all weights by name, in the precision they are held in, on any device."""
    return tensors_fingerprint(module.state_dict())


def tensors_fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """As ``module_fingerprint``, of tensors by name."""
    digest = hashlib.blake2b(digest_size=8)
    names = sorted(tensors)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing lets other threads run; a large model takes minutes else
        for name, part in zip(names, pool.map(lambda name: _digest(tensors[name]), names), strict=True):
            digest.update(name.encode() + part)
    return digest.hexdigest()


def _digest(tensor: Tensor) -> bytes:
    tensor = tensor.detach().cpu().contiguous()
    digest = hashlib.blake2b(repr((tuple(tensor.shape), str(tensor.dtype))).encode(), digest_size=16)
    digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.digest()
