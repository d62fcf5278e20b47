"""What ``ckpt show`` tells of a checkpoint folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from cosmos_robot import cli
from cosmos_robot.actions.normalization import statistics
from cosmos_robot.backbone.listing import describe, list_parts
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    part = tmp_path / "transformer"
    part.mkdir()
    (part / "config.json").write_text(json.dumps({"_class_name": "Cosmos3OmniTransformer"}))
    save_file({"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float16)}, part / "model.safetensors")
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "scheduler_config.json").write_text(json.dumps({"_class_name": "UniPC"}))
    return tmp_path


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
        method="quantile", scale_floor=0.1, statistics=statistics(np.arange(14, dtype=float).reshape(7, 2))
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


def test_parts_are_counted_from_the_headers(folder: Path) -> None:
    scheduler, transformer = list_parts(folder)
    assert (scheduler.name, scheduler.kind, scheduler.tensors) == ("scheduler", "UniPC", 0)
    assert (transformer.kind, transformer.tensors, transformer.parameters) == ("Cosmos3OmniTransformer", 2, 17)
    assert transformer.dtypes == ("F16", "F32")
    assert transformer.size == sum(path.stat().st_size for path in (folder / "transformer").iterdir())


def test_a_cut_weights_file_is_named(folder: Path) -> None:
    path = folder / "transformer" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a whole safetensors file"):
        list_parts(folder)


def test_a_broken_configuration_is_named(folder: Path) -> None:
    (folder / "transformer" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON"):
        list_parts(folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a folder"):
        list_parts(tmp_path / "absent")


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


def test_a_folder_is_shown_with_its_contract(
    folder: Path, contract: Contract, capsys: pytest.CaptureFixture[str]
) -> None:
    contract.save(folder)
    assert cli.main(["ckpt", "show", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "Cosmos3OmniTransformer" in printed and "17" in printed and "pen plotter" in printed


def test_a_folder_without_its_contract_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ckpt", "show", str(folder)]) == cli.REFUSED
    assert "no contract.json" in capsys.readouterr().err


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ckpt", "show", "tiny-librio"]) == cli.REFUSED
    assert "unknown checkpoint 'tiny-librio'" in capsys.readouterr().err


def test_listing_needs_no_torch() -> None:
    code = "import sys, cosmos_robot.backbone.listing; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
