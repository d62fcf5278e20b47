"""What is known to go wrong with released checkpoints, and interruptions: refused, replaced or repaired, by name."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cosmos_robot.backbone.cosmos3 import folder as folders
from cosmos_robot.backbone.cosmos3.load import load_checkpoint, save_checkpoint, whole_folder
from cosmos_robot.backbone.cosmos3.lora import LoraSpec, add_lora
from cosmos_robot.backbone.cosmos3.memory import needed_bytes, require_memory
from cosmos_robot.backbone.cosmos3.released import ARCHITECTURES, RELEASED, released, require_released
from cosmos_robot.backbone.cosmos3.untrained import save_untrained, untrained_contract
from cosmos_robot.backbone.cosmos3.weights import Stored, part_weights, quantisation
from cosmos_robot.contract import CameraSpec, Contract, FieldSpec, RobotSpec
from cosmos_robot.contract.library import contract_names
from cosmos_robot.errors import CheckpointError, UnknownNameError

WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def contract() -> Contract:
    robot = RobotSpec(
        name="plotter",
        cameras=(CameraSpec(name="above", height=64, width=64),),
        state=(),
        action=(FieldSpec(name="move", width=3, unit="m"),),
        action_reference="per_step",
        rate_hz=5,
    )
    return untrained_contract(robot, "plotter")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, contract: Contract) -> Path:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    return save_untrained(tmp_path_factory.mktemp("checkpoints") / "whole", contract, ["draw a line"], **sizes)


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def split(part: Path) -> dict[str, str]:
    """Put a part's weights into two files and return which holds which."""
    state = load_file(part / WEIGHTS)
    names = sorted(state)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, keys in halves.items():
        save_file({key: state[key] for key in keys}, part / file)
    (part / WEIGHTS).unlink()
    return {key: file for file, keys in halves.items() for key in keys}


def test_a_root_index_that_spans_folders(copy: Path) -> None:
    before = load_checkpoint(copy).transformer.state_dict()
    held = split(copy / "transformer")
    spanning = {key: f"transformer/{file}" for key, file in held.items()} | {"blocks.0.norm1.weight": "vision_encoder/model.safetensors"}  # fmt: skip  # noqa: E501
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": spanning}))
    loaded = load_checkpoint(copy).transformer.state_dict()
    assert all(torch.equal(before[key], loaded[key]) for key in before)
    (copy / "transformer" / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"missing: copy/transformer/b\.safetensors"):
        load_checkpoint(copy)


