"""Workers that are late, fail or die: PC-72 and its kin."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

from cosmos_robot.errors import InputError, UnknownNameError
from cosmos_robot.planning import executors
from cosmos_robot.planning.best_of_n import Planner
from cosmos_robot.planning.executors import InProcess, Spread, ThreadWorker
from cosmos_robot.planning.plan import PlannerSettings, Task, candidate_seeds

SHORT_S = 0.2


def spread_planner(line, workers, patience_s: float = 60.0, **settings) -> Planner:
    chosen = PlannerSettings(**{"n": 8, "futures": 2, "values": 3, **settings})
    return Planner(line.Steps(), Spread(workers, patience_s=patience_s), chosen)


def in_process(line, n: int = 8, seed: int = 3):
    return line.planner(n=n).plan(line.at(0), seed)


def true_labels(found, seed: int = 3) -> bool:
    """Whether every candidate stands under its own seed, with the chunk that this seed makes."""
    seeds = candidate_seeds(seed, len(found.candidates))
    right = [c.seed == s and c.index == i for i, (c, s) in enumerate(zip(found.candidates, seeds, strict=True))]
    made = [c for c in found.candidates if c.chunk is not None]
    steps = [np.random.default_rng(c.seed).uniform(-0.5, 0.5) for c in made]
    return all(right) and [c.chunk.values[0, 0] for c in made] == steps


def test_workers_find_what_one_process_finds(line) -> None:
    workers = [line.Good(f"w{i}") for i in range(3)]
    found, alone = spread_planner(line, workers).plan(line.at(0), 3), in_process(line)
    assert [c.score for c in found.candidates] == [c.score for c in alone.candidates]
    assert found.chosen.index == alone.chosen.index and true_labels(found)
    assert sorted(s for w in workers for s in w.seeds) == sorted(candidate_seeds(3, 8))


def test_pc_72_a_worker_that_sleeps_costs_its_candidates_only(line) -> None:
    """N = 8, worker 0 sleeps: the others do the rest, under their true seeds."""
    found = spread_planner(line, [line.Asleep(), line.Good("w1")]).plan(line.at(0), 3, deadline_s=SHORT_S)
    late = [c for c in found.candidates if c.rejected]
    assert [c.index for c in late] == [0] and "sleeper is late" in late[0].rejected
    assert found.planned and true_labels(found)
    scores = [c.score for c in in_process(line).candidates]
    assert found.chosen.index == int(np.argmax(scores[1:])) + 1


def test_pc_72_a_late_base_is_not_confused_with_another(line) -> None:
    """The candidate called the plain policy's own is its own or none; the public code takes whichever came first."""
    found = spread_planner(line, [line.Asleep(), line.Good("w1")]).plan(line.at(0), 3, deadline_s=SHORT_S)
    assert found.candidates[0].chunk is None and found.candidates[0].seed == 3


def test_pc_72_all_sleep_is_the_plain_policy(line) -> None:
    planner = spread_planner(line, [line.Asleep("a"), line.Asleep("b")])
    found = planner.plan(line.at(0), 3, deadline_s=SHORT_S)
    assert not found.planned and "the plain policy's own" in found.why
    np.testing.assert_array_equal(found.chunk.values, line.Steps().act([line.at(0)], [3])[0].values)


def test_pc_72_late_results_of_an_older_request_are_dropped(line) -> None:
    sleeper = line.Asleep()
    planner = spread_planner(line, [sleeper, line.Good("w1")], n=4)
    first = planner.plan(line.at(0), 3, deadline_s=SHORT_S)
    sleeper.wake()  # its answer to the first request lies there when the second is asked
    sleeper.submit = line.Good("awake").submit
    second = planner.plan(line.at(0.5), 9, deadline_s=60)
    assert first.candidates[0].rejected and not second.candidates[0].rejected
    assert true_labels(second, 9)
    alone = line.planner(n=4).plan(line.at(0.5), 9)
    assert [c.score for c in second.candidates] == [c.score for c in alone.candidates]


def test_pc_72_a_sleeper_is_given_nothing_until_it_is_done(line) -> None:
    sleeper = line.Asleep()
    planner = spread_planner(line, [sleeper, line.Good("w1")], n=4)
    planner.plan(line.at(0), 3, deadline_s=SHORT_S)
    second = planner.plan(line.at(0), 9)
    assert len(sleeper.asked) == 1 and not any(c.rejected for c in second.candidates)


@pytest.mark.parametrize("at_once", [True, False])
def test_pc_72_a_worker_that_dies(line, at_once: bool) -> None:
    dying = line.Dying(at_once=at_once)
    planner = spread_planner(line, [dying, line.Good("w1")])
    found = planner.plan(line.at(0), 3)
    assert dying.asked == 1  # the rest of the task goes to others
    assert [c.index for c in found.candidates if c.rejected] == [0] and true_labels(found)
    assert "mortal is lost" in found.candidates[0].rejected
    planner.plan(line.at(0), 4)
    assert dying.asked == 2  # and with the next task it is tried again


def test_pc_72_a_worker_that_raises(line) -> None:
    found = spread_planner(line, [line.Raising(), line.Good("w1")], n=4).plan(line.at(0), 3)
    lost = [c for c in found.candidates if c.rejected]
    assert lost and all("faulty failed: KeyError" in c.rejected for c in lost)
    assert found.planned and true_labels(found)


