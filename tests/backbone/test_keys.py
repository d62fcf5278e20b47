"""Names of weights, native to diffusers and back, on the real sizes and on lists that are not as they should be."""

from __future__ import annotations

from pathlib import Path

import pytest
from diffusers import Cosmos3OmniTransformer

from cosmos_robot.backbone.cosmos3 import keys
from cosmos_robot.backbone.cosmos3.modules import shapes_of, unfilled
from cosmos_robot.backbone.cosmos3.released import ARCHITECTURES
from cosmos_robot.errors import CheckpointError

# Parameters of the whole transformer, in billions, counted from the published sizes.
BILLIONS = {"nano": (15, 16.5), "super": (62, 66), "edge": (3, 4.5)}


@pytest.fixture(scope="module", params=sorted(ARCHITECTURES))
def built(request: pytest.FixtureRequest) -> tuple[str, dict[str, tuple[int, ...]]]:
    module = unfilled(Cosmos3OmniTransformer, ARCHITECTURES[request.param], Path(request.param))
    assert all(parameter.is_meta for parameter in module.parameters())
    return request.param, shapes_of(module)


def test_released_sizes_are_mapped_both_ways(built) -> None:
    _, shapes = built
    native = {keys.to_native(name): name for name in shapes}
    assert len(native) == len(shapes)
    assert {name: keys.to_diffusers(name) for name in native} == native
    assert keys.is_native(native) and not keys.is_native(shapes)
    split = keys.split_native(f"model.net.{name}" for name in native)
    assert set(split.transformer.values()) == shapes.keys()


def test_released_sizes_are_what_their_names_say(built) -> None:
    name, shapes = built
    count = 0
    for shape in shapes.values():
        size = 1
        for side in shape:
            size *= side
        count += size
    low, high = BILLIONS[name]
    assert low < count / 1e9 < high
    assert shapes["action_proj_out.bias.weight"] == (32, 64)
    assert ("audio_proj_in.weight" in shapes) == (name != "edge")
    assert ("layers.0.mlp.gate_proj.weight" in shapes) == (name != "edge")
    assert ("layers.0.self_attn.k_norm_und_for_gen.weight" in shapes) == (name == "edge")
    assert ("layers.0.self_attn.norm_q.weight" in shapes) == (name != "edge")


LAYER = "language_model.model.layers.3."


@pytest.mark.parametrize(
    ("native", "diffusers"),
    [
        (f"{LAYER}self_attn.q_proj_moe_gen.weight", "layers.3.self_attn.add_q_proj.weight"),
        (f"{LAYER}self_attn.q_proj.weight", "layers.3.self_attn.to_q.weight"),
        (f"{LAYER}self_attn.o_proj_moe_gen.bias", "layers.3.self_attn.to_add_out.bias"),
        (f"{LAYER}mlp_moe_gen.up_proj.weight", "layers.3.mlp_moe_gen.up_proj.weight"),
        ("sound2llm.bias", "audio_proj_in.bias"),
        ("sound_modality_embed", "audio_modality_embed"),
        ("time_embedder.mlp.2.bias", "time_embedder.linear_2.bias"),
    ],
)
def test_rules_do_not_meet(native: str, diffusers: str) -> None:
    assert (keys.to_diffusers(native), keys.to_native(diffusers)) == (diffusers, native)


@pytest.mark.parametrize("prefix", ["", "net.", "model.net."])
def test_prefixes(prefix: str) -> None:
    assert keys.split_native([f"{prefix}vae2llm.weight"]).transformer == {f"{prefix}vae2llm.weight": "proj_in.weight"}


def test_the_average_is_chosen_by_name() -> None:
    both = ["net.vae2llm.weight", "net_ema.vae2llm.weight", "net_ema.llm2vae.weight"]
    plain, average = keys.split_native(both), keys.split_native(both, "net_ema")
    assert list(plain.transformer) == ["net.vae2llm.weight"] and plain.left == tuple(sorted(both[1:]))
    assert set(average.transformer) == set(both[1:]) and average.left == ("net.vae2llm.weight",)
    with pytest.raises(CheckpointError, match="no transformer weights under 'net'; it holds 2 keys of another copy"):
        keys.split_native(both[1:])
    with pytest.raises(CheckpointError, match="unknown copy 'ema'"):
        keys.split_native(both, "ema")


def test_towers_and_legacy_weights_are_set_apart() -> None:
    split = keys.split_native(
        ["net.vae2llm.bias", "net.language_model.visual.blocks.0.norm1.weight",
         "net.action_pos_embed.pos", "net.latent_pos_embed"]
    )  # fmt: skip
    assert split.visual == {"net.language_model.visual.blocks.0.norm1.weight": "blocks.0.norm1.weight"}
    assert split.legacy == ("net.action_pos_embed.pos", "net.latent_pos_embed")


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (["net.vae2llm.bias", "net.lidar2llm.bias"], "nothing knows: net.lidar2llm.bias"),
        (["net.vae2llm.bias", f"net.{LAYER}self_attn.to_q.weight"], "nothing knows"),
        (["net.vae2llm.bias", "vae2llm.bias"], "names 'proj_in.bias' twice"),
        ([], "no transformer weights"),
    ],
)
def test_lists_that_are_wrong_are_refused(stored: list[str], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        keys.split_native(stored)


@pytest.mark.parametrize("name", ["vae2llm.weight", "layers.0.self_attn.q_proj.weight", "layers.0.mystery.weight", ""])
def test_a_name_that_is_not_diffusers_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="no weight of the Cosmos 3 transformer"):
        keys.to_native(name)
