"""The same transformer with larger patches: fewer vision tokens from the same latents."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from diffusers import Cosmos3OmniTransformer

from cosmos_robot.errors import InputError


@torch.no_grad()
def with_patch(transformer: Cosmos3OmniTransformer, patch: int, seed: int = 0) -> Cosmos3OmniTransformer:
    """A float32 copy whose tokens are ``patch`` cells to a side, to be trained further; every other weight is kept.

    A token begins as the sum of its cells' old tokens over ``patch``, and every one of its cells is read as the old
    token's was; a hundredth of noise tells the cells apart. A transformer of that patch is copied as it is. Raises
    InputError unless the old patch is 1.
    """
    config = transformer.config
    old = config.latent_patch_size
    if old not in (1, patch) or patch < 1:
        raise InputError(f"with_patch: expected a transformer of patch 1, got {old}; to be {patch}")
    cells, channels = (patch // old) ** 2, config.latent_channel
    changes = {"latent_patch_size": patch, "patch_latent_dim": patch * patch * channels}
    weights = {name: tensor.float() for name, tensor in transformer.state_dict().items()}
    if cells > 1:
        generator = torch.Generator().manual_seed(seed)
        weights["proj_in.weight"] = _told_apart(weights["proj_in.weight"].repeat(1, cells) / patch, generator)
        weights["proj_out.weight"] = _told_apart(weights["proj_out.weight"].repeat(cells, 1), generator)
        weights["proj_out.bias"] = weights["proj_out.bias"].repeat(cells)
    return remade(transformer, weights, changes)


def remade(
    transformer: Cosmos3OmniTransformer, weights: Mapping[str, torch.Tensor], changes: Mapping[str, object]
) -> Cosmos3OmniTransformer:
    """A float32 transformer of the config of ``transformer`` with ``changes``, and of other ``weights``."""
    arguments = {name: value for name, value in dict(transformer.config).items() if not name.startswith("_")}
    with torch.random.fork_rng(devices=[]):
        made = Cosmos3OmniTransformer(**{**arguments, **changes})
    made.load_state_dict(weights)
    return made


def _told_apart(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return weight + 0.01 * weight.std() * torch.randn(weight.shape, generator=generator)
