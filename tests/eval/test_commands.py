"""The scripts as people run them, and where their processes find what they import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cosmos_robot.envs.remote import RemoteEnv
from cosmos_robot.errors import InputError
from cosmos_robot.eval.compare import compare_results
from cosmos_robot.eval.results import EpisodeRecord, build_result, write_result

ROOT = Path(__file__).resolve().parents[2]


def script(name: str, *arguments: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "eval" / name), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def save(fake, path: Path, outcomes: dict[tuple[int, int], bool], suite: str = "fake", **changes) -> Path:
    header = fake.fake_entrant().header(fake.fake_protocol(suite=suite, **changes))
    records = [
        EpisodeRecord(
            suite=suite, task=task, init=init, instruction=f"Task {task}", success=success, ended="env", steps=1,
            decisions=1, reset_seed=0, noise_seeds=(0,), seconds=1,
        )
        for (task, init), success in outcomes.items()
    ]  # fmt: skip
    write_result(path, build_result(header, records, [], seconds=1, resumed=0))
    return path


@pytest.mark.parametrize("folder", [ROOT, ROOT / "eval"])
def test_the_script_finds_the_simulators_libero_and_not_itself(folder: Path) -> None:
    """The suites come from the simulator's package ``libero``, which eval/libero.py would hide."""
    done = script("libero.py", "--suite", "libero_objet", cwd=folder)
    assert done.returncode == 2, done.stderr
    assert "unknown suite 'libero_objet'; did you mean 'libero_object'" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_its_first_lines_the_script_would_find_itself() -> None:
    """What the lines at the head of the scripts are for."""
    program = (
        "import sys, importlib.util; sys.path.insert(0, sys.argv[1]); "
        "print(*(importlib.util.find_spec(name).origin for name in ('libero', 'statistics')))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(ROOT / "eval")], capture_output=True, text=True)
    assert done.stdout.split() == [str(ROOT / "eval" / "libero.py"), str(ROOT / "eval" / "statistics.py")]


def test_workers_started_from_that_folder_find_the_simulator(fake, monkeypatch) -> None:
    monkeypatch.chdir(ROOT / "eval")
    with RemoteEnv("fake/0", variables=fake.FINDABLE, factory="fake_run:make_locating") as env:
        for origin in env.instruction.split():
            assert ROOT / "eval" not in Path(origin).parents


def test_compare_pairs_by_task_and_init_state(tmp_path, fake) -> None:
    a = save(fake, tmp_path / "a.json", {(0, 0): True, (0, 1): True, (1, 0): True, (1, 1): False, (2, 0): True})
    b = save(fake, tmp_path / "b.json", {(1, 1): True, (1, 0): False, (0, 1): False, (0, 0): True, (2, 9): True})
    found = compare_results(a, b)
    total = found["total"]
    assert (total.both, total.only_a, total.only_b, total.neither) == (1, 2, 1, 0)
    assert found["unpaired"] == 2
    assert (found["per_task"][0].only_a, found["per_task"][1].only_b) == (1, 1)
    assert set(found["per_task"]) == {0, 1}


def test_compare_as_a_script_prints_the_test_and_the_differences(tmp_path, fake) -> None:
    outcomes = {(0, i): True for i in range(8)}
    a = save(fake, tmp_path / "a.json", outcomes)
    b = save(fake, tmp_path / "b.json", dict.fromkeys(outcomes, False), execute=2)
    done = script("compare.py", a, b, "--json", tmp_path / "c.json", cwd=ROOT / "eval")
    assert done.returncode == 0, done.stderr
    assert "p = 0.00781 over 8 pairs" in done.stdout
    assert "execute: 4 in a, 2 in b" in done.stdout
    assert json.loads((tmp_path / "c.json").read_text())["total"]["only_a"] == 8


def test_compare_refuses_what_does_not_pair(tmp_path, fake) -> None:
    a = save(fake, tmp_path / "a.json", {(0, 0): True})
    with pytest.raises(InputError, match=r"no episode .* in common"):
        compare_results(a, save(fake, tmp_path / "b.json", {(0, 1): True}))
    with pytest.raises(InputError, match="suites differ"):
        compare_results(a, save(fake, tmp_path / "c.json", {(0, 0): True}, suite="fake_swap"))
    done = script("compare.py", a, tmp_path / "none.json")
    assert done.returncode == 2
    assert "is not a result" in done.stderr
