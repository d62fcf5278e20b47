"""Latent frames denoised together, whatever of them is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from diffusers import CosmosTransformer3DModel
from torch import Tensor

from cosmos_robot.backbone.predict2.edm import denoise, start_noise
from cosmos_robot.backbone.predict2.network import Given, predict_clean
from cosmos_robot.errors import InputError

Watch = Callable[[Tensor, float], None]
"""Called with the state (B, C, L, h, w) and the level before each call of the network."""


@torch.no_grad()
def sample(
    network: CosmosTransformer3DModel,
    given: Given,
    seeds: Sequence[int],
    levels: Sequence[float],
    *,
    noise: Tensor | None = None,
    watch: Watch | None = None,
) -> Tensor:
    """(B, C, L, h, w) float32: every frame denoised, those of ``given.clean`` as they are given.

    levels: as of ``edm.noise_levels``, one call of the network each. noise: (B, C, L, h, w) standard normal, instead of
    drawing it from ``seeds``. Raises InputError for shapes that do not fit each other or the network.
    """
    check_given(network, given)
    if len(seeds) != len(given.latents):
        raise InputError(f"sample: {len(given.latents)} samples but {len(seeds)} seeds; pass one for each")
    start = start_noise(seeds, tuple(given.latents.shape[1:])) if noise is None else noise
    if start.shape != given.latents.shape:
        raise InputError(f"sample: noise is {tuple(start.shape)}, expected {tuple(given.latents.shape)}")

    def clean(state: Tensor, level: float) -> Tensor:
        if watch is not None:
            watch(state, level)
        return predict_clean(network, given, state, torch.full((len(state),), level, device=state.device))

    return denoise(clean, start.to(given.latents.device).float() * levels[0], levels)


def check_given(network: CosmosTransformer3DModel, given: Given) -> None:
    """Raise InputError naming what of ``given`` does not fit the network."""
    config, shape = network.config, tuple(given.latents.shape)
    channels, patch = config.in_channels - 1, config.patch_size[1]
    if len(shape) != 5 or shape[1] != channels or shape[3] % patch or shape[4] % patch:
        raise InputError(
            f"sample: expected latents (B, {channels}, L, h, w) with h and w multiples of {patch}, got {shape}"
        )
    if given.clean.shape != (shape[0], shape[2]) or given.clean.dtype != torch.bool:
        raise InputError(
            f"sample: clean is {given.clean.dtype} {tuple(given.clean.shape)}, expected bool {(shape[0], shape[2])}"
        )
    text = tuple(given.text.shape)
    if len(text) != 3 or text[0] != shape[0] or text[2] != config.text_embed_dim:
        raise InputError(f"sample: text is {text}, expected ({shape[0]}, tokens, {config.text_embed_dim})")
