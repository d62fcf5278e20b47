"""Contract files: what is read, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cosmos_robot.contract import (
    Contract,
    FieldSpec,
    GripperSpec,
    Normalization,
    RobotSpec,
    SamplerSpec,
    Statistics,
    contract_names,
    load_contract,
    load_robot,
    read_contract,
    robot_names,
)
from cosmos_robot.errors import ContractError, UnknownNameError

RELEASED = {
    "cosmos3-nano-droid", "cosmos3-edge-droid", "cosmos3-libero", "cosmos-policy-libero", "cosmos-policy-robocasa",
    "cosmos-policy-aloha", "cosmos3-base-bridge", "cosmos3-base-droid", "cosmos3-base-agibot", "cosmos3-base-fractal",
    "cosmos3-base-umi",
}  # fmt: skip


@pytest.fixture
def document() -> dict[str, Any]:
    return load_contract("tiny-libero").model_dump(mode="json")


def written(folder: Path, content: object) -> Path:
    path = folder / "contract.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def at(document: dict[str, Any], path: str) -> tuple[Any, Any]:
    """The part that holds the last key of a dotted path, and that key."""
    *parents, last = [int(p) if p.isdecimal() else p for p in path.split(".")]
    part: Any = document
    for key in parents:
        part = part[key]
    return part, last


def test_released_contracts_are_there() -> None:
    assert set(contract_names()) >= RELEASED


@pytest.mark.parametrize("name", contract_names())
def test_shipped_files_state_every_field(name: str, assets: Path) -> None:
    path = assets / "contracts" / f"{name}.json"
    path = path if path.is_file() else assets / name / "contract.json"
    assert json.loads(path.read_text()) == read_contract(path).model_dump(mode="json")


@pytest.mark.parametrize("name", robot_names())
def test_shipped_robots_state_every_field(name: str, assets: Path) -> None:
    data = json.loads((assets / "robots" / f"{name}.json").read_text())
    assert data == load_robot(name).model_dump(mode="json")
    assert data["name"] == name


def test_robots_of_contracts_are_the_shipped_ones() -> None:
    for contract, robot in (
        ("cosmos3-nano-droid", "droid-franka"),
        ("cosmos3-base-droid", "droid-franka-cartesian"),
        ("cosmos-policy-libero", "libero-panda-quat"),
        ("tiny-libero", "libero-panda"),
    ):
        assert load_contract(contract).robot == load_robot(robot)


@pytest.mark.parametrize("load", [load_contract, load_robot])
def test_a_near_name_is_suggested(load) -> None:
    with pytest.raises(UnknownNameError, match="libero"):
        load("libero-pnda" if load is load_robot else "cosmos3-lbero")


def test_a_file_and_a_folder_are_read(document: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path, document)
    assert load_contract(path) == load_contract(tmp_path) == load_contract("tiny-libero")


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '"contract"', "3", "\x00", "[" * 100_000])
def test_what_is_no_json_object_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"contract\.json"):
        read_contract(written(tmp_path, text))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "contract.json").write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(ContractError, match=r"contract\.json"):
        Contract.load(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="without its contract"):
        Contract.load(tmp_path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_statistics_that_are_no_numbers_are_refused(number: str, document: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps(document)
    first = json.dumps(document["model"]["action_normalization"]["statistics"]["q01"][3])
    assert text.count(first) >= 1
    with pytest.raises(ContractError, match=number):
        read_contract(written(tmp_path, text.replace(first, number)))


def test_numbers_too_large_for_a_float_are_refused(document: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps(document).replace('"rate_hz": 20.0', '"rate_hz": 1e999')
    with pytest.raises(ContractError, match=r"robot\.rate_hz"):
        read_contract(written(tmp_path, text))


@pytest.mark.parametrize(
    "path", ["surprise", "robot.surprise", "robot.cameras.0.surprise", "model.canvas.surprise", "model.prompt.surprise"]
)
def test_unknown_fields_are_refused(path: str, document: dict[str, Any], tmp_path: Path) -> None:
    part, key = at(document, path)
    part[key] = 1
    with pytest.raises(ContractError, match=path.replace(".", r"\.")):
        read_contract(written(tmp_path, document))


@pytest.mark.parametrize(
    "path",
    [
        "model.canvas.orientation", "model.canvas.resize", "model.prompt.idle", "model.sampler.noise",
        "model.action_normalization.formula", "robot.cameras.1.orientation", "robot.gripper.threshold", "model.sees",
        "model.sampler.guidance", "robot.action.0.kind",
    ],
)  # fmt: skip
def test_a_field_left_out_is_not_guessed(path: str, document: dict[str, Any], tmp_path: Path) -> None:
    part, key = at(document, path)
    del part[key]
    with pytest.raises(ContractError, match=rf"not stated.*\n  - {path}".replace(".", r"\.").replace(r"\.*", ".*")):
        read_contract(written(tmp_path, document))


@pytest.mark.parametrize("path", ["robot", "model", "model.canvas", "model.prompt", "model.prompt.template"])
def test_a_part_left_out_is_refused(path: str, document: dict[str, Any], tmp_path: Path) -> None:
    """No template, no serving: there is no contract without one."""
    part, key = at(document, path)
    del part[key]
    with pytest.raises(ContractError, match=path.replace(".", r"\.")):
        read_contract(written(tmp_path, document))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model.domain_id", 32, "less than 32"),
        ("model.domain_id", None, "cosmos3 needs one"),
        ("model.execute", 17, "more than chunk"),
        ("model.backbone", "cosmos2", "cosmos3"),
        ("model.canvas.orientation", "upside_down", "flip_vertical"),
        ("model.action_normalization.method", "zscore", "meanstd"),
        ("robot.rate_hz", 0, "greater than 0"),
        ("robot.action.1.rotation", "rot6d", "6 numbers, width says 3"),
        ("robot.action.1.rotation", "axis_angle", "rotvec"),
        ("robot.action.1.rotation", None, "go together"),
        ("robot.gripper.closed_value", -1.0, "both -1"),
        ("robot.gripper.field", "hand", "not a field"),
        ("robot.action.0.name", "rotation", "named twice"),
        ("model.canvas.placements.0.camera", "front", "no camera 'front'"),
        ("model.action_normalization.statistics.q01", [0.0] * 6, "one width"),
        ("model.action_normalization.statistics.q01", None, "not recorded"),
        ("model.action_normalization.statistics", None, "a note that says why"),
        ("version", 3, "newer than this package"),
        ("model.chunk", 10**6, "less than or equal to 1024"),
        ("model.sampler.steps", 10**6, "less than or equal to 1000"),
        ("model.canvas.height", 10**6, "less than or equal to 8192"),
    ],
)
def test_wrong_values_are_refused(path: str, value: object, message: str, document: dict, tmp_path: Path) -> None:
    part, key = at(document, path)
    part[key] = value
    with pytest.raises(ContractError, match=message):
        read_contract(written(tmp_path, document))


def test_specs_refuse_what_contradicts_itself() -> None:
    with pytest.raises(ValueError, match="low has 1 numbers"):
        FieldSpec(name="a", width=2, unit="m", low=(0.0,))
    with pytest.raises(ValueError, match="is not below"):
        FieldSpec(name="a", width=1, unit="m", low=(1.0,), high=(1.0,))
    with pytest.raises(ValueError, match="within 0 and 1"):
        GripperSpec(field="g", open_value=0, closed_value=1, kind="binary", threshold=0.9, hysteresis=0.4)
    with pytest.raises(ValueError, match="without a single column"):
        Statistics(count=3)
    with pytest.raises(ValueError, match="needs sigma_min"):
        SamplerSpec(solver="edm_2ab", steps=5)
    with pytest.raises(ValueError, match="needs statistics"):
        Normalization(method="minmax")
    with pytest.raises(ValueError, match="'min', 'max'"):
        Normalization(method="minmax", statistics=Statistics(q01=(0.0,), q99=(1.0,)))


@pytest.mark.parametrize("model", [Contract, RobotSpec])
def test_the_schema_names_every_field(model) -> None:
    schema = model.model_json_schema(mode="serialization")
    assert set(schema["properties"]) == set(model.model_fields) == set(schema["required"])
