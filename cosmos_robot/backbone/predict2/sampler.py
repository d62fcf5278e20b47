"""Latent frames denoised together, whatever of them is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from diffusers import CosmosTransformer3DModel
from torch import Tensor

from cosmos_robot.backbone.predict2.edm import denoise, scaling, start_noise
from cosmos_robot.backbone.predict2.network import Given
from cosmos_robot.backbone.predict2.runtime import SharedForward
from cosmos_robot.errors import InputError

Watch = Callable[[Tensor, float], None]
"""Called with the state (b, C, L, h, w) and the level before each call of the network, for the samples of that call.
Clean frames stand in it as they are given."""

CACHED: Final = 2**17
"""Numbers of one activation that a CPU works on at a time: in float32 half of a common core's second cache."""


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
    drawing it from ``seeds``. Samples that share their text and their clean frames are computed together. Raises
    InputError for shapes that do not fit each other or the network.
    """
    check_given(network, given)
    if len(seeds) != len(given.latents):
        raise InputError(f"sample: {len(given.latents)} samples but {len(seeds)} seeds; pass one for each")
    start = start_noise(seeds, tuple(given.latents.shape[1:])) if noise is None else noise
    if start.shape != given.latents.shape:
        raise InputError(f"sample: noise is {tuple(start.shape)}, expected {tuple(given.latents.shape)}")
    out = given.latents.float().clone()
    start = start.to(out.device).float() * levels[0]
    times = [float(scaling(torch.tensor(level, dtype=torch.float32)).time) for level in levels]
    for samples in _alike(given):
        pattern, text = given.clean[samples[0]].tolist(), given.text[given.reads[samples[0]]]
        if all(pattern):
            continue
        shared = SharedForward(network, text, pattern, tuple(out.shape[2:]), times)
        for piece in torch.tensor(samples, device=out.device).split(_together(network, out)):
            out[piece] = _denoised(shared, out[piece], start[piece], levels, watch)
    return out


def _denoised(shared: SharedForward, given: Tensor, start: Tensor, levels: Sequence[float], watch: Watch | None):
    """(b, C, L, h, w): ``given`` with its noisy frames denoised; the solver goes through those alone."""
    piece, frames, calls = shared.piece(given), shared.noisy_frames, iter(range(len(levels)))

    def clean(state: Tensor, level: float) -> Tensor:
        if watch is not None:
            watch(given.index_copy(2, torch.tensor(frames, device=given.device), state), level)
        skip, out, into, _ = scaling(torch.tensor(level, device=state.device))
        return skip * state + out * piece(into * state, next(calls))

    given[:, :, frames] = denoise(clean, start[:, :, frames], levels)
    return given


def _alike(given: Given) -> list[list[int]]:
    """The samples of each text and pattern of clean frames."""
    groups: dict[tuple[int, tuple[bool, ...]], list[int]] = {}
    for sample_, (text, pattern) in enumerate(zip(given.reads, given.clean.tolist(), strict=True)):
        groups.setdefault((text, tuple(pattern)), []).append(sample_)
    return list(groups.values())


def _together(network: CosmosTransformer3DModel, latents: Tensor) -> int:
    """How many samples to compute at a time: on a CPU those whose activations stay in its cache, elsewhere all."""
    if latents.device.type != "cpu":
        return len(latents)
    config, (frames, height, width) = network.config, latents.shape[2:]
    tokens = frames * (height // config.patch_size[1]) * (width // config.patch_size[2])
    return max(1, CACHED // (tokens * config.num_attention_heads * config.attention_head_dim))


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
    if len(text) != 3 or text[2] != config.text_embed_dim:
        raise InputError(f"sample: text is {text}, expected (texts, tokens, {config.text_embed_dim})")
    if len(given.reads) != shape[0] or not all(0 <= i < text[0] for i in given.reads):
        raise InputError(f"sample: {shape[0]} samples read the texts {given.reads}, but there are {text[0]}")
