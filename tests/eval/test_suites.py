"""What an evaluation takes for granted about a suite, and a suite whose tasks can be half done."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosmos_robot.contract import Contract, load_contract
from cosmos_robot.envs.base import execute
from cosmos_robot.envs.pusht import PUSHT, PushTEnv
from cosmos_robot.errors import InputError
from cosmos_robot.eval.libero import EvalConfig, make_protocol, step_budget
from cosmos_robot.eval.results import EpisodeRecord, RunHeader, scores
from cosmos_robot.eval.runner import RunSettings
from cosmos_robot.eval.session import evaluate
from cosmos_robot.policies import load_policy

STEPS = 24


@pytest.fixture(scope="module")
def contract() -> Contract:
    model = load_contract("tiny-libero").model
    plain = model.state_normalization.model_copy(update={"method": "identity", "statistics": None})
    canvas = model.canvas.model_copy(update={"placements": ()})
    changes = {"canvas": canvas, "state_normalization": plain, "action_normalization": plain}
    return Contract(robot=PUSHT, model=model.model_copy(update=changes))


def test_each_suite_has_its_own_rules(contract: Contract) -> None:
    pusht = make_protocol(EvalConfig(suite="pusht"), (0,), step_budget(EvalConfig(suite="pusht")), contract)
    assert (pusht.settle_steps, pusht.max_steps, pusht.prompt_source) == (0, 300, None)
    assert pusht.env_options == {"settle_steps": 0, "step_budget": 300} and pusht.versions.packages["pymunk"]
    libero = make_protocol(EvalConfig(), (0,), step_budget(EvalConfig()), contract)
    assert (libero.settle_steps, libero.prompt_source) == (10, "scene") and "pymunk" not in libero.versions.packages
    with pytest.raises(InputError, match="pusht has one wording only"):
        make_protocol(EvalConfig(suite="pusht", prompt_source="name"), (0,), 300, contract)
    with pytest.raises(InputError, match=r"no step budget is published for 'droid'"):
        step_budget(EvalConfig(suite="droid"))


def test_pusht_is_scored_by_what_it_covers(contract: Contract, tmp_path: Path) -> None:
    config = EvalConfig(suite="pusht", episodes=3, max_steps=STEPS)
    policy = load_policy("random", contract=contract)
    header = RunHeader(
        policy="random", checkpoint=None, checkpoint_sha256=None, contract="x", control="random",
        protocol=make_protocol(config, (0,), STEPS, contract),
    )  # fmt: skip
    content = evaluate(policy, header, tmp_path / "result.json", RunSettings(workers=1))
    env = PushTEnv(step_budget=STEPS)
    for record in content["records"]:
        env.reset(options={"init_state": record["init"]})
        reached = []
        for seed in record["noise_seeds"]:
            rows = policy.act([env.observe()], [seed])[0].values[: contract.model.execute]
            reached.append(execute(env, rows).score)
        assert record["score"] == pytest.approx(reached[-1], abs=1e-4)
        assert record["best_score"] == pytest.approx(max(reached), abs=1e-4)
    low, high = content["best_score_ci95"]
    assert low <= content["best_score"] <= high < 1 and content["score"] <= content["best_score"]


def test_tasks_without_parts_have_no_scores_beside_their_rate() -> None:
    record = EpisodeRecord(
        suite="fake", task=0, init=0, instruction="", success=True, ended="success", steps=1, decisions=1, reset_seed=0,
        noise_seeds=(0,), seconds=0.0, score=1.0, best_score=1.0,
    )  # fmt: skip
    assert scores([record]) == {} and scores([]) == {}
    half = record.model_copy(update={"score": 0.25, "best_score": 0.5})
    assert scores([record, half])["best_score"] == 0.75
    assert scores([half, record.model_copy(update={"score": None, "best_score": None})]) == {}
