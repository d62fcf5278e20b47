"""The evaluator's own figure: what pictures on every step cost."""

from __future__ import annotations

import pytest

from cosmos_robot.errors import InputError
from cosmos_robot.eval.runner import RunSettings
from cosmos_robot.eval.speed import measure


def test_both_ways_run_the_same_episodes(fake) -> None:
    protocol = fake.fake_protocol(tasks=(1,), episodes=3, max_steps=20)
    figures = measure(fake.fake_entrant(fake.SeeingPolicy(0.02)), protocol, 3, RunSettings(workers=1))
    one, other = figures["as_read"], figures["every_step"]
    assert (one["episodes"], one["steps"], one["decisions"]) == (other["episodes"], other["steps"], other["decisions"])
    assert one["episodes"] == 3 and figures["ratio"] == pytest.approx(other["seconds"] / one["seconds"])
    assert figures["cameras"] == ["table", "hand"]


@pytest.mark.parametrize("rounds", [0, 4])
def test_rounds_that_leave_no_episode_are_refused(fake, rounds: int) -> None:
    with pytest.raises(InputError, match="rounds"):
        measure(fake.fake_entrant(), fake.fake_protocol(tasks=(1,), episodes=3), rounds, RunSettings(workers=1))
