"""The search over one tiny Cosmos Policy checkpoint: shared weights, the kit, and the orders of calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cosmos_robot.backbone.predict2.load import save_checkpoint
from cosmos_robot.backbone.predict2.text import TextEmbeddings
from cosmos_robot.backbone.predict2.tiny import tiny_texts, tiny_transformer, tiny_vae
from cosmos_robot.bench.commands import _searches
from cosmos_robot.bench.plan import plan_checkpoint, plan_contract, plan_report
from cosmos_robot.errors import CheckpointError, ContractError, InputError, UnknownNameError
from cosmos_robot.planning import conformance, load_planner
from cosmos_robot.planning.plan import PlannerSettings
from cosmos_robot.policies.conformance import INSTRUCTIONS, some_observation


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_checkpoint(
        tmp_path_factory.mktemp("checkpoints") / "frames",
        transformer=tiny_transformer(0, num_attention_heads=2, text_embed_dim=8),
        vae=tiny_vae(0, 4),
        texts=TextEmbeddings(tiny_texts(list(INSTRUCTIONS), 8), 6),
        contract=plan_contract(32, steps=2),
        dtype=torch.float32,
    )


def test_one_copy_of_the_weights(folder) -> None:
    planner = load_planner(folder, "best-of-2")
    parts = planner.executor.evaluator
    assert parts.policy.model is parts.worlds[0].model is parts.values[0].model
    judged = load_planner(folder, "best-of-2", folder).executor.evaluator
    assert judged.worlds[0].model is judged.values[0].model is not judged.policy.model


@pytest.mark.parametrize("plan", ["best-of-2:futures=1,values=2,reads=value_of_future", "best-of-2:reads=q_value"])
def test_the_kit(folder, plan: str) -> None:
    assert "best_is_chosen" in conformance.run(lambda: load_planner(folder, plan))


def test_values_and_futures_of_a_real_model(folder) -> None:
    found = load_planner(folder, "best-of-2:futures=2,values=3").plan(some_observation(plan_contract(32)), 1)
    assert found.planned
    for c in found.candidates:
        assert ((c.values >= 0) & (c.values <= 1)).all() and len(np.unique(c.values)) > 1
        assert c.futures[0].frames.shape == (2, 32, 64, 3)


def test_three_orders_of_calls_score_alike() -> None:
    checkpoint = plan_checkpoint(plan_contract(32, steps=2))
    searches = _searches(checkpoint, PlannerSettings(n=2, futures=2, values=2, aggregation="average"))
    figures = plan_report(searches, checkpoint, (2, 2, 2), repeats=1)
    assert figures["max_abs_diff"] < 1e-4 and figures["samples"] == 14
    assert figures["ratio"] > 0 and figures["published_order"]["ratio"] > 0


def test_a_policy_judges_its_own_commands(folder) -> None:
    """The value that comes with a chunk is its score, and the world model and the value model are never run."""
    seen = some_observation(plan_contract(32))
    found = load_planner(folder, "own-of-3").plan(seen, 1)
    assert found.planned and [c.futures for c in found.candidates] == [()] * 3
    for c in found.candidates:
        assert c.score == pytest.approx(c.chunk.info["value"], abs=1e-12) and c.values.shape == (1, 1)
    assert found.chunk is max(found.candidates, key=lambda c: c.score).chunk
    with pytest.raises(InputError, match="own-of-N"):
        PlannerSettings(judge="policy")
    with pytest.raises(InputError, match="no other checkpoint judges"):
        load_planner(folder, "own-of-2", folder)
    with pytest.raises(ContractError, match="samples no value"):
        load_planner("tiny-libero", "own-of-2")


def test_a_checkpoint_without_values_is_refused() -> None:
    with pytest.raises((ContractError, UnknownNameError, CheckpointError)):
        load_planner("tiny-libero", "best-of-2")
