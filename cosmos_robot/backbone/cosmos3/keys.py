"""Names of weights: native (``net.``, ``model.net.`` or bare) to diffusers and back, without loading anything.

Every rename is of whole dot-separated words, so no rule can meet another's result and the order of rules is no matter.
The table is that of NVIDIA/cosmos-framework's ``scripts/_convert_model_to_diffusers.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cosmos_robot.errors import CheckpointError

ATTENTION: Final = {
    **{f"{letter}_proj": f"to_{letter}" for letter in "qkv"},
    "o_proj": "to_out",
    **{f"{letter}_norm": f"norm_{letter}" for letter in "qk"},
    **{f"{letter}_proj_moe_gen": f"add_{letter}_proj" for letter in "qkv"},
    "o_proj_moe_gen": "to_add_out",
    **{f"{letter}_norm_moe_gen": f"norm_added_{letter}" for letter in "qk"},
    "k_norm_und_for_gen": "k_norm_und_for_gen",
}
LAYER: Final = frozenset(
    name + half
    for name in ("mlp", "input_layernorm", "post_attention_layernorm")
    for half in ("", "_moe_gen")
)  # fmt: skip
HEADS: Final = {
    "vae2llm": "proj_in",
    "llm2vae": "proj_out",
    "action2llm": "action_proj_in",
    "llm2action": "action_proj_out",
    "action_modality_embed": "action_modality_embed",
    "sound2llm": "audio_proj_in",
    "llm2sound": "audio_proj_out",
    "sound_modality_embed": "audio_modality_embed",
}
TIME: Final = {"0": "linear_1", "2": "linear_2"}
LEGACY: Final = frozenset({"action_pos_embed", "latent_pos_embed"})
"""Native weights of older networks that nothing reads any more."""

COPIES: Final = ("net", "net_ema")
_DECODER, _HEAD, _TOWER = "language_model.model.", "language_model.lm_head", "language_model.visual."
_TOP: Final = frozenset({"embed_tokens", "norm", "norm_moe_gen"})


@dataclass(frozen=True)
class NativeKeys:
    """What a native checkpoint's key list holds. copy: which of its copies was chosen.

    transformer: stored key to diffusers key. visual: stored key to key of the ``vision_encoder`` folder, a tower
    that no action mode reads. legacy: stored keys that are dropped. left: stored keys of copies that were not chosen.
    """

    copy: str
    transformer: Mapping[str, str]
    visual: Mapping[str, str] = field(default_factory=dict)
    legacy: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def to_diffusers(native: str) -> str | None:
    """The diffusers name of a native transformer weight without its ``net.`` prefix; None if it is none."""
    if native.startswith(_DECODER):
        return _decoder_to_diffusers(native.removeprefix(_DECODER))
    if native.startswith(_HEAD + "."):
        return native.removeprefix("language_model.")
    first, *rest = native.split(".")
    if first == "time_embedder" and len(rest) == 3 and rest[0] == "mlp" and rest[1] in TIME:
        return f"time_embedder.{TIME[rest[1]]}.{rest[2]}"
    return ".".join([HEADS[first], *rest]) if first in HEADS else None


def to_native(diffusers: str) -> str:
    """The native name, without prefix, of a weight of diffusers' transformer. Raises CheckpointError if it has none."""
    words = diffusers.split(".")
    first, rest = words[0], words[1:]
    if first == "layers" and len(rest) > 2 and rest[1] == "self_attn" and rest[2] in _BACK[0]:
        return _DECODER + ".".join([first, rest[0], rest[1], _BACK[0][rest[2]], *rest[3:]])
    if first in _TOP or (first == "layers" and len(rest) > 1 and rest[1] in LAYER):
        return _DECODER + diffusers
    if first == "lm_head":
        return f"language_model.{diffusers}"
    if first == "time_embedder" and rest and rest[0] in _BACK[2]:
        return ".".join(["time_embedder", "mlp", _BACK[2][rest[0]], *rest[1:]])
    if first in _BACK[1]:
        return ".".join([_BACK[1][first], *rest])
    raise CheckpointError(f"{diffusers!r} is no weight of the Cosmos 3 transformer, so it has no native name")


def split_native(keys: Iterable[str], copy: str = "net") -> NativeKeys:
    """Sort the keys of a native checkpoint. copy: ``net``, the trained weights, or ``net_ema``, their running average.

    Raises CheckpointError for a copy that is not there, keys that nothing knows, and two keys of one meaning.
    """
    if copy not in COPIES:
        raise CheckpointError(f"unknown copy {copy!r} of a native checkpoint's weights; expected one of {COPIES}")
    transformer, visual, legacy, left, unknown = {}, {}, [], [], []
    for key in keys:
        which, name = strip_prefix(key)
        renamed = to_diffusers(name)
        if which != copy:
            left.append(key)
        elif renamed is not None:
            transformer[key] = renamed
        elif name.startswith(_TOWER):
            visual[key] = name.removeprefix(_TOWER)
        elif name.split(".")[0] in LEGACY:
            legacy.append(key)
        else:
            unknown.append(key)
    _refuse(copy, transformer, left, unknown)
    return NativeKeys(copy, transformer, visual, tuple(sorted(legacy)), tuple(sorted(left)))


def strip_prefix(key: str) -> tuple[str, str]:
    """Which copy a stored native key belongs to, and its name without prefixes; a bare key belongs to ``net``."""
    inner = key.removeprefix("model.")
    for copy in COPIES:
        if inner.startswith(f"{copy}."):
            return copy, inner.removeprefix(f"{copy}.")
    return "net", key


def is_native(keys: Iterable[str]) -> bool:
    """Whether any of the keys is a native transformer weight that diffusers would spell differently."""
    names = [(key, strip_prefix(key)[1]) for key in keys]
    return any(to_diffusers(name) not in (None, key) for key, name in names)


def _decoder_to_diffusers(name: str) -> str | None:
    words = name.split(".")
    if words[0] in _TOP:
        return name
    if words[0] != "layers" or len(words) < 4 or not words[1].isdigit():
        return None
    if words[2] == "self_attn" and words[3] in ATTENTION:
        return ".".join([*words[:3], ATTENTION[words[3]], *words[4:]])
    return name if words[2] in LAYER else None


def _refuse(copy: str, transformer: Mapping[str, str], left: list[str], unknown: list[str]) -> None:
    if unknown:
        raise CheckpointError(f"native checkpoint holds weights that nothing knows: {_some(unknown)}")
    if not transformer:
        others = f"; it holds {len(left)} keys of another copy, choose that" if left else ""
        raise CheckpointError(f"native checkpoint holds no transformer weights under {copy!r}{others}")
    meanings: dict[str, str] = {}
    for key, name in transformer.items():
        if name in meanings:
            raise CheckpointError(f"native checkpoint names {name!r} twice: {meanings[name]!r} and {key!r}")
        meanings[name] = key


def _some(names: list[str], most: int = 8) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(sorted(names)[:most]) + rest


_BACK: Final = tuple({new: old for old, new in table.items()} for table in (ATTENTION, HEADS, TIME))
