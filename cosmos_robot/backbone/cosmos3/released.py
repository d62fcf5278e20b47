"""The released Cosmos 3 checkpoints as data: where they are, what they hold, what they need, what to beware of.

Sizes are those of the published configurations: Nano and Edge by NVIDIA/cosmos-framework and diffusers' defaults,
Super by the Cosmos 3 technical report (section 2, "64 layers, hidden 5120, 64 heads, 8 key-value heads, FFN 25600").
Nothing is downloaded or imported to read this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from cosmos_robot.errors import UnknownNameError

_SHARED = {
    "action_dim": 64,
    "action_gen": True,
    "head_dim": 128,
    "latent_channel": 48,
    "latent_patch_size": 2,
    "num_embodiment_domains": 32,
    "num_key_value_heads": 8,
    "patch_latent_dim": 192,
    "rope_axes_dim": [24, 20, 20],
}
_SOUND = {"sound_gen": True, "sound_dim": 64, "sound_latent_fps": 25.0}

ARCHITECTURES: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType(
    {
        "nano": {
            **_SHARED,
            **_SOUND,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "vocab_size": 151936,
            "rms_norm_eps": 1e-6,
            "rope_theta": 5e6,
        },
        "super": {
            **_SHARED,
            **_SOUND,
            "hidden_size": 5120,
            "intermediate_size": 25600,
            "num_hidden_layers": 64,
            "num_attention_heads": 64,
            "vocab_size": 151936,
            "rms_norm_eps": 1e-6,
            "rope_theta": 5e6,
        },
        "edge": {
            **_SHARED,
            "hidden_size": 2048,
            "intermediate_size": 9216,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "vocab_size": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e8,
            "hidden_act": "relu2",
            "qk_norm_for_text": False,
            "use_und_k_norm_for_gen": True,
        },
    }
)
"""What differs from the defaults of diffusers' ``Cosmos3OmniTransformer``, by size. Super's vocabulary, epsilon, theta
and heads for sound and actions are not printed in the report and taken to be Nano's, whose reasoner is of the same
family (Qwen3-VL)."""

PINNED = "several public repositories name it; it was not fetched to write this"
FP8 = "the repository also carries FP8 (ModelOpt) shards, on a branch and, it is said, once over the bf16 ones: pin"
KARRAS = "its exported scheduler imitates a flow schedule with Karras sigmas; the contract's schedule is used instead"
EDGE_SCHEDULER = "its scheduler class is not in diffusers 0.42.1; the contract's schedule is used instead"
EDGE_HEADS = "snapshots older than 2026-07-16 have no trained action heads and give NaN"
EDGE_INDEX = "its root index names weights that no file holds; they are ignored"
NO_CONTRACT = "a base model serves many robots, so it has no contract of its own: pass one"


@dataclass(frozen=True)
class Released:
    """One released checkpoint.

    revision: the commit that is fetched, or None where none is known to be good; revision_basis says how it is known.
    contract: name of the contract it was trained under, None for a base model. memory_gb: GPU memory that running it
    takes in bfloat16, as documented. size_gb: of its download. hazards: what is known to go wrong.
    """

    name: str
    repository: str
    architecture: str
    summary: str
    revision: str | None
    revision_basis: str
    contract: str | None
    memory_gb: float | None
    size_gb: float | None
    aliases: tuple[str, ...] = ()
    hazards: tuple[str, ...] = ()


RELEASED: Final[Mapping[str, Released]] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Released(
                name="nano",
                repository="nvidia/Cosmos3-Nano",
                architecture="nano",
                summary="base model, 8B reasoner and 8B generator: video, sound, actions of many robots",
                revision="411f42a8fdfb8c5b2583cb8786e0938f49796eaa",
                revision_basis=PINNED,
                contract=None,
                memory_gb=32,
                size_gb=35,
                aliases=("cosmos3-nano",),
                hazards=(FP8, KARRAS, NO_CONTRACT),
            ),
            Released(
                name="super",
                repository="nvidia/Cosmos3-Super",
                architecture="super",
                summary="base model, 32B reasoner and 32B generator: video, sound, actions of many robots",
                revision="e0262be9d8f7586bc24c069a2aed2b665bdff266",
                revision_basis=PINNED,
                contract=None,
                memory_gb=128,
                size_gb=134,
                aliases=("cosmos3-super",),
                hazards=(FP8, KARRAS, NO_CONTRACT),
            ),
            Released(
                name="edge",
                repository="nvidia/Cosmos3-Edge",
                architecture="edge",
                summary="base model, 2B reasoner and 2B generator: video, actions of many robots",
                revision="2a00e87e9976dc3ed5533dd18caf4cdbc3a1bcb2",
                revision_basis=PINNED,
                contract=None,
                memory_gb=None,
                size_gb=9.2,
                aliases=("cosmos3-edge",),
                hazards=(EDGE_HEADS, EDGE_SCHEDULER, EDGE_INDEX, NO_CONTRACT),
            ),
            Released(
                name="nano-policy-droid",
                repository="nvidia/Cosmos3-Nano-Policy-DROID",
                architecture="nano",
                summary="policy for DROID's Franka: joint targets and gripper, 32 rows at 15 Hz",
                revision="6706d7680581c255ff61e0f3bb49d90eac55c79e",
                revision_basis=PINNED,
                contract="cosmos3-nano-droid",
                memory_gb=32,
                size_gb=35,
                aliases=("cosmos3-nano-policy-droid", "nano-droid"),
                hazards=(FP8, KARRAS),
            ),
            Released(
                name="edge-policy-droid",
                repository="nvidia/Cosmos3-Edge-Policy-DROID",
                architecture="edge",
                summary="policy for DROID's Franka: joint targets and gripper, 32 rows at 15 Hz",
                revision="3ea407af3e156c0af3b4bb6edd85842cc9a58777",
                revision_basis=PINNED,
                contract="cosmos3-edge-droid",
                memory_gb=None,
                size_gb=9.2,
                aliases=("cosmos3-edge-policy-droid", "edge-droid"),
                hazards=(EDGE_HEADS, EDGE_SCHEDULER, EDGE_INDEX),
            ),
        )
    }
)


def released(name: str) -> Released | None:
    """The entry of that name, alias or hub id, whatever its case; None if there is none."""
    wanted = name.lower()
    for entry in RELEASED.values():
        if wanted in (entry.name, entry.repository.lower(), *entry.aliases):
            return entry
    return None


def require_released(name: str) -> Released:
    """The same, raising UnknownNameError with the nearest names."""
    entry = released(name)
    if entry is None:
        raise UnknownNameError("released checkpoint", name, RELEASED)
    return entry
