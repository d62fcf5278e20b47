"""Checkpoints of every layout into each other, bit for bit, and every way in which a source can be wrong."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from cosmos_robot import cli
from cosmos_robot.backbone.cosmos3.convert import CONFIG_KEY, convert, plan_conversion
from cosmos_robot.backbone.cosmos3.folder import check_complete
from cosmos_robot.backbone.cosmos3.keys import to_native
from cosmos_robot.backbone.cosmos3.load import load_checkpoint
from cosmos_robot.backbone.cosmos3.modules import same_bits
from cosmos_robot.backbone.cosmos3.sources import layout_of, open_source
from cosmos_robot.backbone.cosmos3.untrained import save_untrained, untrained_contract
from cosmos_robot.contract import CameraSpec, FieldSpec, RobotSpec
from cosmos_robot.errors import CheckpointError, UnknownNameError

SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
PART = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    robot = RobotSpec(
        name="plotter",
        cameras=(CameraSpec(name="above", height=64, width=64),),
        state=(FieldSpec(name="pen", width=2, unit="m"),),
        action=(FieldSpec(name="move", width=3, unit="m"),),
        action_reference="per_step",
        rate_hz=5,
    )
    folder = tmp_path_factory.mktemp("checkpoints") / "whole"
    return save_untrained(folder, untrained_contract(robot, "plotter"), ["draw a line"], **SMALL)


@pytest.fixture(scope="module")
def state(whole: Path) -> dict[str, torch.Tensor]:
    return load_file(whole / PART)


@pytest.fixture(scope="module")
def config(whole: Path) -> Path:
    return whole / "transformer" / "config.json"


def native(state: dict[str, torch.Tensor], prefix: str = "net.") -> dict[str, torch.Tensor]:
    return {prefix + to_native(name): value for name, value in state.items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(same_bits(one[name], other[name]) for name in one)


def test_there_and_back_bit_for_bit(whole: Path, state, tmp_path: Path) -> None:
    assert convert(whole, tmp_path / "native", "native")[0].startswith("native folders hold no vae")
    written = load_file(tmp_path / "native" / "model.safetensors")
    assert equal(written, native(state, "model.net."))
    assert json.loads((tmp_path / "native" / "config.json").read_text())["model_type"] == "cosmos3_omni"
    assert layout_of(tmp_path / "native") == "native"
    assert convert(tmp_path / "native", tmp_path / "back", "diffusers", parts=whole) == []
    for name in (PART, "transformer/config.json", "model_index.json", "contract.json", "vae/config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (whole / name).read_bytes()
    assert load_checkpoint(tmp_path / "back").notes == ()


def test_shards_are_small_and_come_back(whole: Path, state, tmp_path: Path) -> None:
    convert(whole, tmp_path / "native", "native", shard_bytes=20_000)
    files = sorted((tmp_path / "native").glob("model-*.safetensors"))
    assert len(files) > 2
    assert all(path.stat().st_size < 25_000 or len(load_file(path)) == 1 for path in files)
    convert(tmp_path / "native", tmp_path / "back", "diffusers", parts=whole)
    assert equal(load_file(tmp_path / "back" / PART), state)


def test_dtype(whole: Path, state, tmp_path: Path) -> None:
    convert(whole, tmp_path / "wide", "diffusers", dtype=torch.float32)
    assert equal(load_file(tmp_path / "wide" / PART), {name: value.float() for name, value in state.items()})


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_torch_distributed_folder(whole: Path, state, config: Path, tmp_path: Path) -> None:
    average = {name: value + 1 for name, value in native(state, "net_ema.").items()}
    folder = tmp_path / "iter_000000100"
    dcp.save({**native(state), **average, "step": 3}, checkpoint_id=folder / "model", no_dist=True)
    assert layout_of(folder) == layout_of(folder / "model") == "dcp"
    notes = convert(folder, tmp_path / "plain", "diffusers", parts=whole, architecture=config)
    assert equal(load_file(tmp_path / "plain" / PART), state)
    assert any(f"{len(state)} weights of another copy than 'net'" in note for note in notes)
    assert any("no contract.json" in note for note in notes)
    convert(folder, tmp_path / "ema", "diffusers", copy="net_ema", parts=whole, architecture=config)
    assert equal(load_file(tmp_path / "ema" / PART), {name: value + 1 for name, value in state.items()})
    with pytest.raises(CheckpointError, match=r"missing: plain/contract\.json"):
        check_complete(tmp_path / "plain")
    (shard,) = (folder / "model").glob("*.distcp")
    shard.write_bytes(shard.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="cannot be read"):
        convert(folder, tmp_path / "cut", "diffusers", parts=whole, architecture=config)
    assert not (tmp_path / "cut").exists()


@pytest.mark.parametrize("nest", [lambda s: s, lambda s: {"model": s}, lambda s: {"state_dict": s, "step": 4}])
def test_a_torch_file(whole: Path, state, config: Path, tmp_path: Path, nest) -> None:
    torch.save(nest(native(state)), tmp_path / "weights.pt")
    convert(tmp_path / "weights.pt", tmp_path / "made", "diffusers", parts=whole, architecture=config)
    assert equal(load_file(tmp_path / "made" / PART), state)


class Touch:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_files_are_never_run(tmp_path: Path) -> None:
    torch.save({"net.vae2llm.bias": Touch(tmp_path / "ran")}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match="cannot be read as plain tensors"):
        open_source(tmp_path / "evil.pt")
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / ".metadata").write_bytes(pickle.dumps(Touch(tmp_path / "ran")))
    with pytest.raises(CheckpointError, match="asks to load"):
        open_source(tmp_path / "evil")
    (tmp_path / "evil" / ".metadata").write_bytes(b"\x80")
    with pytest.raises(CheckpointError, match="is not the metadata of a checkpoint"):
        open_source(tmp_path / "evil")
    assert not (tmp_path / "ran").exists()


def test_the_visual_tower_goes_along(whole: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(whole, tmp_path / "source"))
    tower = {"blocks.0.norm1.weight": torch.rand(4), "merger.mlp.0.bias": torch.rand(3)}
    (source / "vision_encoder").mkdir()
    save_file(tower, source / "vision_encoder" / "model.safetensors")
    convert(source, tmp_path / "native", "native")
    assert "model.net.language_model.visual.blocks.0.norm1.weight" in load_file(tmp_path / "native/model.safetensors")
    convert(tmp_path / "native", tmp_path / "back", "diffusers", parts=whole)
    assert equal(load_file(tmp_path / "back" / "vision_encoder" / "model.safetensors"), tower)


def test_legacy_weights_are_dropped_and_told(whole: Path, state, config: Path, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = {**native(state), "net.latent_pos_embed": torch.zeros(3)}
    save_file(old, tmp_path / "old" / "model.safetensors")
    plan = plan_conversion(tmp_path / "old", architecture=config)
    assert plan.notes == ("weights that nothing reads any more were dropped: net.latent_pos_embed",)


def test_what_does_not_fit_is_refused(whole: Path, state, config: Path, tmp_path: Path) -> None:
    (tmp_path / "native").mkdir()
    file, target = tmp_path / "native" / "model.safetensors", tmp_path / "target"

    def refuse(weights: dict[str, torch.Tensor], words: str, **settings) -> None:
        save_file(weights, file)
        with pytest.raises((CheckpointError, UnknownNameError), match=words):
            convert(tmp_path / "native", target, "diffusers", **{"parts": whole, "architecture": config, **settings})
        assert sorted(path.name for path in tmp_path.iterdir()) == ["native"]

    good = native(state)
    refuse({k: v for k, v in good.items() if "llm2vae.bias" not in k}, "missing proj_out.bias")
    refuse({k: v for k, v in good.items() if "llm2action" not in k}, "Edge snapshots older than 2026-07-16")
    refuse({**good, "net.sound2llm.bias": torch.zeros(2)}, "unknown audio_proj_in.bias")
    refuse({**good, "net.vae2llm.bias": torch.zeros(2)}, r"proj_in.bias is \(2,\), expected \(32,\)")
    refuse({**good, "net.vae2llm.bias": torch.zeros(32).to(torch.float8_e4m3fn)}, "quantised .* F8_E4M3")
    refuse({**good, "net.vae2llm.weight_scale": torch.zeros(1)}, "quantised .*weight_scale")
    refuse(good, "fits none of nano, super, edge", architecture=None)
    refuse(good, "did you mean 'nano'", architecture="nanoo")
    refuse(good, "no transformer weights under 'net_ema'", copy="net_ema")


def test_released_architectures_are_known_by_their_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cosmos_robot.backbone.cosmos3 import convert as module

    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 9}
    heads = {"action_gen": True, "action_dim": 4, "num_embodiment_domains": 2, "sound_gen": True, "sound_dim": 3}
    tiny = {"nano": {**SMALL, **sizes, **heads}}
    monkeypatch.setattr(module, "ARCHITECTURES", tiny)
    silent = {**tiny["nano"], "sound_gen": False, "sound_dim": None}
    model = module.Cosmos3OmniTransformer(**silent)
    (tmp_path / "native").mkdir()
    save_file(native(model.state_dict()), tmp_path / "native" / "model.safetensors")
    assert plan_conversion(tmp_path / "native").config == silent


def test_an_existing_target_is_left_alone(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(CheckpointError, match="exists"):
        convert(whole, tmp_path / "there", "native")
    assert list((tmp_path / "there").iterdir()) == []


def test_a_disk_that_forgets_is_noticed(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cosmos_robot.backbone.cosmos3 import convert as module

    write = module.write_weights

    def forgetful(folder: Path, stem: str, tensors, limit: int) -> None:
        write(folder, stem, tensors, limit)
        path = folder / f"{stem}.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)

    monkeypatch.setattr(module, "write_weights", forgetful)
    with pytest.raises(CheckpointError, match="did not come back as written"):
        convert(whole, tmp_path / "native", "native")
    assert list(tmp_path.iterdir()) == []


def test_nan_weights_survive_a_conversion(whole: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(whole, tmp_path / "source"))
    weights = load_file(source / PART)
    weights["proj_in.bias"][3] = float("nan")
    save_file(weights, source / PART)
    convert(source, tmp_path / "native", "native")
    assert load_file(tmp_path / "native" / "model.safetensors")["model.net.vae2llm.bias"][3].isnan()


def test_commands(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "native"
    assert cli.main(["ckpt", "convert", str(whole), str(made), "--to", "native", "--dtype", "float32"]) == 0
    assert "read back and compared" in capsys.readouterr().out
    assert load_file(made / "model.safetensors")["model.net.vae2llm.bias"].dtype == torch.float32
    assert cli.main(["ckpt", "inspect", str(made)]) == 0
    assert "native, a folder of safetensors" in (printed := capsys.readouterr().out) and " F32" in printed
    assert cli.main(["ckpt", "convert", str(whole), str(made), "--to", "native"]) == cli.REFUSED
    assert cli.main(["ckpt", "convert", str(tmp_path / "no"), str(made), "--to", "native"]) == cli.REFUSED
    assert cli.main(["ckpt", "inspect", str(tmp_path)]) == cli.REFUSED
    assert CONFIG_KEY in (made / "config.json").read_text()
