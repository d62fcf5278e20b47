"""The rendering benchmark counts what it says it counts."""

from __future__ import annotations

import pytest

from cosmos_robot import cli, envs
from cosmos_robot.bench.rendering import Speed, compare, measure
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


def test_command_prints_a_row_per_frequency(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--env", "fake/0", "--steps", "8"]) == 0
    printed = capsys.readouterr().out
    for row in ("none", "every 8 steps", "every step"):
        assert row in printed


def test_command_refuses_an_unknown_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--env", "fake/9"]) == cli.REFUSED
    assert "unknown" in capsys.readouterr().err
