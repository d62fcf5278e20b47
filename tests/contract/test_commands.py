"""``cosmos-robot contract ...`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cosmos_robot import cli
from cosmos_robot.contract import Contract, contract_names, load_contract, robot_names


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(["contract", *words])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")


def test_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "list")
    assert status == 0
    assert set(contract_names()) | set(robot_names()) <= set(out.replace(",", " ").split())


def test_diff_of_the_two_libero_policies_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "diff", "cosmos-policy-libero", "cosmos3-libero")
    assert status == 0
    lines = out.splitlines()
    for label, first, second in (
        ("orientation shown to the model", "upright", "left and right exchanged"),
        ("cameras become", "a latent frame each", "one picture"),
        ("template", "instruction", "action_json"),
        ("JPEG quality before", "95", "none"),
        ("backbone", "predict2", "cosmos3"),
        ("the state is given to the model", "yes", "no"),
    ):
        found = [line for line in lines if line.startswith(label)]
        assert found and first in found[0] and second in found[0].split(first)[1], (label, found)
    assert {"state", "model", "picture", "prompt", "sampler"} <= {line.strip() for line in lines}
    assert "chunk" not in out and "commands per second" not in out, "equal in both"


def test_diff_of_equals(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "diff", "tiny-libero", "tiny-libero")[1].strip() == "tiny-libero and tiny-libero are equal"


def test_show_in_words_and_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = run(capsys, "show", "cosmos3-nano-droid")
    assert "gripper_position: 0 open, 1 closed" in out and "gripper 1 open, 0 closed" in out
    path = load_contract("cosmos3-nano-droid").save(tmp_path)
    _, text, _ = run(capsys, "show", str(path), "--json")
    assert Contract.model_validate_json(text) == load_contract("cosmos3-nano-droid")


def test_show_of_a_robot(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "show", "aloha")
    assert "left_gripper, right_gripper: 1 open, 0 closed" in out


def test_check_tells_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "check", "tiny-libero", "libero-panda")
    assert (status, "no difference" in out) == (0, True)
    status, out, _ = run(capsys, "check", "cosmos3-nano-droid", "aloha")
    assert status == 1
    assert any(line.startswith("refuse") and "rate_hz" in line for line in out.splitlines())
    status, out, _ = run(capsys, "check", "cosmos3-libero", "libero-panda")
    assert status == 0 and "not read" in out


def test_check_of_an_environment(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "check", "tiny-libero", "fake/0")
    assert status == 1 and "cameras.agentview" in out


def test_schema_is_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads(run(capsys, "schema")[1])
    assert {"version", "robot", "model"} <= set(schema["required"])
    assert "rotvec_robosuite" in json.dumps(schema)
    assert "rate_hz" in json.loads(run(capsys, "schema", "--part", "robot")[1])["required"]


@pytest.mark.parametrize(
    "words", [("show", "cosmos3-lbero"), ("diff", "tiny-libero", "tiny-liber"), ("check", "a", "b")]
)
def test_unknown_names_are_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, *words)
    assert status == cli.REFUSED
    assert err.startswith("error: unknown contract")


def test_a_broken_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "contract.json").write_text("{}")
    status, _, err = run(capsys, "show", str(tmp_path))
    assert status == cli.REFUSED and "no version number" in err
