"""Cosmos Policy's backbone: names, refusals, unsafe files, embedded texts, pictures in frames, noise."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cosmos_robot.backbone.cosmos3.latents import decode, encode_clip
from cosmos_robot.backbone.predict2.edm import denoise, loss_weight, noise_levels, scaling, start_noise
from cosmos_robot.backbone.predict2.keys import split_published, to_diffusers, to_published
from cosmos_robot.backbone.predict2.load import load_network
from cosmos_robot.backbone.predict2.network import Given, predict_clean
from cosmos_robot.backbone.predict2.sampler import sample
from cosmos_robot.backbone.predict2.text import TextEmbeddings, encode_t5, load_t5, read_published
from cosmos_robot.backbone.predict2.tiny import tiny_texts, tiny_transformer, tiny_vae
from cosmos_robot.backbone.predict2.training_noise import HybridNoise
from cosmos_robot.errors import CheckpointError, ContractError, InputError, UnknownNameError
from cosmos_robot.latent_frames.layout import FrameLayout
from cosmos_robot.latent_frames.pictures import FrameEncoder
from cosmos_robot.training.mixing import epoch_mix

SMALL = {"num_attention_heads": 2, "text_embed_dim": 8}


@pytest.fixture(scope="module")
def network():
    return tiny_transformer(0, **SMALL)


@pytest.fixture(scope="module")
def published(network) -> dict[str, torch.Tensor]:
    """The same weights under published names, with what a published file holds beside them."""
    state = {f"net.{to_published(key)}": value for key, value in network.state_dict().items()}
    return state | {"net.accum_iteration": torch.tensor(3), "net.pos_embedder.seq": torch.arange(4.0)}


def test_every_weight_has_a_published_name_and_comes_back(network, published) -> None:
    for key in network.state_dict():
        assert to_diffusers(to_published(key)) == key
    found = split_published(published)
    assert set(found.transformer.values()) == set(network.state_dict())
    assert found.dropped == ("net.accum_iteration", "net.pos_embedder.seq")
    with pytest.raises(CheckpointError, match="no published name"):
        to_published("transformer_blocks.0.attn3.to_q.weight")


def test_published_files_give_the_same_network(network, published, tmp_path: Path) -> None:
    """Weights in a pickle, with Transformer Engine's states in it, or in safetensors."""
    torch.save(published | {"net.blocks.0.self_attn._extra_state": io.BytesIO(b"state")}, tmp_path / "a.pt")
    save_file({k: v.clone() for k, v in published.items()}, tmp_path / "b.safetensors")
    for name in ("a.pt", "b.safetensors"):
        loaded = load_network(tmp_path / name, rope="exact").transformer
        assert loaded.config.num_attention_heads == 2
        assert all(torch.equal(v, network.state_dict()[k]) for k, v in loaded.state_dict().items())


@pytest.mark.parametrize("fault", ["missing", "unknown", "shape", "average", "twice"])
def test_weights_that_do_not_fit_are_refused(published, tmp_path: Path, fault: str) -> None:
    state, key = dict(published), "net.blocks.1.mlp.layer2.weight"
    words = {"missing": "missing transformer_blocks.1.ff.net.2.weight", "shape": "expected"}.get(fault, "nothing knows")
    if fault == "missing":
        del state[key]
    elif fault == "shape":
        state[key] = state[key][:1]
    elif fault == "unknown":
        state["net.blocks.1.mlp.layer3.weight"] = state[key]
    elif fault == "twice":
        state[key.removeprefix("net.")] = state[key]
    else:
        state, words = {k.replace("net.", "net_ema."): v for k, v in state.items()}, "of another copy"
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=words):
        load_network(tmp_path / "a.pt")


class Trap:
    def __reduce__(self):
        return os.mkdir, ("trap",)


def test_files_that_would_run_something_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"net.x": Trap()}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="plain tensors"):
        load_network(tmp_path / "a.pt")
    (tmp_path / "t5.pkl").write_bytes(pickle.dumps({"a": Trap()}))
    with pytest.raises(CheckpointError, match="only texts and tensors"):
        read_published(tmp_path / "t5.pkl")
    assert not (tmp_path / "trap").exists()


