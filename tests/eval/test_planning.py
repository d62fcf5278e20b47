"""Planning against plain policy: the log of searches, the paired report, and flags that do not fit."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from cosmos_robot.errors import InputError
from cosmos_robot.eval.entrants import Entrant
from cosmos_robot.eval.libero import EvalConfig, check_search
from cosmos_robot.eval.plan_pages import PlanGallery
from cosmos_robot.eval.planning import Decision, PlanLog, Timed, limits, paired_report
from cosmos_robot.eval.protocol import Job, derive_seed
from cosmos_robot.eval.results import EpisodeRecord, build_result, write_result
from cosmos_robot.planning import load_planner
from cosmos_robot.planning.policy import PlanningPolicy
from cosmos_robot.policies.conformance import some_observation


def record(task: int, init: int, success: bool, steps: int = 4) -> EpisodeRecord:
    return EpisodeRecord(
        suite="fake",
        task=task,
        init=init,
        instruction="touch",
        success=success,
        ended="success" if success else "budget",
        steps=steps,
        decisions=1,
        reset_seed=derive_seed(0, Job("fake", task, init), "reset"),
        noise_seeds=(1,),
        seconds=0.5,
    )


def result(path, fake, outcomes: dict[tuple[int, int], bool], plan: str | None = None):
    entrant = Entrant(fake.SeeingPolicy(), f"cosmos3 {plan}" if plan else "cosmos3", "tiny", "0" * 64, None, plan)
    header = entrant.header(fake.fake_protocol())
    records = [record(*key, success) for key, success in outcomes.items()]
    write_result(path, build_result(header, records, [], seconds=1.0, resumed=0))
    return path


def decision(value: float | None = 0.5, success: bool = True, **changes) -> Decision:
    plain = {"task": 0, "init": 0, "number": 0, "chosen": 1, "planned": value is not None, "value": value}
    rest = {
        "steps_left": 0,
        "base_value": 0.2,
        "spread": 0.1,
        "diversity": 0.3,
        "distinct": 3,
        "candidates": 4,
        "seconds": 2.0,
    }
    return Decision(**(plain | rest | {"success": success} | changes))


def test_searches_are_kept_with_their_outcomes(fake, tmp_path) -> None:
    policy = PlanningPolicy(load_planner("random", "best-of-3:futures=1,values=2", contract=fake.CONTRACT))
    log, job = PlanLog(tmp_path / "out.decisions.jsonl"), Job("fake", 1, 0)
    for success in (False, True):  # the worker died and the episode ran again: the last counts
        log.on_start(job)
        for seed in (5, 6):
            seen = some_observation(fake.CONTRACT, seed)
            log.on_decision(job, 0, seen, policy.act([seen], [seed])[0], seed)
        log.on_episode(job, record(1, 0, success))
    found = PlanLog(log.path).decisions()
    assert [(d.number, d.success, d.planned, d.candidates) for d in found] == [(0, True, True, 3), (1, True, True, 3)]
    assert all(d.value >= d.base_value and d.diversity > 0 and d.spread > 0 for d in found)
    assert PlanLog(log.path, fresh=True).decisions() == []


def test_values_are_held_against_discounted_returns(fake, tmp_path) -> None:
    """A search's values are of the end of the last chunk it imagined, and of a perfect one they are the returns."""
    policy = PlanningPolicy(load_planner("random", "best-of-2:futures=1,values=1", contract=fake.CONTRACT))
    log, job = PlanLog(tmp_path / "out.decisions.jsonl"), Job("fake", 1, 0)
    chunk = fake.CONTRACT.model.chunk
    log.on_start(job)
    for step in (0, 2, 90):
        seen = some_observation(fake.CONTRACT, step)
        log.on_decision(job, step, seen, policy.act([seen], [5])[0], 5)
    log.on_episode(job, record(1, 0, True, steps=92))
    assert [d.steps_left for d in log.decisions()] == [92 - chunk, 90 - chunk, max(0, 2 - chunk)]
    perfect = [
        decision(0.99**left if init else 0.0, bool(init), init=init, steps_left=left)
        for init in range(4)
        for left in range(0, 120, 5)
    ]
    found = limits(perfect)
    assert found["calibration"]["ece"] == pytest.approx(0) and found["calibration"]["auroc"] == 1
    assert found["calibration"]["episodes"] == 4 and found["values_without_steps_left"] == 0
    old = limits([decision(0.5, steps_left=None)])
    assert "calibration" not in old and old["values_without_steps_left"] == 1


