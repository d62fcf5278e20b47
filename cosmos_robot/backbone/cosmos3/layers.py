"""One layer of either half, over the modules of diffusers' ``Cosmos3OmniTransformer``.

Axis legend: B samples, G branches of guidance, U distinct prompts, n text tokens, N generation tokens, Hk key-value
heads, d head width, E hidden width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosmos_robot.backbone.cosmos3.kernels import (
    SharedText,
    full_attention,
    in_pieces,
    matmul_dtype,
    rms_norm,
    shared_attention,
)
from cosmos_robot.backbone.cosmos3.rotary import Rotary, rotate

Wanted = range | list[int]
"""Generation tokens that are read out."""


class Padded(NamedTuple):
    """Text keys and values (G * B, Hk, n, d), one row for each sample; mask (G * B, 1, 1, n + N) True where a key may
    be read, None where no text is padded."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None


Read = Padded | list[SharedText]


def text_layer(layer: nn.Module, x: Tensor, turn: Rotary, last: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(U, n, E) to the same, with the keys and values that generation tokens read; the last layer stops at those."""
    attention = layer.self_attn
    heads = (-1, attention.head_dim)
    normed = rms_norm(layer.input_layernorm, x, matmul_dtype(x))
    key = rms_norm(attention.norm_k, attention.to_k(normed).unflatten(-1, heads))
    value = attention.to_v(normed).unflatten(-1, heads).transpose(1, 2)
    own_key = rotate(key, turn).transpose(1, 2)
    shown_key = own_key
    if attention.k_norm_und_for_gen is not None:
        shown_key = rotate(rms_norm(attention.k_norm_und_for_gen, key), turn).transpose(1, 2)
    if last:
        return x, shown_key, value
    query = rotate(rms_norm(attention.norm_q, attention.to_q(normed).unflatten(-1, heads)), turn).transpose(1, 2)
    out = F.scaled_dot_product_attention(query, own_key, value.to(own_key.dtype), is_causal=True, enable_gqa=True)
    x = x + attention.to_out(out.transpose(1, 2).flatten(2))
    return x + layer.mlp(rms_norm(layer.post_attention_layernorm, x, matmul_dtype(x))), shown_key, value


def generation_layer(
    layer: nn.Module, x: Tensor, read: Read, turn: Rotary, wanted: Wanted | None, branches: int
) -> Tensor:
    """(B, N, E) to (G * B, N, E), or to the ``wanted`` tokens only.

    branches: G where all branches enter with the same tokens, as they do into the first layer; 1 elsewhere.
    """
    attention = layer.self_attn
    heads = (-1, attention.head_dim)
    normed = rms_norm(layer.input_layernorm_moe_gen, x, matmul_dtype(x))
    key = rms_norm(attention.norm_added_k, attention.add_k_proj(normed).unflatten(-1, heads))
    value = attention.add_v_proj(normed).unflatten(-1, heads)
    query = rms_norm(attention.norm_added_q, attention.add_q_proj(_take(normed, wanted)).unflatten(-1, heads))
    x = _take(x, wanted)
    if branches > 1:
        key, value, query, x = (torch.cat([t] * branches) for t in (key, value, query, x))
    query = rotate(query, turn if wanted is None else turn.take(wanted))
    x = x + attention.to_add_out(_attend(query, rotate(key, turn).transpose(1, 2), value.transpose(1, 2), read))
    return x + in_pieces(layer.mlp_moe_gen, rms_norm(layer.post_attention_layernorm_moe_gen, x, matmul_dtype(x)))


def _attend(query: Tensor, key: Tensor, value: Tensor, read: Read) -> Tensor:
    if not isinstance(read, Padded):
        return shared_attention(query, key, value, read)
    key = torch.cat([read.keys.to(key.dtype), key], dim=2)
    value = torch.cat([read.values.to(value.dtype), value], dim=2)
    return full_attention(query, key, value, read.mask)


def _take(x: Tensor, tokens: Wanted | None) -> Tensor:
    """Those of the tokens along axis 1 (None: all)."""
    if tokens is None:
        return x
    if isinstance(tokens, range):
        return x[:, tokens.start : tokens.stop]
    return x.index_select(1, torch.tensor(tokens, device=x.device))