def test_published_texts(tmp_path: Path) -> None:
    """Rows of zeros after the prompt are not stored, and are there again when it is read."""
    padded = torch.zeros(1, 6, 4)
    padded[:, :3] = torch.randn(1, 3, 4)
    (tmp_path / "t5.pkl").write_bytes(pickle.dumps({"open it": padded.bfloat16()}))
    read_published(tmp_path / "t5.pkl").write(tmp_path / "texts.safetensors")
    texts = TextEmbeddings.read(tmp_path / "texts.safetensors")
    assert texts["open it"].shape == (3, 4)
    assert torch.equal(texts.batch(["open it", "open it"])[1], padded[0].bfloat16().float())
    with pytest.raises(InputError, match=r"2 prompts have no text embedding: \['opn it', 'close it'\].*'open it'"):
        texts.batch(["opn it", "close it", "opn it"])
    (tmp_path / "texts.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        TextEmbeddings.read(tmp_path / "texts.safetensors")


def test_missing_texts_are_made_where_somebody_can() -> None:
    made: list[list[str]] = []

    def encode(prompts):
        made.append(list(prompts))
        return [torch.ones(2, 8) for _ in prompts]

    texts = TextEmbeddings(tiny_texts(["a b"], 8), 6, encode)
    assert texts.batch(["a b", "c d", "c d"]).shape == (3, 6, 8)
    texts.batch(["c d"])
    assert made == [["c d"]]
    with pytest.raises(CheckpointError, match="not on this machine"):
        load_t5("no/such-model")


def test_t5_rows_do_not_depend_on_padding() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

    words = Tokenizer(models.WordLevel({"<pad>": 0, "open": 1, "it": 2, "now": 3}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>")
    torch.manual_seed(0)
    encoder = T5EncoderModel(T5Config(vocab_size=4, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).eval()
    rows = encode_t5(encoder, tokenizer, ["open it now", "open"])
    assert [r.shape for r in rows] == [(3, 8), (1, 8)]
    padded = tokenizer(["open it now", "open"], padding="max_length", max_length=6, return_tensors="pt")
    with torch.no_grad():
        whole = encoder(input_ids=padded.input_ids, attention_mask=padded.attention_mask).last_hidden_state
    for row, other in zip(rows, whole, strict=True):
        torch.testing.assert_close(row, other[: len(row)], atol=1e-5, rtol=0)
    assert len(encode_t5(encoder, tokenizer, ["open it now"], tokens=2)[0]) == 2


def test_only_known_pictures_are_encoded() -> None:
    """The first frames are those of the whole clip; the black ones before them are encoded once."""
    vae, rng = tiny_vae(0, 4), np.random.default_rng(0)
    encoder = FrameEncoder(vae, (16, 16))
    one, other = (rng.integers(0, 256, (2, 16, 16, 3), dtype=np.uint8) for _ in range(2))
    shown = [None, None, one, other, None, one]
    black = np.zeros_like(one)
    clip = np.concatenate(
        [(black if s is None else s)[:, None].repeat(4 if i else 1, 1) for i, s in enumerate(shown)], 1
    )
    whole = encode_clip(vae, clip)
    torch.testing.assert_close(encoder.encode(shown), whole, atol=1e-5, rtol=0)
    calls, run = [], vae.encoder.forward
    vae.encoder.forward = lambda *a, **k: calls.append(1) or run(*a, **k)
    torch.testing.assert_close(encoder.encode(shown[:4]), whole[:, :, :4], atol=1e-5, rtol=0)
    assert len(calls) == 2
    video = decode(vae, whole)
    np.testing.assert_array_equal(encoder.decode(whole, [0, 2, 5]), video[:, [0, 5, 17]])
    with pytest.raises(InputError, match="expected uint8"):
        encoder.encode([one.astype(np.float32)])


def test_clean_frames_are_untouched_and_unread(network) -> None:
    clean = torch.tensor([[True, False, True], [False, True, True]])
    latents = start_noise([1, 2], (16, 3, 4, 4))
    given = Given(latents, clean, torch.randn(2, 6, 8))
    levels = noise_levels(3, 4, 80)
    found = sample(network, given, [3, 4], levels)
    kept = clean[:, None, :, None, None].expand_as(latents)
    assert torch.equal(found[kept], latents[kept])
    hidden = Given(torch.where(kept, latents, 7.0), clean, given.text)
    assert torch.equal(sample(network, hidden, [3, 4], levels), found)
    alone = sample(network, Given(latents[1:], clean[1:], given.text[1:]), [4], levels)
    torch.testing.assert_close(alone, found[1:], atol=1e-4, rtol=0)
    with torch.no_grad():
        quiet = predict_clean(
            network, given, torch.full_like(latents, float("nan")).masked_fill(~kept, 1.0), torch.ones(2)
        )
    assert torch.isfinite(quiet).all()


def test_two_steps_are_one() -> None:
    assert noise_levels(2, 4, 80) == noise_levels(1, 4, 80) == [80.0]
    assert len(noise_levels(3, 4, 80)) == 3
    for wrong in ((0, 4, 80), (3, 80, 4), (3, 0, 80)):
        with pytest.raises(InputError, match="noise levels"):
            noise_levels(*wrong)


def test_the_last_call_leaves_no_noise() -> None:
    target = torch.randn(2, 3)
    assert torch.equal(denoise(lambda x, level: target, torch.randn(2, 3) * 80, noise_levels(5, 4, 80)), target)


def test_the_loss_weight_undoes_the_scaling() -> None:
    """Error of x0 under the weight is the error of the network's output."""
    sigma = torch.tensor([0.1, 4.0, 80.0], dtype=torch.float64)
    torch.testing.assert_close(loss_weight(sigma) * scaling(sigma).out ** 2, torch.ones(3, dtype=torch.float64))


def test_training_noise_is_scaled_by_the_root_of_the_frames() -> None:
    plain, nine = (n.draw(4000, np.random.default_rng(0)) for n in (HybridNoise(), HybridNoise.of_frames(9)))
    torch.testing.assert_close(nine, 3 * plain)
    assert np.median(plain) == pytest.approx(7.1, rel=0.1)
    with pytest.raises(InputError, match="training noise"):
        HybridNoise().levels([0.1, 0.9], [0.5, 0.5], [])


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        (("blank", "cam", "cam", "action"), "'cam' is in 2"),
        (("blank", "action", "future cam"), "has no frame 'cam'"),
        (("cam", "action", "future action"), "has no frame 'action' before"),
        (("blank", "cam"), "no frame holds the action"),
    ],
)
def test_layouts_that_make_no_sense(slots, words) -> None:
    with pytest.raises(ContractError, match=words):
        FrameLayout(slots)


def test_layouts_of_any_robot() -> None:
    layout = FrameLayout(("value", "head", "action", "future head", "blank"))
    assert layout.clean("policy") == (False, True, False, False, True)
    assert layout.clean("value_of_future") == (False, False, False, True, True)
    assert layout.trained("world_model", ("future",)) == (False, False, False, True, False)
    with pytest.raises(UnknownNameError, match="did you mean 'q_value'"):
        layout.clean("qvalue")
    with pytest.raises(UnknownNameError, match="unknown latent frame 'value'"):
        FrameLayout(("cam", "action")).clean("value")


def test_published_shares() -> None:
    joint, planning = epoch_mix(500, 100, 300), epoch_mix(100, 300, 300, demo_share=0.1)
    assert [p / len(joint) for p in joint.places] == [0.5, 0.25, 0.25] and len(joint) == 1200
    assert [p / len(planning) for p in planning.places] == pytest.approx([0.1, 0.45, 0.45], abs=0.01)
    seen = [joint.at(place) for place in range(len(joint))]
    assert {source: len({s for k, s in seen if k == source}) for source, _ in seen} == {
        "demo": 500,
        "success_rollout": 100,
        "failure_rollout": 300,
    }
    with pytest.raises(InputError, match="no steps have a share"):
        epoch_mix(0, 0, 0)
