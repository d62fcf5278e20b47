"""The search over an analytic world: what wins, how it is computed, what time and faults do to it."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.errors import ContractError, InputError, UnknownNameError
from cosmos_robot.planning.plan import PlannerSettings, Task, candidate_seeds, read_plan
from cosmos_robot.planning.policy import PlanningPolicy


def ends(plan) -> list[float]:
    return [float(c.chunk.values.sum()) for c in plan.candidates]


def test_the_nearest_end_wins(line) -> None:
    found = line.planner(n=8).plan(line.at(0.0), 3)
    best = int(np.argmin(np.abs(np.array(ends(found)) - line.GOAL)))
    assert found.planned and found.chosen.index == best
    np.testing.assert_array_equal(found.chunk.values, found.candidates[best].chunk.values)
    for candidate, end in zip(found.candidates, ends(found), strict=True):
        assert candidate.values.shape == (2, 3)
        assert candidate.score == pytest.approx(max(0, 1 - abs(line.GOAL - end)))
        assert candidate.rejected == "" and len(candidate.futures) == 2


def test_one_call_of_each_model(line) -> None:
    policy, world, value = line.Steps(), line.Line(), line.Nearness()
    line.planner(policy, world, value, n=4, futures=2, values=3).plan(line.at(0), 1)
    assert (policy.batches, world.batches, value.batches) == ([4], [8], [24])


def test_batches_of_two_find_the_same(line) -> None:
    policy = line.Steps()
    whole = line.planner(n=5, world=line.Line(0.3)).plan(line.at(0), 1)
    cut = line.planner(policy, line.Line(0.3), n=5, batch=2).plan(line.at(0), 1)
    assert policy.batches == [2, 2, 1]
    assert [c.score for c in cut.candidates] == [c.score for c in whole.candidates]


def test_candidate_0_is_the_plain_policys(line) -> None:
    policy = line.Steps()
    found = line.planner(policy).plan(line.at(0), 11)
    assert found.candidates[0].seed == 11
    np.testing.assert_array_equal(found.candidates[0].chunk.values, policy.act([line.at(0)], [11])[0].values)


def test_seeds_are_distinct_and_grow_at_the_end() -> None:
    seeds = candidate_seeds(2**32 - 1, 64)
    assert len(set(seeds)) == 64 and seeds[0] == 2**32 - 1
    assert candidate_seeds(2**32 - 1, 8) == seeds[:8]
    assert not set(candidate_seeds(1, 8)) & set(candidate_seeds(2, 8))


def test_members_of_an_ensemble_differ(line) -> None:
    found = line.planner(world=line.Line(noise=0.2), n=3, futures=3).plan(line.at(0), 5)
    every = [f.latents for c in found.candidates for f in c.futures]
    assert len(set(every)) == 9


def test_the_same_seed_gives_the_same_plan(line) -> None:
    one, two = (line.planner(world=line.Line(0.2)).plan(line.at(0), 5) for _ in range(2))
    assert [c.score for c in one.candidates] == [c.score for c in two.candidates]
    assert one.chosen.index == two.chosen.index


def test_duplicates_are_scored_once(line) -> None:
    world = line.Line()
    found = line.planner(line.SameSteps(), world, n=8).plan(line.at(0), 3)
    original = [c for c in found.candidates if c.duplicate_of is None]
    assert len(original) == 2 and world.batches == [4]
    for c in found.candidates:
        if c.duplicate_of is not None:
            assert c.score == found.candidates[c.duplicate_of].score
    assert found.chosen.duplicate_of is None


def test_near_duplicates_within_a_tolerance(line) -> None:
    world = line.Line()
    line.planner(line.SameSteps(), world, n=8, duplicate_tolerance=0.2).plan(line.at(0), 3)
    assert world.batches == [2]


def test_duplicates_across_batches(line) -> None:
    world = line.Line()
    found = line.planner(line.SameSteps(), world, n=8, batch=1).plan(line.at(0), 3)
    assert world.batches == [2, 2]
    assert sum(c.duplicate_of is None for c in found.candidates) == 2


def test_a_candidate_without_a_value_never_wins(line) -> None:
    best = max(range(8), key=lambda i: line.Steps().step(candidate_seeds(3, 8)[i]))
    limit = 4 * line.Steps().step(candidate_seeds(3, 8)[best]) - 1e-9
    found = line.planner(value=line.Nearness(nan_above=limit), n=8).plan(line.at(0), 3)
    assert found.planned and found.chosen.index != best
    assert found.candidates[best].rejected == "no score: 6 of 6 values are no numbers"


def test_a_proposal_that_fails_costs_itself(line) -> None:
    seeds = candidate_seeds(3, 4)
    found = line.planner(line.Steps(bad_seeds=(seeds[2],))).plan(line.at(0), 3)
    assert [bool(c.rejected) for c in found.candidates] == [False, False, True, False]
    assert "is a bad one" in found.candidates[2].rejected and found.planned


def test_a_future_that_fails_costs_its_candidate(line) -> None:
    steps = [line.Steps().step(s) for s in candidate_seeds(3, 8)]
    found = line.planner(world=line.Line(limit=4 * max(steps) - 1e-9), n=8).plan(line.at(0), 3)
    lost = [c.index for c in found.candidates if c.rejected]
    assert lost == [int(np.argmax(steps))] and "too far" in found.candidates[lost[0]].rejected


def test_no_value_at_all_is_the_plain_policy_and_said_so(line) -> None:
    policy = line.Steps()
    found = line.planner(policy, value=line.Nearness(nan_above=-99)).plan(line.at(0), 3)
    assert not found.planned and found.chosen.index == 0
    assert "the plain policy's own" in found.why and "no numbers" in found.why
    np.testing.assert_array_equal(found.chunk.values, policy.act([line.at(0)], [3])[0].values)
    assert policy.batches == [4, 1]  # the second is this test's own


def test_a_plain_policy_that_fails_too_raises(line) -> None:
    with pytest.raises(InputError, match="is a bad one"):
        line.planner(line.Steps(bad_seeds=candidate_seeds(3, 4))).plan(line.at(0), 3)


def test_values_of_commands_read_no_future(line) -> None:
    world, value = line.Line(), line.Nearness("q_value")
    found = line.planner(world=world, value=value, reads="q_value").plan(line.at(0), 3)
    assert world.batches == [] and value.batches == [12]
    assert found.chosen.values.shape == (1, 3) and found.chosen.futures == ()


def test_depth_goes_on_from_the_predicted_state(line) -> None:
    policy, value = line.Steps(), line.Nearness()
    found = line.planner(policy, value=value, n=2, futures=1, values=1, depth=2).plan(line.at(0.5), 3)
    first = [0.5 + end for end in ends(found)]
    assert policy.batches == [2, 2]
    assert policy.seen == pytest.approx([0.5, 0.5, *first])  # not the old state again, a fault of the public code
    lasts = [c.futures[0].latents for c in found.candidates]
    assert all(abs(last - one) > 1e-6 for last, one in zip(lasts, first, strict=True))
    assert [c.score for c in found.candidates] == pytest.approx([max(0, 1 - abs(line.GOAL - e)) for e in lasts])
    assert found.chosen.chunk is found.candidates[found.chosen.index].chunk


def test_more_candidates_where_values_disagree(line) -> None:
    calm, torn = line.Steps(), line.Steps()
    line.planner(calm, n=2, n_most=8, disagree_above=10.0).plan(line.at(0), 3)
    found = line.planner(torn, n=2, n_most=5, disagree_above=0.0).plan(line.at(0), 3)
    assert calm.batches == [2] and torn.batches == [2, 2, 1]
    assert [c.seed for c in found.candidates] == list(candidate_seeds(3, 5))


def test_deadline_0_is_the_plain_policy(line) -> None:
    policy, world, clock = line.Steps(), line.Line(), line.Clock()
    found = line.planner(policy, world, clock=clock).plan(line.at(0), 3, deadline_s=0)
    assert not found.planned and "deadline" in found.why
    assert policy.batches == [1] and world.batches == []
    assert [c.rejected for c in found.candidates] == [found.candidates[0].rejected] * 4


def test_best_so_far_when_time_runs_out(line) -> None:
    clock = line.Clock()
    policy = line.Steps(clock, cost=1.0)
    found = line.planner(policy, clock=clock, n=8, batch=2).plan(line.at(0), 3, deadline_s=2.5)
    assert policy.batches == [2, 2]  # a third batch would take until 3.0
    assert [bool(c.rejected) for c in found.candidates] == [False] * 4 + [True] * 4
    assert found.planned and found.chosen.index < 4 and clock.now == 2.0


@pytest.mark.parametrize("slow", ["policy", "world"])
def test_a_batch_that_runs_out_of_time_midway_stops(line, slow: str) -> None:
    clock = line.Clock()
    policy = line.Steps(clock, cost=2.0 if slow == "policy" else 0.0)
    world, value = line.Line(clock=clock, cost=2.0), line.Nearness()
    found = line.planner(policy, world, value, clock=clock).plan(line.at(0), 3, deadline_s=1)
    assert not found.planned and value.batches == []
    assert world.batches == ([] if slow == "policy" else [8])
    assert policy.batches == [4]  # the plain policy's chunk was there already
    assert "out of time" in found.why and found.seconds == 2.0


def test_settings_set_the_deadline(line) -> None:
    clock = line.Clock()
    found = line.planner(line.Steps(clock, cost=1.0), clock=clock, deadline_s=0.5).plan(line.at(0), 3)
    assert not found.planned


def test_committed_rows_stay(line) -> None:
    rows = np.array([[0.9], [0.8]])
    found = line.planner().plan(line.at(0), 3, committed=rows)
    for c in found.candidates:
        np.testing.assert_array_equal(c.chunk.values[:2], rows)


def test_a_planner_is_a_policy(line) -> None:
    policy = PlanningPolicy(line.planner())
    (chunk,) = policy.act([line.at(0)], [3])
    facts = chunk.info["plan"]
    assert facts["planned"] and len(facts["candidates"]) == 4
    assert facts["candidates"][facts["chosen"]]["seed"] == facts["seed"]


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"n": 0}, "n must"),
        ({"futures": True}, "futures must"),
        ({"n": 4, "n_most": 2}, "n_most"),
        ({"reads": "q_value", "depth": 2}, "depth"),
        ({"aggregation": "lcb", "futures": 1, "values": 1}, "at least 2 values"),
        ({"ties": "published"}, "no value"),
        ({"deadline_s": -1.0}, "deadline_s"),
        ({"disagree_above": float("nan")}, "disagree_above"),
    ],
)
def test_settings_that_do_not_fit(wrong, what: str) -> None:
    with pytest.raises(InputError, match=what):
        PlannerSettings(**wrong)


def test_models_that_do_not_fit(line) -> None:
    with pytest.raises(ContractError, match="reads 'q_value'"):
        line.planner(value=line.Nearness("q_value"))
    with pytest.raises(ContractError, match="onward"):
        line.best_of_n(line.Steps(), line.Line(), line.Nearness(), PlannerSettings(depth=2))
    with pytest.raises(ContractError, match="world model"):
        line.best_of_n(line.Steps(), None, line.Nearness(), PlannerSettings())
    with pytest.raises(InputError, match="deadline_s"):
        line.planner().plan(line.at(0), 3, deadline_s=-1)


def test_plans_by_name() -> None:
    assert read_plan("best-of-8") == PlannerSettings(n=8)
    text = "best-of-3:futures=2,aggregation=median,deadline_s=0.5,n_most=6"
    assert read_plan(text) == PlannerSettings(n=3, futures=2, aggregation="median", deadline_s=0.5, n_most=6)
    for wrong in ("best-of-", "best-of-x", "8", "best-of-8:futures=many", "best-of-0"):
        with pytest.raises(InputError):
            read_plan(wrong)
    with pytest.raises(UnknownNameError, match="futures"):
        read_plan("best-of-8:future=2")
    with pytest.raises(UnknownNameError, match="median"):
        read_plan("best-of-8:aggregation=medain")


def test_several_decisions_share_their_calls(line) -> None:
    policy, world, value = line.Steps(), line.Line(), line.Nearness()
    planner = line.planner(policy, world, value, n=3, futures=2, values=2)
    found = planner.plan_all([line.at(0.0), line.at(0.5)], [3, 4])
    assert (policy.batches, world.batches, value.batches) == ([6], [12], [24])
    for start, seed, one in ((0.0, 3, found[0]), (0.5, 4, found[1])):
        alone = line.planner(n=3, futures=2, values=2).plan(line.at(start), seed)
        assert [c.score for c in one.candidates] == [c.score for c in alone.candidates]
        assert [c.seed for c in one.candidates] == [c.seed for c in alone.candidates]
    assert found[0].candidates[0].request != found[1].candidates[0].request
    assert planner.plan_all([], []) == []


def test_duplicates_are_looked_for_within_a_decision(line) -> None:
    """Two robots may well propose the same; each is judged from where it stands."""
    found = line.planner(line.SameSteps(), n=4).plan_all([line.at(0.0), line.at(0.5)], [3, 5])
    for one in found:
        assert all(c.duplicate_of is None or c.duplicate_of < c.index for c in one.candidates)
        assert one.candidates[0].duplicate_of is None
    assert found[0].candidates[0].score != found[1].candidates[0].score


def test_only_those_that_disagree_get_more(line) -> None:
    settings = {"n": 2, "n_most": 4, "disagree_above": 0.05, "futures": 1, "values": 1}
    policy = line.Steps()
    far = line.at(-9.0)  # everything is worth nothing there, so nothing disagrees
    found = line.planner(policy, **settings).plan_all([line.at(0.0), far], [3, 4])
    assert [len(f.candidates) for f in found] == [4, 2] and policy.batches == [4, 2]


def test_given_rows_of_some_and_not_of_others(line) -> None:
    tasks = [Task(0, line.at(0), (0,), (3,), committed=np.ones((1, 1))), Task(1, line.at(0), (0,), (3,))]
    given, free = line.evaluator().evaluate_all(tasks)
    assert given[0].chunk.values[0] == 1 and free[0].chunk.values[0] != 1


def test_members_of_several_models(line) -> None:
    """Future i is of world i, value j of value model j; those that are one model share a call."""
    worlds, values = [line.Line(), line.Line()], [line.Nearness(), line.Nearness(), line.Nearness()]
    planner = line.planner(world=[worlds[0], worlds[1], worlds[1]], value=values, n=2, futures=3, values=3)
    assert planner.plan(line.at(0), 3).planned
    assert [w.batches for w in worlds] == [[2], [4]] and [v.batches for v in values] == [[6], [6], [6]]


def test_steps_in_words() -> None:
    quick = read_plan("quick-of-4")
    assert (quick.n, quick.world_steps, quick.value_steps, quick.policy_steps) == (4, 2, 1, None)
    assert read_plan(quick.text) == quick and PlannerSettings(n=4).text == "best-of-4"
    published = read_plan("published-of-8:values=5")
    assert published.steps_of("world") == (1, 3, 5) and published.steps_of("value") == (1, 2, 3, 4, 5)
    assert quick.steps_of("value") == (1,) and PlannerSettings().steps_of("world") == (None,)
    with pytest.raises(InputError, match="member_steps='spread' needs"):
        PlannerSettings(member_steps="spread")
    with pytest.raises(UnknownNameError, match="spread"):
        PlannerSettings(member_steps="spraed", value_steps=2)
    with pytest.raises(InputError, match="value_steps must be a whole number"):
        read_plan("best-of-2:value_steps=0")
