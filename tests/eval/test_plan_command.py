"""One decision, printed and drawn."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from cosmos_robot.errors import InputError
from cosmos_robot.eval.plan import PlanConfig, draw_plan, main_plan, print_plan
from cosmos_robot.images import compose_canvas
from cosmos_robot.planning import load_planner
from cosmos_robot.policies.conformance import some_observation


@pytest.mark.parametrize("plan", ["best-of-3:futures=2,values=2", "best-of-2:reads=q_value"])
def test_printed_and_drawn(fake, tmp_path, plan: str) -> None:
    planner, seen = load_planner("random", plan, contract=fake.CONTRACT), some_observation(fake.CONTRACT)
    found = planner.plan(seen, 4)
    screen = Console(file=io.StringIO(), width=200)
    print_plan(found, screen)
    words = screen.file.getvalue()
    assert all(str(c.seed) in words for c in found.candidates) and found.why in words
    assert words.count("chosen") == 1
    now = compose_canvas(fake.CONTRACT, seen.images)
    page = draw_plan(tmp_path / "a.html", planner, seen, now, found, (np.zeros_like(now), True)).read_text()
    futures = sum(len(c.futures) for c in found.candidates)
    assert page.count("<img ") == 2 + futures
    assert page.count(">chosen<") == 1 and "a success" in page and seen.instruction in page


def test_what_was_not_scored_says_so(fake) -> None:
    planner = load_planner("random", "best-of-2", contract=fake.CONTRACT)
    screen = Console(file=io.StringIO(), width=300)
    print_plan(planner.plan(some_observation(fake.CONTRACT), 4, deadline_s=0), screen)
    assert "plain policy" in screen.file.getvalue() and "deadline" in screen.file.getvalue()


def test_a_file_of_another_kind_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="html"):
        main_plan(PlanConfig("random", html=tmp_path / "a.png"))