def test_stray_names_of_an_index_are_dropped_with_a_message(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    part = copy / "transformer"
    held = split(part)
    stray = "layers.layers.0.self_attn.k_norm_und_for_gen.weight"
    (part / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": {**held, stray: "a.safetensors"}}))
    save_file({"x": torch.zeros(1)}, part / "fp8-00001.safetensors")
    with caplog.at_level(logging.WARNING):
        loaded = load_checkpoint(copy)
    assert len(loaded.notes) == 2
    assert stray in loaded.notes[0] and "fp8-00001.safetensors" in loaded.notes[1]
    assert stray in caplog.text


def test_an_index_does_not_reach_outside(copy: Path) -> None:
    part = copy / "transformer"
    (part / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": {"proj_in.bias": "../vae/x.safetensors"}}))
    with pytest.raises(CheckpointError, match="outside its folder"):
        load_checkpoint(copy)


def test_a_tensor_in_two_shards_is_refused(copy: Path) -> None:
    part = copy / "transformer"
    state, held = load_file(part / WEIGHTS), split(part)
    save_file(state, part / "b.safetensors")
    (part / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": held}))
    with pytest.raises(CheckpointError, match="is in both"):
        part_weights(part)


def test_action_heads_that_were_never_trained_are_refused(copy: Path) -> None:
    path = copy / "transformer" / WEIGHTS
    state = load_file(path)
    state["action_proj_out.fc.weight"][2, 5] = float("nan")
    save_file(state, path)
    with pytest.raises(CheckpointError, match=r"action_proj_out\.fc\.weight hold NaN.*newer revision"):
        load_checkpoint(copy)
    save_file({key: value for key, value in state.items() if not key.startswith("action_")}, path)
    with pytest.raises(CheckpointError, match="Edge snapshots older than 2026-07-16"):
        load_checkpoint(copy)


@pytest.mark.parametrize(
    ("config", "dtypes", "words"),
    [
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}, {"a": "BF16"}, "modelopt FP8"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, {}, "bitsandbytes"),
        ({}, {"a.weight": "F8_E4M3"}, "1 tensors are F8_E4M3, such as 'a.weight'"),
        ({}, {"a.weight": "float8_e5m2"}, "float8_e5m2"),
        ({}, {"a.weight": "U8", "a.weight.absmax": "F32"}, "bitsandbytes keys"),
        ({}, {"a.weight": "I8", "a.SCB": "F32"}, "bitsandbytes keys"),
        ({}, {"a.weight": "BF16", "a.weight_scale": "F32", "a.input_scale": "F32"}, "2 scales"),
        ({}, {"a.weight": "I8"}, "1 tensors are I8"),
    ],
)
def test_quantised_weights_are_recognised(config: dict, dtypes: dict, words: str) -> None:
    assert words in (quantisation(config, dtypes) or "")


def test_plain_weights_are_not_taken_for_quantised_ones(whole: Path) -> None:
    for part in ("transformer", "vae"):
        dtypes = {key: stored.dtype for key, stored in part_weights(whole / part).tensors.items()}
        assert quantisation(json.loads((whole / part / "config.json").read_text()), dtypes) is None


def test_quantised_checkpoints_are_refused_by_name(copy: Path) -> None:
    path = copy / "transformer" / WEIGHTS
    state = load_file(path)
    save_file({**state, "proj_in.weight": state["proj_in.weight"].to(torch.float8_e4m3fn)}, path)
    with pytest.raises(CheckpointError, match=r"quantised .*F8_E4M3.*bfloat16"):
        load_checkpoint(copy)
    save_file(state, path)
    (copy / "hf_quant_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"quantised .*hf_quant_config\.json"):
        load_checkpoint(copy)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"use_karras_sigmas": True, "sigma_max": 200.0, "sigma_min": 0.147}, "Karras"),
        ({"_class_name": "Cosmos3EdgeUniPCMultistepScheduler"}, "'Cosmos3EdgeUniPCMultistepScheduler' is not in"),
    ],
)
def test_a_schedule_that_is_not_ours_is_replaced_with_a_message(copy: Path, fields: dict, words: str) -> None:
    change(copy / "scheduler" / "scheduler_config.json", flow_shift=3.0, **fields)
    loaded = load_checkpoint(copy)
    assert len(loaded.notes) == 1 and words in loaded.notes[0]
    settings = loaded.scheduler_config
    assert settings["use_flow_sigmas"] and not settings["use_karras_sigmas"]
    assert settings["flow_shift"] == loaded.contract.model.sampler.shift == 5.0


def test_extra_keys_of_edge_configs_are_no_obstacle(copy: Path) -> None:
    change(copy / "transformer" / "config.json", backbone_type="cosmos3_edge_nemotron_dense")
    assert load_checkpoint(copy).transformer.config.hidden_size == 32


def test_weights_that_cannot_fit_are_refused_before_they_are_read(caplog: pytest.LogCaptureFixture) -> None:
    huge = [Stored(Path("absent"), (10**7, 10**7), "BF16")]
    assert needed_bytes(huge, torch.float32, mapped=True) == (4 * 10**14, 4 * 10**14)
    with pytest.raises(CheckpointError, match=r"take 400000\.0 GB in float32.*are\. Load them as bfloat16"):
        require_memory("huge", huge, torch.float32, torch.device("cpu"))
    assert needed_bytes(huge, torch.bfloat16, mapped=True) == (2 * 10**14, 0)
    with caplog.at_level(logging.WARNING):
        require_memory("huge", huge, torch.bfloat16, torch.device("cpu"))
    assert "again and again" in caplog.text


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="mappings are read from /proc")
def test_weights_are_read_in_place(whole: Path) -> None:
    transformer = load_checkpoint(whole, dtype=torch.bfloat16).transformer
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(whole / "transformer" / WEIGHTS)):
            ranges.append([int(side, 16) for side in line.split()[0].split("-")])
    for name, parameter in transformer.named_parameters():
        inside = any(low <= parameter.data_ptr() < high for low, high in ranges)
        assert inside == ("time_embedder" not in name), name
    before = load_file(whole / "transformer" / WEIGHTS)["proj_in.bias"].clone()
    with torch.no_grad():
        transformer.proj_in.bias.add_(1)
    assert torch.equal(load_file(whole / "transformer" / WEIGHTS)["proj_in.bias"], before)


