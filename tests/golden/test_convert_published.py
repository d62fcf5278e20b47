"""The recorded tiny network as a published ``.pt``, converted to a checkpoint folder by the command."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cosmos_robot.backbone.cosmos3.commands import ckpt_convert
from cosmos_robot.backbone.predict2.convert import is_published
from cosmos_robot.backbone.predict2.load import load_checkpoint
from cosmos_robot.backbone.predict2.network import Given, network_output
from cosmos_robot.backbone.predict2.tiny import tiny_vae
from cosmos_robot.errors import CheckpointError, InputError

PROMPT = "put the spoon on the tray"


@pytest.fixture(scope="module")
def weights(golden) -> Path:
    return golden.path("cosmos_policy/network/tiny_net.safetensors")


@pytest.fixture
def published(weights, tmp_path) -> Path:
    """What a repository of a released checkpoint holds, and an autoencoder."""
    torch.save(load_file(weights), tmp_path / "Policy.pt")
    width = load_file(weights)["net.blocks.0.cross_attn.k_proj.weight"].shape[1]
    with (tmp_path / "t5_embeddings.pkl").open("wb") as stream:
        pickle.dump({PROMPT: torch.randn(1, 8, width)}, stream)
    lists = {
        f"{what}_{how}": [float(low)] * n
        for what, n in (("actions", 7), ("proprio", 9))
        for how, low in (("min", -2), ("max", 3))
    }
    (tmp_path / "libero_dataset_statistics.json").write_text(json.dumps(lists))
    tiny_vae(0, 4).save_pretrained(tmp_path / "wan")
    return tmp_path


def converted(folder: Path, **changes) -> Path:
    given = {
        "contract": "cosmos-policy-libero",
        "parts": str(folder / "wan"),
        "texts": folder / "t5_embeddings.pkl",
        "statistics": folder / "libero_dataset_statistics.json",
        "dtype": "float32",
    }
    ckpt_convert(folder / "Policy.pt", folder / "made", to="diffusers", **given | changes)
    return folder / "made"


@pytest.mark.golden("cosmos_policy/network/network")
def test_it_computes_what_was_recorded(case, golden, published) -> None:
    stored, made = golden.arrays("cosmos_policy/network/forward"), converted(published)
    loaded = load_checkpoint(made, dtype=torch.float32)
    x, clean, text, times = (
        torch.from_numpy(stored[f"{case['case']}_{name}"])
        for name in ("x", "condition_mask_frames", "crossattn_emb", "timesteps")
    )
    with torch.no_grad():
        found = network_output(loaded.transformer, x, times[:, None, :, None, None], Given(x, clean.bool(), text))
    torch.testing.assert_close(found, torch.from_numpy(stored[f"{case['case']}_out_fp32_bf16_rope"]), atol=1e-4, rtol=0)
    assert loaded.texts.batch([PROMPT]).shape[0] == 1
    statistics = loaded.contract.model.action_normalization.statistics
    assert statistics.column("min") == (-2.0,) * 7 or list(statistics.column("min")) == [-2.0] * 7


def test_what_its_repository_lacks_is_asked_for(published, capsys) -> None:
    for missing in ("contract", "parts"):
        with pytest.raises(InputError, match="comes without contract and autoencoder"):
            converted(published, **{missing: None})
    assert not (published / "made").exists()
    converted(published, texts=None, statistics=None)
    said = capsys.readouterr().out
    assert "pass --texts" in said and "pass --statistics" in said
    with pytest.raises(CheckpointError, match="made"):
        converted(published)


def test_other_layouts_take_no_contract(weights, published, tmp_path) -> None:
    assert is_published(published / "Policy.pt") and is_published(weights)
    with pytest.raises(InputError, match="--to diffusers"):
        ckpt_convert(published / "Policy.pt", tmp_path / "made", to="native")
    torch.save({"net.language_model.norm.weight": torch.ones(2)}, tmp_path / "other.pt")
    with pytest.raises(InputError, match="--contract is for Cosmos Policy"):
        ckpt_convert(tmp_path / "other.pt", tmp_path / "made", to="diffusers", contract="cosmos-policy-libero")
