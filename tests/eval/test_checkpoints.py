"""The commands with real, untrained checkpoints: what goes into a result, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cosmos_robot.backbone.cosmos3.folder import find_checkpoint
from cosmos_robot.backbone.cosmos3.untrained import save_untrained, untrained_contract
from cosmos_robot.cli import main
from cosmos_robot.contract import Contract
from cosmos_robot.envs.fakes import FAKE_ROBOT, TASKS
from cosmos_robot.envs.libero import LIBERO_PANDA
from cosmos_robot.eval.entrants import hash_checkpoint

SMALL = {"num_hidden_layers": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with ``ck``, its blind control, and ``slow``, made for another control rate."""
    folder = tmp_path_factory.mktemp("checkpoints")
    contract = untrained_contract(FAKE_ROBOT, "ck", chunk=8, execute=6)
    save_untrained(folder / "ck", contract, TASKS, **SMALL)
    dark = contract.model_copy(update={"model": contract.model.model_copy(update={"name": "dark", "sees": False})})
    save_untrained(folder / "ck-blind", dark, TASKS, seed=1, **SMALL)
    shutil.copytree(folder / "ck", folder / "slow")
    slow = contract.model_copy(update={"robot": contract.robot.model_copy(update={"rate_hz": 10.0})})
    slow.save(folder / "slow")
    return folder


def command(folder: Path, result: Path, *words: str) -> list[str]:
    return [
        "eval", "--ckpt", str(folder / "ck"), "--suite", "fake", "--tasks", "2", "--episodes", "1", "--max-steps", "12",
        "--workers", "1", "--json", str(result), *words,
    ]  # fmt: skip


def test_a_checkpoint_and_its_blind_control(tmp_path, folder, capsys) -> None:
    seen, blind = tmp_path / "seen.json", tmp_path / "blind.json"
    assert main(command(folder, seen)) == 0
    out = capsys.readouterr().out
    assert "Keep still" in out
    assert out.splitlines()[-2].startswith("success: ")
    assert out.splitlines()[-2].endswith("/1")
    assert main(command(folder, blind, "--blind")) == 0
    one, other = json.loads(seen.read_text()), json.loads(blind.read_text())
    assert {"success_rate", "successes", "episodes", "ci95", "per_task", "protocol"} <= one.keys()
    assert (one["policy"], one["checkpoint"], one["contract"], one["control"]) == ("cosmos3", "ck", "ck", None)
    assert (other["checkpoint"], other["contract"], other["control"]) == ("ck-blind", "dark", "blind")
    assert one["checkpoint_sha256"] != other["checkpoint_sha256"]
    assert one["protocol"] == other["protocol"]
    assert one["protocol"]["execute"] == 6
    assert one["records"][0]["decisions"] == 2
    assert one["protocol"]["versions"]["packages"]["torch"]


def test_the_policy_that_does_nothing_keeps_still(tmp_path, folder) -> None:
    result = tmp_path / "zero.json"
    assert main(command(folder, result, "--policy", "zero")) == 0
    found = json.loads(result.read_text())
    assert (found["successes"], found["episodes"]) == (1, 1)
    assert (found["policy"], found["checkpoint"], found["control"]) == ("zero", None, "zero")


def test_a_protocol_is_repeated_from_a_result(tmp_path, folder, capsys) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert main(command(folder, first, "--policy", "zero")) == 0
    again = ["eval", "--ckpt", str(folder / "ck"), "--policy", "random", "--workers", "1"]
    assert main([*again, "--protocol", str(first), "--json", str(second)]) == 0
    assert json.loads(first.read_text())["protocol"] == json.loads(second.read_text())["protocol"]
    assert main([*again, "--protocol", str(first), "--seed", "3", "--episodes", "2"]) == 2
    assert "already says what --seed, --episodes would say" in capsys.readouterr().err.replace("\n", " ")


