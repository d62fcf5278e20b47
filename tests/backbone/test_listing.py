"""What ``ckpt inspect`` and ``ckpt list`` tell of checkpoint folders."""

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
from cosmos_robot.backbone.cosmos3.released import RELEASED
from cosmos_robot.backbone.cosmos3.untrained import save_untrained, untrained_contract
from cosmos_robot.contract import CameraSpec, Contract, FieldSpec, Normalization, RobotSpec
from cosmos_robot.errors import CheckpointError

WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def contract() -> Contract:
    robot = RobotSpec(
        name="pen plotter",
        cameras=(CameraSpec(name="above", height=64, width=64),),
        state=(FieldSpec(name="pen", width=2, unit="m"),),
        action=(FieldSpec(name="move", width=2, unit="m"),),
        action_reference="per_step",
        rate_hz=5.0,
    )
    made = untrained_contract(robot, "plotter")
    seven = statistics_of(np.arange(14, dtype=float).reshape(7, 2))
    norm = Normalization(method="quantile", scale_floor=0.1, statistics=seven)
    return Contract(robot=robot, model=made.model.model_copy(update={"action_normalization": norm}))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, contract: Contract) -> Path:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    return save_untrained(tmp_path_factory.mktemp("checkpoints") / "plotter", contract, ["draw"], **sizes)


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "plotter"))


@pytest.fixture
def blind(folder: Path, contract: Contract) -> Path:
    """A neighbour that takes everything but its transformer from ``folder``."""
    made = folder.with_name("plotter-blind")
    shutil.copytree(folder / "transformer", made / "transformer")
    (made / "model_index.json").write_text(json.dumps({SHARED_KEY: f"../{folder.name}"}))
    contract.save(made)
    return made


def test_parts_are_counted_from_the_headers(folder: Path) -> None:
    save_file({"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float16)}, folder / "transformer" / WEIGHTS)
    parts = {part.name: part for part in list_parts(find_checkpoint(folder))}
    transformer, scheduler = parts["transformer"], parts["scheduler"]
    assert parts.keys() == {"transformer", "vae", "text_tokenizer", "scheduler"}
    assert (transformer.kind, transformer.tensors, transformer.parameters) == ("Cosmos3OmniTransformer", 2, 17)
    assert transformer.dtypes == ("F16", "F32")
    assert transformer.size == sum(path.stat().st_size for path in (folder / "transformer").iterdir())
    assert (scheduler.kind, scheduler.tensors) == ("UniPCMultistepScheduler", 0)
    assert parts["vae"].dtypes == ("BF16",)


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
        "- name=above, height=64, width=64",
        "- name=move, width=2, unit=m",
        "sampler: solver=euler, steps=5, shift=5.0",
        "- camera=above, crop (top=0, left=0, height=64, width=64)",
        "statistics: of 7 rows, 2 dimensions",
        "sees: True",
    ):
        assert fact in text, text
    assert "q01" not in text


def test_a_folder_is_shown_with_its_contract(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ckpt", "inspect", str(folder)]) == 0
    printed = capsys.readouterr().out
    (transformer, *_) = list_parts(find_checkpoint(folder))
    assert "Cosmos3OmniTransformer" in printed and f"{transformer.parameters:,}" in printed and "pen plotter" in printed
    assert "beware" not in printed


def test_quantised_parts_are_shown_as_such(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"a.weight": np.zeros((3, 4), np.int8)}, folder / "transformer" / WEIGHTS)
    assert cli.main(["ckpt", "inspect", str(folder)]) == 0
    assert "beware: transformer is quantised (1 tensors are I8" in capsys.readouterr().out


def test_borrowed_parts_are_shown_with_their_owner(blind: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ckpt", "inspect", str(blind)]) == 0
    printed = capsys.readouterr().out
    assert "vae (of plotter)" in printed and "transformer (of" not in printed


def test_a_folder_without_its_contract_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "contract.json").unlink()
    assert cli.main(["ckpt", "inspect", str(folder)]) == 0
    assert "no contract" in capsys.readouterr().out
    assert cli.main(["ckpt", "check", str(folder)]) == cli.REFUSED
    assert "missing: plotter/contract.json" in capsys.readouterr().err


def test_a_check_reads_every_weight(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ckpt", "check", str(folder)]) == 0
    assert "plotter: whole" in capsys.readouterr().out
    wide = {key: value.astype(np.float32) for key, value in bfloat16_file(folder / "vae" / WEIGHTS).items()}
    wide["quant_conv.bias"][1] = np.nan
    save_file(wide, folder / "vae" / WEIGHTS)
    assert cli.main(["ckpt", "check", str(folder)]) == cli.REFUSED
    assert "1 weights hold NaN or infinite values, such as 'quant_conv.bias'" in capsys.readouterr().err


def bfloat16_file(path: Path) -> dict[str, np.ndarray]:
    from safetensors.torch import load_file

    return {key: value.float().numpy() for key, value in load_file(path).items()}


def test_every_named_checkpoint_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ckpt", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("tiny-libero", *RELEASED, *(e.repository for e in RELEASED.values())))


def test_a_released_name_tells_its_hazards(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ckpt", "inspect", "edge-policy-droid"]) == 0
    printed = capsys.readouterr().out
    assert all(hazard in printed for hazard in RELEASED["edge-policy-droid"].hazards)
    assert "not on this machine" in printed


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ckpt", "inspect", "tiny-librio"]) == cli.REFUSED
    assert "unknown checkpoint 'tiny-librio'" in capsys.readouterr().err


def test_listing_needs_no_torch() -> None:
    code = "import sys, cosmos_robot.backbone.cosmos3.listing; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
