"""Vectors put into their frames and read out of them, by a layout."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from cosmos_robot.errors import InputError
from cosmos_robot.latent_frames.layout import ACTION, BLANK, FUTURE, STATE, VALUE, FrameLayout
from cosmos_robot.latent_frames.volumes import averaged, put, spread, tiled, value_of

VECTORS = (STATE, ACTION, FUTURE + STATE, VALUE)


def injected(latents: Tensor, layout: FrameLayout, vectors: Mapping[str, Tensor]) -> Tensor:
    """``latents`` (B, C, L, h, w), a copy, with vectors in their frames.

    vectors: slot to normalised numbers: ``state`` and ``future state`` (B, P), ``action`` (B, K, D), ``value`` (B,)
    from -1 to 1. Raises InputError for another slot, and for a vector larger than a frame.
    """
    volume = (latents.shape[1], latents.shape[3], latents.shape[4])
    for slot, vector in vectors.items():
        if slot not in VECTORS:
            raise InputError(f"inject: {slot!r} holds no vector; expected some of {VECTORS} (never {BLANK!r})")
        content = spread(vector, volume) if slot == VALUE else tiled(vector, volume)
        latents = put(latents, layout.index(slot), content)
    return latents


def action_rows(latents: Tensor, layout: FrameLayout, rows: int, width: int) -> Tensor:
    """(B, rows, width) of the action frame."""
    return averaged(latents[:, :, layout.index(ACTION)], (rows, width))


def future_state(latents: Tensor, layout: FrameLayout, width: int) -> Tensor:
    """(B, width): the state that the model expects after the chunk, normalised as the state is."""
    return averaged(latents[:, :, layout.index(FUTURE + STATE)], (width,))


def values(latents: Tensor, layout: FrameLayout) -> Tensor:
    """(B,) in [0, 1]: the value frame, which the published code always takes to be the last."""
    return value_of(latents[:, :, layout.index(VALUE)])
