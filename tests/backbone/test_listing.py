"""What ``ckpt show`` tells of a checkpoint folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from cosmos_robot import cli
from cosmos_robot.actions.statistics import statistics_of
from cosmos_robot.backbone.cosmos3.folder import SHARED_KEY, find_checkpoint
from cosmos_robot.backbone.cosmos3.listing import describe, list_parts
from cosmos_robot.contract import (
    Box,
    CameraSpec,
    CanvasSpec,
    Contract,
    FieldSpec,
    ModelSpec,
    Normalization,
    Placement,
    PromptSpec,
    RobotSpec,
    SamplerSpec,
)
from cosmos_robot.errors import CheckpointError

WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def contract() -> Contract:
    whole = Box(top=0, left=0, height=8, width=8)
    robot = RobotSpec(
        name="pen plotter",
        cameras=(CameraSpec(name="above", height=8, width=8),),
        state=(FieldSpec(name="pen", width=2, unit="m"),),
        action=(FieldSpec(name="move", width=2, unit="m"),),
        action_reference="per_step",
        rate_hz=5.0,
    )
    norm = Normalization(
        method="quantile", scale_floor=0.1, statistics=statistics_of(np.arange(14, dtype=float).reshape(7, 2))
    )
    model = ModelSpec(
        name="plotter",
        backbone="cosmos3",
        domain_id=3,
        chunk=4,
        execute=2,
        state_row=True,
        canvas=CanvasSpec(height=8, width=8, placements=(Placement(camera="above", crop=whole, to=whole),)),
        state_normalization=norm,
        action_normalization=norm,
        prompt=PromptSpec(template="caption"),
        sampler=SamplerSpec(solver="euler", steps=5, shift=5.0),
    )
    return Contract(robot=robot, model=model)


@pytest.fixture
def folder(tmp_path: Path, contract: Contract) -> Path:
    """A complete checkpoint with next to nothing in it."""
    made = tmp_path / "plotter"
    weights = {"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float16)}
    for part, config, content in (
        ("transformer", "config.json", {"_class_name": "Cosmos3OmniTransformer"}),
        ("vae", "config.json", {"_class_name": "AutoencoderKLWan"}),
        ("text_tokenizer", "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"}),
        ("scheduler", "scheduler_config.json", {"_class_name": "UniPCMultistepScheduler"}),
    ):
        (made / part).mkdir(parents=True)
        (made / part / config).write_text(json.dumps(content))
        if part in ("transformer", "vae"):
            save_file(weights, made / part / WEIGHTS)
            weights = {"c": np.zeros(2, np.float32)}
    (made / "model_index.json").write_text("{}")
    contract.save(made)
    return made


@pytest.fixture
def blind(folder: Path, contract: Contract) -> Path:
    """A neighbour that takes everything but its transformer from ``folder``."""
    made = folder.with_name("plotter-blind")
    shutil.copytree(folder / "transformer", made / "transformer")
    (made / "model_index.json").write_text(json.dumps({SHARED_KEY: f"../{folder.name}"}))
    contract.save(made)
    return made


def test_parts_are_counted_from_the_headers(folder: Path) -> None:
    parts = {part.name: part for part in list_parts(find_checkpoint(folder))}
    transformer, scheduler = parts["transformer"], parts["scheduler"]
    assert parts.keys() == {"transformer", "vae", "text_tokenizer", "scheduler"}
    assert (transformer.kind, transformer.tensors, transformer.parameters) == ("Cosmos3OmniTransformer", 2, 17)
    assert transformer.dtypes == ("F16", "F32")
    assert transformer.size == sum(path.stat().st_size for path in (folder / "transformer").iterdir())
    assert (scheduler.kind, scheduler.tensors) == ("UniPCMultistepScheduler", 0)
    assert parts["text_tokenizer"].kind == "PreTrainedTokenizerFast"


def test_a_cut_weights_file_is_named(folder: Path) -> None:
    path = folder / "vae" / WEIGHTS
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=r"vae.*safetensors is not a whole safetensors file"):
        list_parts(find_checkpoint(folder))


def test_a_broken_configuration_is_named(folder: Path) -> None:
    (folder / "transformer" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON"):
        list_parts(find_checkpoint(folder))


def test_a_contract_is_told_fact_by_fact(contract: Contract) -> None:
    text = "\n".join(describe(contract))
    for fact in (
        "name: pen plotter",
        "rate_hz: 5.0",
        "- name=above, height=8, width=8",
        "- name=move, width=2, unit=m",
        "sampler: solver=euler, steps=5, shift=5.0",
        "- camera=above, crop (top=0, left=0, height=8, width=8)",
        "statistics: of 7 rows, 2 dimensions",
        "sees: True",
    ):
        assert fact in text, text
    assert "q01" not in text


def test_a_folder_is_shown_with_its_contract(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ckpt", "show", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "Cosmos3OmniTransformer" in printed and "17" in printed and "pen plotter" in printed


def test_borrowed_parts_are_shown_with_their_owner(blind: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ckpt", "show", str(blind)]) == 0
    printed = capsys.readouterr().out
    assert "vae (of plotter)" in printed and "transformer (of" not in printed


def test_a_folder_without_its_contract_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "contract.json").unlink()
    assert cli.main(["ckpt", "show", str(folder)]) == cli.REFUSED
    assert "missing: plotter/contract.json" in capsys.readouterr().err


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ckpt", "show", "tiny-librio"]) == cli.REFUSED
    assert "unknown checkpoint 'tiny-librio'" in capsys.readouterr().err


def test_listing_needs_no_torch() -> None:
    code = "import sys, cosmos_robot.backbone.cosmos3.listing; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
