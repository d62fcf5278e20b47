"""A whole evaluation as a process: killed, interrupted, resumed; and what it refuses to overwrite."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from cosmos_robot.errors import InputError, UnknownNameError
from cosmos_robot.eval.results import build_result, log_path, read_result
from cosmos_robot.eval.runner import RunSettings
from cosmos_robot.eval.session import evaluate, print_result, suite_tasks

EPISODES = 3 * 3


def start(result: Path, seconds_per_decision: float) -> subprocess.Popen[str]:
    program = Path(__file__).with_name("fake_run.py")
    command = [sys.executable, str(program), str(result), "3", str(seconds_per_decision)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)


def lines(result: Path) -> list[str]:
    path = log_path(result)
    return path.read_text().splitlines() if path.exists() else []


def wait_for_episodes(process: subprocess.Popen[str], result: Path, count: int) -> None:
    while len(lines(result)) < 1 + count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def outcomes(result: Path) -> dict:
    return {r.key: (r.success, r.steps, r.noise_seeds) for r in read_result(result)[1]}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    result = tmp_path_factory.mktemp("undisturbed") / "out.json"
    process = start(result, 0)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out == f"success: {EPISODES}/{EPISODES}\n"
    return result


@pytest.mark.parametrize("sign, group", [(signal.SIGKILL, False), (signal.SIGINT, True)])
def test_a_stopped_run_goes_on_where_it_was(tmp_path, undisturbed, sign: signal.Signals, group: bool) -> None:
    """kill -9 of the process alone; Ctrl-C as a terminal sends it, to workers as well."""
    result = tmp_path / "out.json"
    process = start(result, 0.2)
    wait_for_episodes(process, result, 2)
    (os.killpg if group else os.kill)(process.pid, sign)
    _, err = process.communicate()
    assert process.returncode != 0
    assert not result.exists()
    kept = lines(result)[1:]
    assert 2 <= len(kept) < EPISODES
    if sign == signal.SIGINT:
        assert f"Interrupted: {len(kept)} of {EPISODES} episodes are saved in {log_path(result)}" in err

    process = start(result, 0)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert f"{len(kept)} of {EPISODES} episodes taken from" in err
    assert outcomes(result) == outcomes(undisturbed)
    assert json.loads(result.read_text())["resumed_episodes"] == len(kept)
    assert lines(result)[1 : 1 + len(kept)] == kept


def run_again(fake, result: Path, *, fresh: bool = False, policy=None, **changes) -> tuple[dict, str]:
    said = Console(file=io.StringIO(), width=200)
    entrant = fake.fake_entrant(policy)
    header = entrant.header(fake.fake_protocol(episodes=1, **changes))
    content = evaluate(entrant.policy, header, result, RunSettings(workers=1), fresh=fresh, console=said)
    return content, said.file.getvalue()


def test_a_finished_run_is_not_run_again_unless_fresh(tmp_path, fake) -> None:
    result, policy = tmp_path / "out.json", fake.SeeingPolicy()
    run_again(fake, result, tasks=(2,))
    content, said = run_again(fake, result, tasks=(2,), policy=policy)
    assert not policy.batches
    assert (content["episodes"], content["resumed_episodes"]) == (1, 1)
    assert "1 of 1 episodes taken from" in said
    content, said = run_again(fake, result, tasks=(2,), policy=policy, fresh=True)
    assert policy.batches
    assert content["resumed_episodes"] == 0
    assert "1/1 fake/2 init 0: success in 12 steps; success 1/1" in said


def test_another_run_is_refused_and_nothing_is_overwritten(tmp_path, fake) -> None:
    result = tmp_path / "out.json"
    run_again(fake, result, tasks=(2,))
    before = result.read_bytes(), log_path(result).read_bytes()
    with pytest.raises(InputError, match="seed: 0 then, 1 now"):
        run_again(fake, result, tasks=(2,), seed=1)
    log_path(result).rename(tmp_path / "kept")
    with pytest.raises(InputError, match="seed: 0 then, 1 now"):
        run_again(fake, result, tasks=(2,), seed=1)
    assert (result.read_bytes(), (tmp_path / "kept").read_bytes()) == before


@pytest.mark.parametrize("fresh", [False, True])
def test_a_file_that_is_no_result_is_never_overwritten(tmp_path, fake, fresh: bool) -> None:
    result = tmp_path / "package.json"
    result.write_text('{"name": "something else"}')
    with pytest.raises(InputError, match="is not a result"):
        run_again(fake, result, fresh=fresh)
    assert result.read_text() == '{"name": "something else"}'


def test_the_result_must_be_a_json_file(tmp_path, fake) -> None:
    with pytest.raises(InputError, match=r"ending in \.json"):
        run_again(fake, tmp_path / "out.txt")


def test_the_table_shows_intervals_and_errors(fake, undisturbed) -> None:
    header, records = read_result(undisturbed)
    content = build_result(header, records, [], seconds=1, resumed=0)
    content["errors"] = [{"suite": "fake", "task": 1, "init": 4, "message": "exit code [7]"}]
    console = Console(file=io.StringIO(), width=120)
    print_result(content, console)
    text = console.file.getvalue()
    assert "Touch the far target" in text
    assert "3/3" in text
    assert "0.44 to 1.00" in text
    assert "0.70 to 1.00" in text
    assert "not run: fake/1 init 4: exit code [7]" in text
    assert text.endswith("success: 9/9\n")


def test_suites_and_tasks_are_checked_by_name() -> None:
    assert suite_tasks("fake") == (0, 1, 2)
    assert suite_tasks("fake", (2, 0)) == (2, 0)
    assert suite_tasks("libero_object_swap") == tuple(range(10))
    with pytest.raises(UnknownNameError, match="did you mean 'libero_object'"):
        suite_tasks("libero_objet")
    with pytest.raises(UnknownNameError, match="did you mean 'libero'"):
        suite_tasks("libro_object")
    with pytest.raises(UnknownNameError, match="task of fake '7'"):
        suite_tasks("fake", (7,))
