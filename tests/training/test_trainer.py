import dataclasses
import json
import signal

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan
from dots import draw_episode
from PIL import Image

from cosmos_robot.backbone.cosmos3.load import load_checkpoint
from cosmos_robot.contract import Contract
from cosmos_robot.errors import CheckpointError, InputError, Interrupted
from cosmos_robot.ownership import owned
from cosmos_robot.training.cache import EpisodeList
from cosmos_robot.training.config import Augmentation, PolicyTraining, Stage, TokenizerTraining
from cosmos_robot.training.learner import PolicyLearner
from cosmos_robot.training.tokenizer import train_tokenizer
from cosmos_robot.training.trainer import train_policy

SMALL = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "rope_axes_dim": [6, 5, 5],
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="module")
def tokenizer_config(contract, root) -> TokenizerTraining:
    return TokenizerTraining(
        out=root / "tokenizer", datasets=(root / "none",), cache=root / "cache", contract=contract, steps=8, base_dim=4,
        decoder_base_dim=4, batch=8, decode_batch=4, threads=1, progress=False, warmup=2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tokenizer_config, episodes):
    return train_tokenizer(tokenizer_config, [episodes])


@pytest.fixture(scope="module")
def config(contract, root, tokenizer) -> PolicyTraining:
    return PolicyTraining(
        out=root / "policy", datasets=(root / "none",), cache=root / "cache", tokenizer=tokenizer, contract=contract,
        stages=(Stage(name="a", steps=4, warmup=1), Stage(name="b", steps=2)), architecture=SMALL,
        hidden_at=1,
        batch=4, threads=1, progress=False,
        validate_steps=3, augmentation=Augmentation(state_dropout=0.2, caption_dropout=0.2),
    )  # fmt: skip


@pytest.fixture(scope="module")
def export(config, episodes):
    return train_policy(config, [episodes])


def weights(folder) -> dict[str, torch.Tensor]:
    return torch.load(folder / "state.pt", weights_only=True)["learner"]


def interrupt_at(monkeypatch, learner: type, at: int) -> None:
    """Ctrl-C during step ``at`` of the next run."""
    whole = learner.train_step

    def train_step(self, cycle, step, rate):
        if step == at:
            signal.raise_signal(signal.SIGINT)
        return whole(self, cycle, step, rate)

    monkeypatch.setattr(learner, "train_step", train_step)


def test_tokenizer_leaves_a_vae_with_statistics_of_its_latents(tokenizer, tokenizer_config):
    config = json.loads((tokenizer / "vae" / "config.json").read_text())
    trained = AutoencoderKLWan.from_pretrained(tokenizer / "vae").state_dict()
    assert all(torch.equal(value, value.bfloat16().float()) for value in trained.values())
    assert len(set(config["latents_std"])) == 48 and min(config["latents_std"]) > 0
    assert Image.open(tokenizer / "reconstructions.png").size == (2 * 96, 6 * 64)
    assert Image.open(tokenizer / "curves.png").size[0] > 100
    last = [json.loads(line) for line in (tokenizer / "log.jsonl").read_text().splitlines()][-1]
    assert last["kind"] == "validation" and {"psnr", "found", "place_px"} <= last.keys()


def test_tokenizer_learns(tokenizer_config, episodes, root):
    """The losses on a few fixed pictures fall."""
    longer = dataclasses.replace(tokenizer_config, out=root / "longer", steps=40, batch=4, lr=4e-3)
    train_tokenizer(longer, [episodes])
    log = [json.loads(line) for line in (longer.out / "log.jsonl").read_text().splitlines()]
    first, last = (record for record in log if record["kind"] == "train")
    assert last["object"] < 0.8 * first["object"] and last["pixels"] < first["pixels"]


def test_export_is_a_checkpoint_with_the_averaged_weights(export, config):
    checkpoint = load_checkpoint(export)
    average = weights(config.out)["average"]
    name = "layers.0.self_attn.add_q_proj.weight"
    stored = checkpoint.transformer.get_parameter(name)
    torch.testing.assert_close(stored, average[f"transformer.{name}"].bfloat16().float())
    assert not torch.equal(average[f"transformer.{name}"], weights(config.out)["model"][f"transformer.{name}"])
    assert checkpoint.contract == Contract.load(config.out)
    assert checkpoint.contract.model.action_normalization.method == "quantile" and checkpoint.contract.model.sees
    log = [json.loads(line) for line in (config.out / "log.jsonl").read_text().splitlines()]
    measures = [record for record in log if record["kind"] == "validation"][-1]
    assert {"action", "pointing", "offset", "hit", "offset_cm", "xyz_mae", "gripper_wrong"} <= measures.keys()