def test_an_episode_that_starts_again_forgets_its_first_half(fake, tmp_path) -> None:
    policy = PlanningPolicy(load_planner("random", "best-of-2", contract=fake.CONTRACT))
    log, job, seen = PlanLog(tmp_path / "a.jsonl"), Job("fake", 0, 0), some_observation(fake.CONTRACT)
    for _ in range(2):
        log.on_start(job)
        log.on_decision(job, 0, seen, policy.act([seen], [1])[0], 1)
    log.on_episode(job, record(0, 0, True))
    assert len(log.decisions()) == 1


def test_paired_report(fake, tmp_path) -> None:
    episodes = [(task, init) for task in range(3) for init in range(2)]
    planned = result(tmp_path / "out.json", fake, {k: k != (2, 1) for k in episodes}, "best-of-8")
    plain = result(tmp_path / "out.plain.json", fake, {k: k[0] == 0 for k in episodes})
    decisions = [decision(0.9, True), decision(0.1, False, chosen=0), decision(None, True, planned=False, chosen=0)]
    cost = {"planning": {"decisions": 3, "seconds": 2.0}, "plain policy": {"decisions": 3, "seconds": 0.25}}
    screen = Console(file=io.StringIO(), width=200)
    content = paired_report(planned, plain, decisions, cost, screen)
    assert (content["total"]["both"], content["total"]["only_a"], content["total"]["only_b"]) == (2, 3, 0)
    low, high = content["bootstrap_ci95"]
    assert low <= content["total"]["difference"] == 0.5 <= high
    assert content["limits"]["planned"] == 2 and content["limits"]["chose_another"] == 1
    assert content["limits"]["calibration"]["auroc"] == 1.0
    saved = json.loads((tmp_path / "out.paired.json").read_text())
    assert saved["cost"]["planning"]["seconds"] == 2.0
    assert (tmp_path / "out.calibration.svg").read_text().startswith("<svg xmlns=")
    words = screen.file.getvalue()
    assert "McNemar" in words and "planning: 2.000 s a decision over 3" in words and "AUROC 1.000" in words


def test_limits_without_any_value() -> None:
    found = limits([decision(None, planned=False, base_value=None)])
    assert "calibration" not in found and found["mean_gain_in_value"] is None
    assert limits([])["decisions"] == 0


def test_one_decision_of_an_episode_is_drawn(fake, tmp_path) -> None:
    """Its candidates' futures with their values, the chosen one marked, and the picture that came next."""
    policy = PlanningPolicy(load_planner("random", "best-of-3:futures=2,values=2", contract=fake.CONTRACT))
    gallery = PlanGallery(fake.CONTRACT, execute=2)
    policy.on_plan = gallery.offer
    for init, decisions in ((0, 2), (1, 1), (2, 4)):  # decision 0, decision 1 which never comes, decision 2
        job = Job("fake", 0, init)
        gallery.on_start(job)
        for number in range(decisions):
            seen, seed = some_observation(fake.CONTRACT, number), 10 * init + number
            gallery.on_decision(job, number, seen, policy.act([seen], [seed])[0], seed)
        gallery.on_episode(job, record(0, init, success=init == 0))
    page = gallery.write(tmp_path / "out.decisions.html").read_text()
    assert "fake/0 init 0, decision 0" in page and "fake/0 init 2, decision 2" in page and "init 1" not in page
    assert page.count(">chosen<") == 2 and page.count("what happened, after 2 of") == 2 * 2  # alt and caption
    assert page.count("<img ") == 2 * (3 + 3)  # now, the chosen one's future, after; a future of each candidate
    assert page.count(">success<") == 1 and page.count(">failure<") == 1
    assert PlanGallery(fake.CONTRACT, 2).write(tmp_path / "none.html") is None and not (tmp_path / "none.html").exists()


def test_decisions_are_timed(fake) -> None:
    policy = Timed(fake.SeeingPolicy())
    assert policy.cost == {"decisions": 0, "seconds": None}
    policy.policy.act = lambda observations, seeds: ["chunk"] * len(seeds)
    policy.act([some_observation(fake.CONTRACT)] * 3, [1, 2, 3])
    assert policy.cost["decisions"] == 3 and policy.cost["seconds"] >= 0


@pytest.mark.parametrize(
    "flags",
    [
        {"paired": True},
        {"planning_ckpt": "x"},
        {"executor": "threads:2"},
        {"plan": "best-of-2", "blind": True},
        {"plan": "best-of-2", "policy": "zero"},
    ],
)
def test_flags_that_do_not_fit(flags) -> None:
    check_search(EvalConfig())
    with pytest.raises(InputError, match="--plan"):
        check_search(EvalConfig(**flags))


def test_names_of_files_are_plain(fake) -> None:
    entrant = Entrant(fake.SeeingPolicy(), "p", "tiny", None, None, "best-of-8:futures=1,values=2")
    assert entrant.label == "tiny.best-of-8-futures-1-values-2"
