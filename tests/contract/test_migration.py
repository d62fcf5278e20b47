"""Older contracts still mean what they meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cosmos_robot.contract import Contract, read_contract
from cosmos_robot.contract.migration import migrated
from cosmos_robot.errors import ContractError

SHIPPED = ("tiny-libero", "tiny-libero-blind")
NEW_IN_2 = {
    "camera": ("view",),
    "field": ("kind", "rotation", "frame", "low", "high"),
    "gripper": ("also", "threshold", "hysteresis"),
    "canvas": ("resize", "fit", "tier", "pad", "jpeg_quality", "crop_fraction"),
    "model": (
        "modes domain_name history_rows actions_per_frame fps action_space state_space".split()  # noqa: SIM905
    ),
    "normalization": "formula constant constant_below clamp_mask beta translation_scale rotation_scale note".split(),
    "prompt": ("viewpoint", "layout_text", "idle", "seconds"),
    "sampler": ("guidance_interval", "guidance_clamp", "noise", "sigma_min", "sigma_max"),
}


def as_version_1(document: dict) -> dict:
    """A version 2 document of a LIBERO checkpoint as version 1 wrote it."""

    def without(part: dict, what: str) -> dict:
        return {key: value for key, value in part.items() if key not in NEW_IN_2[what]}

    robot, model = dict(document["robot"]), without(document["model"], "model")
    robot.pop("state_gripper")
    robot["cameras"] = [without(camera, "camera") for camera in robot["cameras"]]
    robot["gripper"] = without(robot["gripper"], "gripper")
    for side in ("state", "action"):
        robot[side] = [without(field, "field") for field in robot[side]]
        model[f"{side}_normalization"] = without(model[f"{side}_normalization"], "normalization")
    for part in ("canvas", "prompt", "sampler"):
        model[part] = without(model[part], part)
    return {"version": 1, "robot": robot, "model": model}


@pytest.mark.parametrize("name", SHIPPED)
def test_version_1_reads_as_the_same_contract(name: str, assets: Path, tmp_path: Path) -> None:
    now = json.loads((assets / name / "contract.json").read_text())
    assert now["version"] == 2
    old = as_version_1(now)
    assert set(old["robot"]["state"][0]) == {"name", "width", "unit", "meaning"}
    (tmp_path / "contract.json").write_text(json.dumps(old))
    expected = now | {"model": now["model"] | {"domain_name": ""}}
    assert Contract.load(tmp_path).model_dump(mode="json") == expected


def test_migration_leaves_its_argument_alone(assets: Path) -> None:
    old = as_version_1(json.loads((assets / "tiny-libero" / "contract.json").read_text()))
    before = json.dumps(old)
    migrated(old, 2)
    assert json.dumps(old) == before


def test_fields_of_an_unknown_robot_are_not_given_a_kind(assets: Path) -> None:
    old = as_version_1(json.loads((assets / "tiny-libero" / "contract.json").read_text()))
    old["robot"]["name"] = "another"
    assert Contract.model_validate(migrated(old, 2)).robot.state[1].kind == "other"


@pytest.mark.parametrize("version", [3, 0, -1, None, "2", True, 1.5])
def test_other_versions_are_refused(version: object, tmp_path: Path) -> None:
    path = tmp_path / "contract.json"
    path.write_text(json.dumps({"version": version}))
    with pytest.raises(ContractError, match=r"contract\.json.*version"):
        read_contract(path)


def test_a_document_without_a_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "contract.json"
    path.write_text("{}")
    with pytest.raises(ContractError, match="no version number"):
        read_contract(path)