@pytest.mark.parametrize("kind", ["Dying", "Raising"])
def test_pc_72_all_fail(line, kind: str) -> None:
    found = spread_planner(line, [getattr(line, kind)("a"), getattr(line, kind)("b")]).plan(line.at(0), 3)
    assert not found.planned and len(found.candidates) == 8 and all(c.rejected for c in found.candidates)
    np.testing.assert_array_equal(found.chunk.values, line.Steps().act([line.at(0)], [3])[0].values)


def test_pc_72_deadline_0_asks_nobody(line) -> None:
    worker = line.Good("w1")
    found = spread_planner(line, [worker]).plan(line.at(0), 3, deadline_s=0)
    assert not found.planned and worker.seeds == []


def test_pc_72_an_answer_to_something_else_is_no_answer(line) -> None:
    class Confused(line.Good):
        def submit(self, task):
            other = Task(task.request + 1, task.observation, task.indices, task.seeds)
            return super().submit(other)

    found = spread_planner(line, [Confused("w1")], n=2).plan(line.at(0), 3)
    assert not found.planned and "answered something else" in found.why


def test_a_run_without_deadline_is_bounded_by_patience(line) -> None:
    found = spread_planner(line, [line.Asleep()], patience_s=SHORT_S).plan(line.at(0), 3)
    assert not found.planned


def test_fewer_workers_than_candidates_repeat_no_seed(line) -> None:
    """The public code's seeds are its workers' numbers, so that two workers propose two chunks only."""
    found = spread_planner(line, [line.Good("a"), line.Good("b")]).plan(line.at(0), 3)
    assert len({c.chunk.values.tobytes() for c in found.candidates}) == 8


def test_threads(line) -> None:
    workers = [ThreadWorker(line.evaluator(), f"t{i}") for i in range(2)]
    planner = spread_planner(line, workers)
    try:
        found = planner.plan(line.at(0), 3)
    finally:
        planner.close()
    assert [c.score for c in found.candidates] == [c.score for c in in_process(line).candidates]


def test_pc_72_a_thread_that_sleeps_and_one_that_raises(line) -> None:
    """Real threads: one is held up in its model, one's model breaks, one works."""
    held, slow, broken = threading.Event(), line.evaluator(), line.evaluator()
    act = slow.policy.act
    slow.policy.act = lambda *given: (held.wait(60), act(*given))[1]
    broken.evaluate = lambda task: 1 / 0
    workers = [ThreadWorker(e, n) for e, n in ((slow, "slow"), (broken, "broken"), (line.evaluator(), "good"))]
    planner = spread_planner(line, workers, n=6)
    try:
        found = planner.plan(line.at(0), 3, deadline_s=3)
    finally:
        held.set()
        planner.close()
    reasons = [c.rejected for c in found.candidates if c.rejected]
    assert "slow is late" in reasons and any("ZeroDivisionError" in r for r in reasons)
    assert found.planned and true_labels(found)


def test_a_real_worker_is_told_how_long_it_has(line) -> None:
    """Its own clock stops it between its stages, so that it is free for the next task."""
    clock = line.Clock()
    slow = line.evaluator()
    slow.policy, slow.clock = line.Steps(clock, cost=5.0), clock
    (found,) = slow.evaluate(Task(0, line.at(0), (0,), (3,), seconds_left=1.0))
    assert found.rejected == "proposed, not scored: out of time" and slow.worlds[0].batches == []


def test_tasks_travel(line) -> None:
    (known,) = line.evaluator().evaluate(Task(1, line.at(0.5), (0,), (3,)))
    task = Task(1, line.at(0.5), (1, 2), (4, 5), 2.0, (known,), np.ones((1, 1)))
    there = executors._unpacked(pickle.loads(pickle.dumps(executors._packed(task))))
    assert there.observation.state["position"] == 0.5 and there.seeds == (4, 5)
    assert there.known[0].score == known.score and there.known[0].futures == ()
    found = pickle.loads(pickle.dumps([known.__class__(1, 1, 4)]))
    assert found[0].seed == 4


def test_refusals(line) -> None:
    with pytest.raises(InputError, match="workers"):
        Spread([])
    with pytest.raises(InputError, match="distinct seeds"):
        Task(0, line.at(0), (0, 1), (3, 3))
    with InProcess(line.evaluator()) as executor:
        assert len(executor.run(Task(0, line.at(0), (0,), (3,)), None, line.Clock())) == 1


def test_planning_needs_no_ray() -> None:
    code = "import sys; import cosmos_robot.planning.executors; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_executors_by_name(line) -> None:
    whole = line.evaluator()
    assert isinstance(executors.made("in-process", whole, line.evaluator), InProcess)
    with executors.made("threads:3", whole, line.evaluator) as spread:
        assert [w.name for w in spread.workers] == ["thread 0", "thread 1", "thread 2"]
        found = Planner(line.Steps(), spread, whole.settings).plan(line.at(0), 3)
    assert [c.score for c in found.candidates] == [c.score for c in line.planner().plan(line.at(0), 3).candidates]
    with pytest.raises(UnknownNameError, match="threads"):
        executors.made("thread", whole, line.evaluator)
    for wrong in ("threads:0", "ray:x", "in-process:2"):
        with pytest.raises(InputError, match="COUNT"):
            executors.made(wrong, whole, line.evaluator)
