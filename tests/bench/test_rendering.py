"""The rendering benchmark counts what it says it counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cosmos_robot import cli, envs
from cosmos_robot.bench.rendering import EpisodeSpeed, Speed, compare, measure, measure_episodes, report
from cosmos_robot.errors import InputError

CAMERAS = 2
WARMING = CAMERAS


@pytest.mark.parametrize(("every", "readings"), [(0, 0), (1, 12), (5, 3)])
def test_pictures_are_drawn_exactly_when_asked_for(every: int, readings: int) -> None:
    with envs.make("fake/0") as env:
        speed = measure(env, every, steps=12)
        assert speed.pictures == readings * CAMERAS == env.draws - WARMING
    assert speed.steps == 12


def test_an_episode_that_ends_is_begun_again() -> None:
    with envs.make("fake/0", step_budget=5) as env:
        assert measure(env, 0, steps=23).steps == 23


def test_rate_is_steps_over_seconds() -> None:
    assert Speed(every=0, steps=50, pictures=0, seconds=2.0).steps_per_second == 25.0


def test_compare_measures_each_frequency() -> None:
    with envs.make("fake/0") as env:
        assert [speed.every for speed in compare(env, 3, every=(0, 2))] == [0, 2]


@pytest.mark.parametrize(("every", "steps"), [(-1, 5), (0, 0)])
def test_impossible_measurements_are_refused(every: int, steps: int) -> None:
    with envs.make("fake/0") as env, pytest.raises(InputError, match=r"expected every >= 0 and steps >= 1"):
        measure(env, every, steps)


@pytest.mark.parametrize(("every", "readings"), [(1, 20), (8, 3), (40, 1)])
def test_episodes_are_looked_at_before_each_decision_only(every: int, readings: int) -> None:
    with envs.make("fake/0") as env:
        run = measure_episodes(env, every, episodes=3, length=20)
        assert run.pictures == 3 * readings * CAMERAS == env.draws - WARMING
    assert (run.episodes, run.steps) == (3, 60)


def test_an_episode_may_end_early() -> None:
    with envs.make("fake/0", step_budget=5) as env:
        assert measure_episodes(env, 8, episodes=2, length=20).steps == 10


def test_episode_rate_is_episodes_over_minutes() -> None:
    assert EpisodeSpeed(every=8, episodes=4, steps=400, pictures=0, seconds=30.0).episodes_per_minute == 8.0


@pytest.mark.parametrize("wrong", [{"every": 0}, {"episodes": 0}, {"length": 0}])
def test_impossible_episodes_are_refused(wrong: dict[str, int]) -> None:
    with envs.make("fake/0") as env, pytest.raises(InputError, match="expected at least 1"):
        measure_episodes(env, **{"every": 1, "episodes": 1, "length": 1} | wrong)


def test_report_holds_its_own_ratio() -> None:
    with envs.make("fake/0") as env:
        figures = report(env, steps=8, episodes=2, length=10)
    often, always = (run["episodes_per_minute"] for run in figures["episodes"])
    assert figures["episode_speedup"] == pytest.approx(often / always)
    assert figures["cameras"] == {"table": [48, 64], "hand": [24, 24]}


def test_command_prints_rows_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.json"
    flags = ["--env", "fake/0", "--steps", "8", "--episodes", "1", "--length", "9", "--json"]
    assert cli.main(["bench", "rendering", *flags, str(out)]) == 0
    printed = capsys.readouterr().out
    for row in ("none", "every 8 steps", "every step", "every 8 steps, with resets"):
        assert row in printed
    assert [row["every"] for row in json.loads(out.read_text())["control"]] == [0, 8, 1]


def test_command_refuses_an_unknown_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "rendering", "--env", "fake/9"]) == cli.REFUSED
    assert "unknown" in capsys.readouterr().err
