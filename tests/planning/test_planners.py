"""The kit over planners, planners by name, and a planner behind a service."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from cosmos_robot.errors import InputError, UnknownNameError
from cosmos_robot.planning import conformance, load_planner
from cosmos_robot.planning.best_of_n import Planner
from cosmos_robot.planning.executors import Spread, ThreadWorker
from cosmos_robot.planning.plan import PlannerSettings
from cosmos_robot.planning.policy import PlanningPolicy
from cosmos_robot.policies import FAKE_VALUES, load_value_model
from cosmos_robot.policies.conformance import some_observation
from cosmos_robot.serve.commands import ServeConfig, load_models
from cosmos_robot.serve.messages import ChunkReply, Infer, Plan
from cosmos_robot.serve.service import Models, Service

PLANS = (
    "best-of-3:futures=2,values=2",
    "best-of-3:reads=q_value",
    "best-of-2:n_most=6,disagree_above=0.01,aggregation=lcb",
    "best-of-4:batch=2,aggregation=success_vote,ties=first",
)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", ["random", "zero"])
def test_planners_by_name(line, name: str, plan: str) -> None:
    conformance.run(lambda: load_planner(name, plan, contract=line.contract()))


def test_over_an_analytic_world(line) -> None:
    assert "best_is_chosen" in conformance.run(lambda: line.planner(n=3))


def test_over_workers_of_which_one_is_lost(line) -> None:
    settings = PlannerSettings(n=4, futures=2, values=3)
    workers = [ThreadWorker(line.evaluator(), "t"), line.Dying()]
    planner = Planner(line.Steps(), Spread(workers), settings)
    for name in ("every_candidate_is_logged", "best_is_chosen", "deadline_0_is_the_plain_policy"):
        conformance.CHECKS[name](planner)
    planner.close()


class Worst(Planner):
    """Takes the worst candidate."""

    def plan(self, observation, seed, deadline_s=None, committed=None):
        found = super().plan(observation, seed, deadline_s, committed)
        worst = min(found.candidates, key=lambda c: c.score)
        return type(found)(worst.chunk, worst, found.candidates, found.planned, found.why, found.seconds)


class Forgetful(Planner):
    """Logs only what it chose."""

    def plan(self, observation, seed, deadline_s=None, committed=None):
        found = super().plan(observation, seed, deadline_s, committed)
        return type(found)(found.chunk, found.chosen, (found.chosen,), found.planned, found.why, found.seconds)


class Timeless(Planner):
    """Knows no deadline."""

    def plan(self, observation, seed, deadline_s=None, committed=None):
        return super().plan(observation, seed, None, committed)


class Reseeded(Planner):
    """Begins with another seed."""

    def plan(self, observation, seed, deadline_s=None, committed=None):
        return super().plan(observation, seed + 1, deadline_s, committed)


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (Worst, "best_is_chosen"),
        (Forgetful, "every_candidate_is_logged"),
        (Timeless, "deadline_0_is_the_plain_policy"),
        (Reseeded, "base_is_the_plain_policys"),
    ],
)
def test_the_kit_finds_what_is_broken(line, kind, check: str) -> None:
    good = line.planner(n=4)
    broken = kind(good.plain, good.executor, good.settings)
    conformance.CHECKS[check](good)
    with pytest.raises(AssertionError):
        conformance.CHECKS[check](broken)


@pytest.mark.parametrize("name", list(FAKE_VALUES))
@pytest.mark.parametrize("reads", ["value", "value_of_future", "q_value"])
def test_values_by_name(line, name: str, reads: str) -> None:
    value = load_value_model(name, reads=reads, contract=line.contract())
    seen, chunk = line.at(0), line.Steps().act([line.at(0)], [1])[0]
    futures = None if reads == "q_value" else line.Line().imagine([seen] * 2, [chunk] * 2, [1, 2])
    found = value.score([seen] * 2, [chunk] * 2, futures, [1, 2])
    assert found.shape == (2,) and (found >= 0).all() and (found <= 1).all()


def test_names_that_do_not_fit(line) -> None:
    with pytest.raises(UnknownNameError, match="random"):
        load_planner("randon", "best-of-2")
    with pytest.raises(InputError, match="best-of-N"):
        load_planner("random", "best of 2", contract=line.contract())
    with pytest.raises(InputError, match="depth above 1"):
        load_planner("random", "best-of-2:depth=2", contract=line.contract())
    with pytest.raises(InputError, match="contract"):
        load_planner("random", "best-of-2")


def test_a_planner_behind_a_service(line) -> None:
    searching = PlanningPolicy(load_planner("random", PLANS[0], contract=line.contract()))
    seen = some_observation(line.contract())
    with Service(Models(searching, plan=searching.plan)) as service:
        asked = service.submit(Infer(seen, 3)).result(60)
        planned = service.submit(Plan(seen, 3)).result(60)
        at_once = service.submit(Plan(seen, 3, deadline_s=1e-6)).result(60)
    assert isinstance(asked, ChunkReply) and isinstance(planned, ChunkReply)
    np.testing.assert_array_equal(asked.chunk.values, planned.chunk.values)
    assert planned.chunk.info["plan"]["planned"] and len(planned.chunk.info["plan"]["candidates"]) == 3
    assert not isinstance(at_once, ChunkReply) or not at_once.chunk.info["plan"]["planned"]


def test_executors_are_for_searches() -> None:
    with pytest.raises(InputError, match="--executor are for a search"):
        load_models(ServeConfig("tiny-libero", executor="threads:2"))


def test_a_planner_over_threads(line) -> None:
    """By name, the same plan as in process."""
    plan, seen = "best-of-4:futures=1,values=2", some_observation(line.contract())
    alone = load_planner("random", plan, contract=line.contract()).plan(seen, 3)
    with contextlib.closing(load_planner("random", plan, contract=line.contract(), executor="threads:2")) as planner:
        found = planner.plan(seen, 3)
    assert [c.score for c in found.candidates] == [c.score for c in alone.candidates]
    assert found.settings == alone.settings == plan
