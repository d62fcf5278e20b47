"""Older contracts still mean what they meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cosmos_robot.contract import Contract, read_contract
from cosmos_robot.contract.migration import migrated
from cosmos_robot.errors import ContractError

OLD = Path(__file__).with_name("version_1.json")
"""The contract of tiny-libero as version 1 wrote it."""


@pytest.fixture
def old() -> dict:
    return json.loads(OLD.read_text())


def test_version_1_reads_as_the_contract_that_ships_now(assets: Path) -> None:
    assert json.loads(OLD.read_text())["version"] == 1
    now = Contract.load(assets / "tiny-libero")
    assert json.loads((assets / "tiny-libero" / "contract.json").read_text())["version"] == 2
    model = now.model.model_copy(update={"domain_name": ""})
    assert read_contract(OLD) == now.model_copy(update={"model": model})


def test_migration_leaves_its_argument_alone(old: dict) -> None:
    before = json.dumps(old)
    migrated(old, 2)
    assert json.dumps(old) == before


def test_fields_of_an_unknown_robot_are_not_given_a_kind(old: dict) -> None:
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
