"""The recorded evaluation loops of Cosmos Policy, run by ours: budgets, settling, and which rows of a chunk are run."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.envs.base import execute
from cosmos_robot.envs.fakes import FakeEnv
from cosmos_robot.envs.libero import STEP_BUDGETS
from cosmos_robot.envs.robocasa import STEP_BUDGETS as ROBOCASA_BUDGETS

SETTLE = 10


class Timed(FakeEnv):
    """Succeeds after a given number of control steps, or never."""

    def __init__(self, succeeds: int | None, budget: int):
        super().__init__(2, settle_steps=SETTLE, step_budget=budget)
        self.succeeds = succeeds

    def _step(self, action):
        _, _, truncated = super()._step(action)
        done = self.control_steps + 1 == self.succeeds
        return float(done), done, truncated


def run(case: dict, budget: int) -> tuple[list[int], int]:
    """Ids of the rows that were run, 100 to a query, and the number of queries."""
    at = case["success_at_env_step"]
    env, ids, queries, over = Timed(None if at is None else at - SETTLE, budget), [], 0, False
    env.reset(seed=0)
    while not over:
        found = execute(env, np.zeros((case["chunk_size"], 3))[: case["num_open_loop_steps"]])
        ids += [100 * queries + row for row in range(found.steps)]
        queries, over = queries + 1, found.terminated or found.truncated
    assert found.success == case["success"]
    assert len(ids) + SETTLE == case["env_steps"]
    return ids, queries


def check(case: dict, budget: int, keeps_last: bool) -> None:
    if case["num_queries_best_of_n"] > 1:
        pytest.skip("choosing among candidates is the planner's; the loop is the same")
    ids, queries = run(case, budget)
    assert queries == case["num_queries"]
    skipped = case["chunk_size"] - case["num_open_loop_steps"] if keeps_last else 0
    assert [i + skipped for i in ids[:40]] == case["executed_ids_first40"]


@pytest.mark.golden("cosmos_policy/evaluation", key="loops")
def test_libero_loops(case) -> None:
    """Where fewer rows are run than a chunk has, the public loop runs its last ones, and ours the first."""
    check(case, STEP_BUDGETS[case["suite"]], keeps_last=True)


def test_libero_budgets(golden) -> None:
    assert golden.json("cosmos_policy/evaluation")["task_max_steps"] == STEP_BUDGETS


def test_robocasa_budgets(golden) -> None:
    stored = golden.json("cosmos_policy/evaluation").get("robocasa", {}).get("task_max_steps", {})
    assert stored.items() <= ROBOCASA_BUDGETS.items()


def test_robocasa_loops(golden) -> None:
    stored = golden.json("cosmos_policy/evaluation").get("robocasa", {"loops": []})
    for case in stored["loops"]:
        if case["num_queries_best_of_n"] == 1:
            check(case, stored["task_max_steps"][case["suite"]], keeps_last=False)