def test_a_protocol_of_older_software_is_repeated_and_told(tmp_path, folder, capsys) -> None:
    first, old = tmp_path / "first.json", tmp_path / "old.json"
    assert main(command(folder, first, "--policy", "zero")) == 0
    protocol = json.loads(first.read_text())["protocol"]
    protocol["versions"]["packages"]["mujoco"] = "2.3.7"
    old.write_text(json.dumps(protocol))
    capsys.readouterr()
    again = ["eval", "--ckpt", str(folder / "ck"), "--policy", "zero", "--workers", "1", "--protocol", str(old)]
    assert main([*again, "--json", str(tmp_path / "second.json")]) == 0
    assert "mujoco: 2.3.7 then" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    "words, said",
    [
        (["--ckpt", "tiny-libreo"], "tiny-libreo"),
        (["--policy", "random", "--blind"], "drop one of them"),
        (["--tasks", "5"], "unknown task of fake '5'"),
        (["--episodes", "0"], "episodes: Input should be greater than 0"),
        (["--execute", "9"], "execute=9 rows per decision, but the policy's chunk has 8"),
        (["--max-steps", "None"], "no step budget is published for 'fake'"),
        (["--protocol", "nowhere.json"], "--protocol already says"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path, folder, capsys, words, said: str) -> None:
    result = tmp_path / "out.json"
    assert main(command(folder, result, "--policy", "zero", *words)) == 2
    assert said in capsys.readouterr().err
    assert not result.exists()


def test_a_checkpoint_without_blind_control_is_refused(tmp_path, folder, capsys) -> None:
    assert main(command(folder, tmp_path / "out.json", "--blind", "--ckpt", str(folder / "slow"))) == 2
    assert "slow-blind" in capsys.readouterr().err


def test_a_contract_that_does_not_fit_is_refused_with_the_field(tmp_path, folder, capsys) -> None:
    words = ["--ckpt", str(folder / "slow"), "--policy", "zero"]
    assert main(command(folder, tmp_path / "out.json", *words)) == 2
    assert "rate_hz: expected 10, got 20" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_the_demo_ends_with_the_score(tmp_path, folder, capsys) -> None:
    words = ["--ckpt", str(folder / "ck"), "--tasks", "fake/2", "--episodes", "1", "--max-steps", "12"]
    assert main(["demo", *words, "--out", str(tmp_path / "demo_out")]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    page = (tmp_path / "demo_out" / "report.html").read_text()
    assert last in ("success: 0/1", "success: 1/1")
    assert last in page
    assert page.count("canvas at step") == 2


def test_the_hash_follows_the_content_not_the_name(tmp_path, folder) -> None:
    original = hash_checkpoint(find_checkpoint(folder / "ck"))
    copy = tmp_path / "copy"
    shutil.copytree(folder / "ck", copy)
    assert hash_checkpoint(find_checkpoint(copy)) == original
    contract = Contract.load(copy)
    contract.model_copy(update={"model": contract.model.model_copy(update={"execute": 3})}).save(copy)
    assert hash_checkpoint(find_checkpoint(copy)) != original


def test_real_libero_from_the_folder_whose_names_hide_others(tmp_path) -> None:
    save_untrained(tmp_path / "ck", untrained_contract(LIBERO_PANDA, "ck"), ["pick"], **SMALL)
    root, result = Path(__file__).resolve().parents[2], tmp_path / "out.json"
    words = ["--ckpt", tmp_path / "ck", "--policy", "zero", "--suite", "libero_object_swap", "--tasks", "3",
             "--episodes", "1", "--max-steps", "9", "--settle-steps", "2", "--json", result]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "libero.py", *map(str, words)], cwd=root / "eval", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(result.read_text())
    (record,) = found["records"]
    assert (found["successes"], record["steps"], record["ended"]) == (0, 9, "budget")
    assert "bbq sauce" in record["instruction"]
    assert found["protocol"]["versions"]["packages"]["robosuite"]