@pytest.mark.parametrize("at", [1, 4])
def test_interrupted_and_resumed_equals_uninterrupted(config, export, episodes, root, monkeypatch, at):
    cut = dataclasses.replace(config, out=root / f"cut{at}")
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match=f"step {at + 1}"):
        interrupt_at(patch, PolicyLearner, at)
        train_policy(cut, [episodes])
    train_policy(cut, [episodes])
    whole, resumed = weights(config.out), weights(cut.out)
    for part in ("model", "average"):
        for name, value in whole[part].items():
            assert torch.equal(value, resumed[part][name]), name


def test_blind_training_never_reads_the_canvas(config, export, episodes, root):
    """Two data sets with the same motions and other pictures give one and the same blind policy."""
    black = [
        dataclasses.replace(e, images={n: np.full_like(v, 9) for n, v in e.images.items()})
        for e in (episodes[i] for i in range(len(episodes)))
    ]
    runs = []
    for name, source in (("blind", episodes), ("dark", EpisodeList(black))):
        blind = dataclasses.replace(config, out=root / name, blind=True, stages=(Stage(name="a", steps=2),))
        assert not load_checkpoint(train_policy(blind, [source])).contract.model.sees
        runs.append(weights(blind.out)["model"])
    assert all(torch.equal(value, runs[1][name]) for name, value in runs[0].items())


def test_warm_start_keeps_statistics_and_weights(config, export, root):
    """On new data, from a run's folder and from its export."""
    other = EpisodeList([draw_episode(seed, rows=4, dagger=True) for seed in range(200, 204)])
    for name, start in (("warm", config.out), ("warm-export", export)):
        warm = dataclasses.replace(config, out=root / name, start=start, stages=(Stage(name="a", steps=1, lr=1e-9),))
        contract = load_checkpoint(train_policy(warm, [other])).contract
        assert contract == Contract.load(config.out)
        before, after = weights(config.out)["average"], weights(warm.out)["model"]
        for key in ("transformer.proj_in.weight", "transformer.embed_tokens.weight"):
            torch.testing.assert_close(after[key], before[key], atol=2e-3, rtol=1e-2)
    torch.testing.assert_close(weights(root / "warm")["model"]["heads.point.weight"], before["heads.point.weight"])


def test_future_frames_are_trained_too(config, export, episodes, root):
    stage = Stage(name="wam", steps=1, video_weight=1.0)
    train_policy(dataclasses.replace(config, out=root / "wam", future_frames=2, stages=(stage,)), [episodes])
    records = [json.loads(line) for line in (root / "wam" / "log.jsonl").read_text().splitlines()]
    assert all(np.isfinite(record["video"]) for record in records) and len(records) == 2


def test_bad_settings(config, root, tmp_path):
    with pytest.raises(InputError, match="either minutes or steps"):
        Stage(name="a", minutes=1, steps=1)
    with pytest.raises(InputError, match="no stages"):
        dataclasses.replace(config, stages=())
    with pytest.raises(InputError, match="held out"):
        train_policy(dataclasses.replace(config, out=tmp_path / "one"), [EpisodeList([draw_episode(0)])])
    (tmp_path / "empty").mkdir()
    broken = dataclasses.replace(config, out=tmp_path / "broken", start=tmp_path / "empty")
    with pytest.raises(CheckpointError, match="model_index"):
        train_policy(broken, [EpisodeList([draw_episode(0), draw_episode(1)])])


def test_two_trainings_do_not_share_a_folder(config, tmp_path):
    busy = dataclasses.replace(config, out=tmp_path / "busy")
    with owned(busy.out, "training there"), pytest.raises(CheckpointError, match="another process is training into"):
        train_policy(busy, [EpisodeList([draw_episode(0), draw_episode(1)])])
    assert {p.name for p in busy.out.iterdir()} == {"lock"}
