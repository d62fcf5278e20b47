"""Saving, finding and loading checkpoints; every way in which one can be broken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import Cosmos3OmniPipeline
from safetensors.torch import load_file, save_file

from cosmos_robot.backbone.cosmos3 import folder as folders
from cosmos_robot.backbone.cosmos3 import load
from cosmos_robot.backbone.cosmos3.load import load_checkpoint, save_checkpoint
from cosmos_robot.backbone.cosmos3.untrained import save_untrained, untrained_contract
from cosmos_robot.contract import CameraSpec, Contract, FieldSpec, RobotSpec
from cosmos_robot.errors import CheckpointError, ContractError, InputError, UnknownNameError

SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_embodiment_domains": 8}
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def contract() -> Contract:
    robot = RobotSpec(
        name="plotter",
        cameras=(CameraSpec(name="above", height=64, width=64),),
        state=(FieldSpec(name="pen", width=2, unit="m"),),
        action=(FieldSpec(name="move", width=3, unit="m"),),
        action_reference="per_step",
        rate_hz=5,
    )
    return untrained_contract(robot, "plotter")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, contract: Contract) -> Path:
    return save_untrained(tmp_path_factory.mktemp("checkpoints") / "whole", contract, ["draw a line"], **SMALL)


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_what_is_saved_is_loaded(whole: Path, contract: Contract, tmp_path: Path) -> None:
    first = load_checkpoint(whole)
    assert (first.name, first.folder, first.contract) == ("whole", whole, contract)
    assert first.scheduler_config["flow_shift"] == 5.0 and first.scheduler_config["use_karras_sigmas"] is False
    assert not first.transformer.training and not first.vae.training
    again_in = tmp_path / "again"
    save_checkpoint(
        again_in, transformer=first.transformer, vae=first.vae, tokenizer=first.tokenizer, contract=contract
    )
    assert str(whole) not in "".join(path.read_text() for path in again_in.glob("*/config.json"))
    again = load_checkpoint(str(again_in))
    for name in ("transformer", "vae"):
        ours, theirs = getattr(first, name).state_dict(), getattr(again, name).state_dict()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours | theirs)
        assert {t.dtype for t in ours.values()} == {torch.float32}
        assert {t.dtype for t in load_file(again_in / name / WEIGHTS).values()} == {torch.bfloat16}
    assert again.tokenizer("draw a zebra").input_ids == first.tokenizer("draw a zebra").input_ids
    assert [p for p in tmp_path.rglob("*") if "partial" in p.name] == []


def test_bfloat16_in_memory_keeps_the_time_embedder(whole: Path) -> None:
    transformer = load_checkpoint(whole, dtype=torch.bfloat16).transformer
    assert transformer.proj_in.weight.dtype == torch.bfloat16
    assert transformer.time_embedder.linear_1.weight.dtype == torch.float32


def test_diffusers_loads_the_same_folder(whole: Path) -> None:
    pipeline = Cosmos3OmniPipeline.from_pretrained(whole)
    ours = load_checkpoint(whole).transformer.state_dict()
    assert all(torch.equal(ours[key], value) for key, value in pipeline.transformer.float().state_dict().items())


def test_shards_are_put_together(copy: Path) -> None:
    part = copy / "transformer"
    state = load_file(part / WEIGHTS)
    names = sorted(state)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, keys in shards.items():
        save_file({key: state[key] for key in keys}, part / shard, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {key: shard for shard, keys in shards.items() for key in keys}}
    (part / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    (part / WEIGHTS).unlink()
    loaded = load_checkpoint(copy).transformer.state_dict()
    assert all(torch.equal(loaded[key], state[key].float()) for key in names)
    (part / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"missing: copy/transformer/b\.safetensors"):
        load_checkpoint(copy)


@pytest.mark.parametrize(
    "file",
    [
        "contract.json",
        f"transformer/{WEIGHTS}",
        "transformer/config.json",
        f"vae/{WEIGHTS}",
        "text_tokenizer/tokenizer_config.json",
        "scheduler/scheduler_config.json",
        "model_index.json",
    ],
)
def test_a_missing_file_is_named(copy: Path, file: str) -> None:
    (copy / file).unlink()
    with pytest.raises(CheckpointError, match=Path(file).name.replace(".", r"\.")):
        load_checkpoint(copy)


def test_a_cut_file_is_named(copy: Path) -> None:
    path = copy / "vae" / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"vae.*not a whole safetensors file"):
        load_checkpoint(copy)


def test_every_key_and_shape_is_checked(copy: Path) -> None:
    path = copy / "transformer" / WEIGHTS
    state = load_file(path)
    state["norm.weight.typo"] = state.pop("norm.weight")
    state["proj_in.bias"] = torch.zeros(33)
    save_file(state, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(copy)
    for words in ("missing norm.weight", "unknown norm.weight.typo", "proj_in.bias is (33,), expected (32,)"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    "where, field, value, words",
    [
        ("model", "domain_id", 8, "domain_id is 8, expected below 8"),
        ("robot", "action", (FieldSpec(name="move", width=17, unit="m"),), "robot.action is 17 wide"),
        ("robot", "state", (FieldSpec(name="pen", width=18, unit="m"),), "robot.state is 18 wide"),
    ],
)
def test_a_contract_the_modules_cannot_serve_is_refused(copy: Path, contract: Contract, where, field, value, words):
    half = getattr(contract, where).model_copy(update={field: value})
    contract.model_copy(update={where: half}).save(copy)
    with pytest.raises(ContractError, match=words):
        load_checkpoint(copy)


def test_a_canvas_of_odd_size_is_refused(copy: Path, contract: Contract) -> None:
    canvas = contract.model.canvas.model_copy(update={"height": 72})
    contract.model_copy(update={"model": contract.model.model_copy(update={"canvas": canvas})}).save(copy)
    with pytest.raises(ContractError, match="72x64"):
        load_checkpoint(copy)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model_index.json", b"[]"),
        ("model_index.json", b"\xff\xfe"),
        ("model_index.json", b'{"cosmos_robot_shared_parts": 3}'),
        ("transformer/config.json", b"{"),
        ("transformer/config.json", b'{"hidden_size": "wide"}'),
        (f"transformer/{WEIGHTS}.index.json", b"{}"),
        ("text_tokenizer/tokenizer.json", b'{"version": "1.0", "trunc'),
        ("text_tokenizer/tokenizer_config.json", b"{"),
    ],
)
def test_a_damaged_description_is_named(copy: Path, file: str, content: bytes) -> None:
    (copy / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=file.split("/")[0]):
        load_checkpoint(copy)


@pytest.mark.parametrize("name", ["q99", "mean", "std"])
def test_statistics_of_two_widths_are_refused(copy: Path, contract: Contract, name: str) -> None:
    text = json.loads(contract.model_dump_json())
    columns = {column: [1.0, 2.0] for column in ("mean", "std", "min", "max", "q01", "q99")}
    text["model"]["state_normalization"] = {
        "method": "quantile", "scale_floor": 0.1, "statistics": {"count": 9, **columns, name: [1.0]}
    }  # fmt: skip
    (copy / "contract.json").write_text(json.dumps(text))
    with pytest.raises(ContractError, match="not all of one width"):
        load_checkpoint(copy)


@pytest.mark.parametrize(
    ("content", "field"),
    [(b"\xff\xfe{", "contract"), (b'{"robot": {"rate_hz": Infinity}}', "Infinity"), (b"[]", "contract")],
)
def test_a_damaged_contract_is_refused(copy: Path, content: bytes, field: str) -> None:
    (copy / "contract.json").write_bytes(content)
    with pytest.raises(ContractError, match=field):
        load_checkpoint(copy)


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(whole: Path, device: str) -> None:
    with pytest.raises(InputError, match=f"device '{device}'"):
        load_checkpoint(whole, device=device)


def test_an_existing_folder_is_left_alone(copy: Path, contract: Contract) -> None:
    loaded = load_checkpoint(copy)
    parts = {"transformer": loaded.transformer, "vae": loaded.vae, "tokenizer": loaded.tokenizer}
    before = (copy / "contract.json").read_bytes()
    with pytest.raises(CheckpointError, match="exists"):
        save_checkpoint(copy, contract=contract, **parts)
    assert (copy / "contract.json").read_bytes() == before
    renamed = contract.model_copy(update={"model": contract.model.model_copy(update={"name": "new"})})
    save_checkpoint(copy, contract=renamed, overwrite=True, **parts)
    assert load_checkpoint(copy).contract == renamed
    assert [p.name for p in copy.parent.iterdir()] == ["copy"]


def test_a_save_that_fails_leaves_nothing(copy: Path, contract: Contract, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_checkpoint(copy)
    target = copy.parent / "target"

    def full_disk(*args: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(type(contract), "save", full_disk)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(
            target, transformer=loaded.transformer, vae=loaded.vae, tokenizer=loaded.tokenizer, contract=contract
        )
    assert [p.name for p in copy.parent.iterdir()] == ["copy"]


def test_parts_of_a_neighbour(copy: Path, contract: Contract) -> None:
    loaded = load_checkpoint(copy)
    control = copy.parent / "copy-blind"
    save_checkpoint(control, transformer=loaded.transformer, contract=contract, share_with="copy")
    assert sorted(p.name for p in control.iterdir()) == ["contract.json", "model_index.json", "transformer"]
    shared = load_checkpoint(control)
    assert shared.name == "copy-blind" and torch.equal(shared.vae.quant_conv.weight, loaded.vae.quant_conv.weight)
    index = json.loads((control / "model_index.json").read_text())
    for elsewhere in ("../../copy", "/copy", "..", "../."):
        (control / "model_index.json").write_text(json.dumps({**index, folders.SHARED_KEY: elsewhere}))
        with pytest.raises(CheckpointError, match="expected a neighbour"):
            load_checkpoint(control)
    (control / "model_index.json").write_text(json.dumps(index))
    copy.rename(copy.with_name("gone"))
    with pytest.raises(CheckpointError, match="copy: not there"):
        load_checkpoint(control)


def test_save_needs_parts_or_a_neighbour(copy: Path, contract: Contract) -> None:
    transformer = load_checkpoint(copy).transformer
    with pytest.raises(InputError, match="either vae and tokenizer, or share_with"):
        save_checkpoint(copy.parent / "x", transformer=transformer, contract=contract)


def test_names(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "ASSETS", whole.parent)
    assert load_checkpoint("whole").folder == whole
    with pytest.raises(UnknownNameError, match="did you mean 'whole'"):
        load_checkpoint("whoel")
    with pytest.raises(CheckpointError, match="no checkpoint folder"):
        load_checkpoint(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="neither a local folder nor could it be fetched"):
        load_checkpoint("nobody/nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"half-written one: no model_index\.json"):
        load_checkpoint(tmp_path / "empty")


def test_hub_ids_fetch_only_what_is_needed(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def snapshot(repository: str, **settings: object) -> str:
        asked.update(settings, repository=repository)
        return str(whole)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert load_checkpoint("someone/robot@v1").name == "someone/robot"
    assert (asked["repository"], asked["revision"]) == ("someone/robot", "v1")
    assert not any("sound" in pattern or "vision" in pattern for pattern in asked["allow_patterns"])


def test_a_tokenizer_too_large_is_refused(whole: Path, contract: Contract) -> None:
    loaded = load_checkpoint(whole)
    loaded.tokenizer.add_tokens(["zebra"])
    with pytest.raises(CheckpointError, match="transformer"):
        load.check_contract(contract, loaded.transformer, loaded.vae, loaded.tokenizer)


def test_same_seed_same_weights(contract: Contract, whole: Path, tmp_path: Path) -> None:
    again = save_untrained(tmp_path / "again", contract, ["draw a line"], **SMALL)
    other = save_untrained(tmp_path / "other", contract, ["draw a line"], seed=1, **SMALL)
    for part in ("transformer", "vae"):
        read = [np.frombuffer((f / part / WEIGHTS).read_bytes(), np.uint8) for f in (whole, again, other)]
        assert np.array_equal(read[0], read[1]) and not np.array_equal(read[0], read[2])