def killed_while_replacing(folder: Path) -> int:
    """Replace ``folder`` in a child process that dies between the two renames; its exit status."""
    child = os.fork()
    if child == 0:
        try:
            rename = Path.rename

            def dying(self: Path, target: Path) -> Path:
                moved = rename(self, target)
                os._exit(9)
                return moved

            Path.rename = dying
            with whole_folder(folder, overwrite=True) as made:
                (made / "new").touch()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_kill_between_the_renames_loses_nothing(copy: Path, contract: Contract) -> None:
    assert killed_while_replacing(copy) == 9
    assert not copy.exists()
    with pytest.raises(
        CheckpointError, match=r"Nothing is lost: 'mv .*\.copy\.old-\d+ .*copy' .*\.copy\.partial-"
    ) as told:
        load_checkpoint(copy)
    with pytest.raises(CheckpointError, match="Nothing is lost"), whole_folder(copy):
        pass
    _, source, target = str(told.value).split("'")[1].split()
    Path(source).rename(target)
    assert load_checkpoint(copy).contract == contract


def test_what_was_interrupted_may_be_overwritten(copy: Path) -> None:
    killed_while_replacing(copy)
    with whole_folder(copy, overwrite=True) as made:
        (made / "newer").touch()
    assert [path.name for path in copy.iterdir()] == ["newer"]
    assert not list(copy.parent.glob(".copy.old-*"))


def test_an_error_while_replacing_brings_the_old_one_back(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, before = Path.rename, sorted(path.name for path in copy.iterdir())

    def failing(self: Path, target: Path) -> Path:
        if ".partial-" in self.name:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(KeyboardInterrupt), whole_folder(copy, overwrite=True) as made:
        (made / "new").touch()
    assert sorted(path.name for path in copy.iterdir()) == before
    assert [path.name for path in copy.parent.iterdir()] == ["copy"]


def test_adapters_must_be_merged_before_saving(whole: Path, tmp_path: Path, contract: Contract) -> None:
    loaded = load_checkpoint(whole)
    add_lora(loaded.transformer, LoraSpec(rank=2))
    parts = {"vae": loaded.vae, "tokenizer": loaded.tokenizer, "contract": contract}
    with pytest.raises(CheckpointError, match="merge its adapter first"):
        save_checkpoint(tmp_path / "made", transformer=loaded.transformer, **parts)
    assert list(tmp_path.iterdir()) == []


def test_released_names_are_unique_and_known() -> None:
    names = [name for entry in RELEASED.values() for name in (entry.name, entry.repository.lower(), *entry.aliases)]
    assert len(set(names)) == len(names)
    assert {"nano", "super", "edge", "nano-policy-droid", "edge-policy-droid"} == set(RELEASED)
    assert all(released(name) is released(name.upper()) is not None for name in names)
    assert {entry.architecture for entry in RELEASED.values()} == set(ARCHITECTURES)
    for entry in RELEASED.values():
        assert entry.revision is None or len(entry.revision) == 40
        assert entry.contract is None or entry.contract in contract_names()
    with pytest.raises(UnknownNameError, match="did you mean 'nano-policy-droid'"):
        require_released("nano-policy-driod")


def test_a_released_name_says_what_it_would_fetch_and_how_to_place_it() -> None:
    with pytest.raises(CheckpointError) as told:
        load_checkpoint("nano-policy-droid")
    entry = RELEASED["nano-policy-droid"]
    for words in (entry.repository, entry.revision, "35 GB", "hf download", "--local-dir"):
        assert words in str(told.value)
    with pytest.raises(UnknownNameError, match="did you mean 'nano-policy-droid'"):
        load_checkpoint("nano-policy-dorid")


def test_a_base_model_needs_a_contract(copy: Path, contract: Contract) -> None:
    (copy / "contract.json").unlink()
    with pytest.raises(CheckpointError, match=r"missing: copy/contract\.json .*pass one"):
        load_checkpoint(copy)
    assert load_checkpoint(copy, contract=contract).contract == contract
    assert load_checkpoint(copy, contract=contract.save(copy.parent)).contract == contract
    found = folders.check_complete(copy, needs_contract=False)
    with pytest.raises(CheckpointError, match=r"no contract\.json"):
        found.contract()
