"""Published weight names of Cosmos Policy (minimal_v4_dit.py) to those of diffusers' ``CosmosTransformer3DModel``.

No tensor is split, transposed or reordered: the order of patches, of shift, scale and gate, and of heads is the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cosmos_robot.errors import CheckpointError

COPIES: Final = ("net", "net_ema")
_TOP: Final = {
    "x_embedder.proj.1.weight": "patch_embed.proj.weight",
    "t_embedder.1.linear_1.weight": "time_embed.t_embedder.linear_1.weight",
    "t_embedder.1.linear_2.weight": "time_embed.t_embedder.linear_2.weight",
    "t_embedding_norm.weight": "time_embed.norm.weight",
    "final_layer.adaln_modulation.1.weight": "norm_out.linear_1.weight",
    "final_layer.adaln_modulation.2.weight": "norm_out.linear_2.weight",
    "final_layer.linear.weight": "proj_out.weight",
}
_ATTENTION: Final = {
    **{f"{letter}_proj": f"to_{letter}" for letter in "qkv"},
    "output_proj": "to_out.0",
    "q_norm": "norm_q",
    "k_norm": "norm_k",
}
_BLOCK: Final = {
    **{
        f"adaln_modulation_{part}.{layer}.weight": f"norm{number}.linear_{layer}.weight"
        for number, part in enumerate(("self_attn", "cross_attn", "mlp"), 1)
        for layer in (1, 2)
    },
    **{
        f"{part}.{old}.weight": f"attn{number}.{new}.weight"
        for number, part in enumerate(("self_attn", "cross_attn"), 1)
        for old, new in _ATTENTION.items()
    },
    "mlp.layer1.weight": "ff.net.0.proj.weight",
    "mlp.layer2.weight": "ff.net.2.weight",
}
_BLOCK_KEY: Final = re.compile(r"blocks\.(\d+)\.(.+)")
DROPPED: Final = re.compile(
    r"pos_embedder\.(seq|dim_(spatial|temporal)_range)|accum_\w+|(.+\.)?_extra_state(\..+)?|logvar(\..+)?"
)
"""What is recomputed (positions), counted (samples seen, never initialised) or of Transformer Engine's own."""

_BACK_TOP: Final = {new: old for old, new in _TOP.items()}
_BACK_BLOCK: Final = {new: old for old, new in _BLOCK.items()}


@dataclass(frozen=True)
class PublishedKeys:
    """What a published key list holds: stored key to diffusers key, keys that are dropped, keys of the other copy."""

    copy: str
    transformer: Mapping[str, str]
    dropped: tuple[str, ...]
    left: tuple[str, ...]


def to_diffusers(published: str) -> str | None:
    """The diffusers name of a published weight without its ``net.`` prefix; None if it is none."""
    block = _BLOCK_KEY.fullmatch(published)
    if block and block[2] in _BLOCK:
        return f"transformer_blocks.{block[1]}.{_BLOCK[block[2]]}"
    return _TOP.get(published)


def to_published(diffusers: str) -> str:
    """The published name, without prefix, of a weight of the transformer. Raises CheckpointError if it has none."""
    first, _, rest = diffusers.partition(".")
    number, _, inner = rest.partition(".")
    if first == "transformer_blocks" and inner in _BACK_BLOCK:
        return f"blocks.{number}.{_BACK_BLOCK[inner]}"
    if diffusers in _BACK_TOP:
        return _BACK_TOP[diffusers]
    raise CheckpointError(f"{diffusers!r} is no weight of Cosmos Policy's transformer, so it has no published name")


def split_published(keys: Iterable[str], copy: str = "net") -> PublishedKeys:
    """Sort the keys of a published checkpoint. copy: ``net``, the trained weights, or ``net_ema``, their average.

    Raises CheckpointError for a copy that is not there, and for keys that nothing knows.
    """
    if copy not in COPIES:
        raise CheckpointError(f"unknown copy {copy!r} of a published checkpoint's weights; expected one of {COPIES}")
    found: dict[str, str] = {}
    dropped, left, unknown = [], [], []
    for key in keys:
        which, name = _strip(key)
        renamed = to_diffusers(name)
        if which != copy:
            left.append(key)
        elif renamed is not None and renamed not in found.values():
            found[key] = renamed
        elif DROPPED.fullmatch(name):
            dropped.append(key)
        else:
            unknown.append(key)
    if unknown:
        raise CheckpointError(
            f"published checkpoint holds {len(unknown)} weights that nothing knows, or twice: {sorted(unknown)[:8]}"
        )
    if not found:
        raise CheckpointError(f"published checkpoint holds no weights under {copy!r}; {len(left)} are of another copy")
    return PublishedKeys(copy, found, tuple(sorted(dropped)), tuple(sorted(left)))


def config_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The configuration of the transformer that has weights of these ``shapes`` (by diffusers' names), as the released
    networks are: positions scaled by (1, 3, 3), no learned ones, one padding mask channel, patches of 1x2x2.

    Raises CheckpointError where a weight is missing that tells a size.
    """

    def shape(key: str) -> tuple[int, ...]:
        if key not in shapes:
            raise CheckpointError(f"published checkpoint lacks {to_published(key)!r}, which tells the network's size")
        return shapes[key]

    block, patch = "transformer_blocks.0", 4
    width, into = shape("patch_embed.proj.weight")
    head = shape(f"{block}.attn1.norm_q.weight")[0]
    layers = {key.split(".")[1] for key in shapes if key.startswith("transformer_blocks.")}
    return {
        "in_channels": into // patch - 1,
        "out_channels": shape("proj_out.weight")[0] // patch,
        "num_attention_heads": width // head,
        "attention_head_dim": head,
        "num_layers": len(layers),
        "mlp_ratio": shape(f"{block}.ff.net.0.proj.weight")[0] / width,
        "text_embed_dim": shape(f"{block}.attn2.to_k.weight")[1],
        "adaln_lora_dim": shape(f"{block}.norm1.linear_1.weight")[0],
        "max_size": (128, 240, 240),
        "patch_size": (1, 2, 2),
        "rope_scale": (1.0, 3.0, 3.0),
        "concat_padding_mask": True,
        "extra_pos_embed_type": None,
    }


def _strip(key: str) -> tuple[str, str]:
    """Which copy a stored key belongs to, and its name without prefixes; a bare key belongs to ``net``."""
    inner = key.removeprefix("model.")
    for copy in COPIES:
        if inner.startswith(f"{copy}."):
            return copy, inner.removeprefix(f"{copy}.")
    return "net", key
