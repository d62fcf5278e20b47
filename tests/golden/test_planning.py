"""Values of an ensemble and the choice among candidates, against the public code's recorded ones."""

from __future__ import annotations

import numpy as np
import pytest
from golden_files import numbers

from cosmos_robot.errors import CosmosRobotError
from cosmos_robot.planning.values import aggregate, choose, member_calls

SCHEMES = ("average", "lcb", "success_vote", "majority_mean")


def near(found, recorded) -> None:
    np.testing.assert_allclose(found, numbers(recorded), atol=1e-5, rtol=0, equal_nan=True)


@pytest.mark.golden("cosmos_policy/value_aggregation")
def test_values_to_one(case) -> None:
    for scheme in SCHEMES:
        near(aggregate(numbers(case["values"]), scheme, nan="propagate"), case[scheme])


def test_batched_values(golden) -> None:
    batched = golden.json("cosmos_policy/value_aggregation")["batched"]
    for scheme in SCHEMES:
        near(aggregate(numbers(batched["values"]), scheme, nan="propagate"), batched[scheme])


def test_an_unknown_scheme_is_an_error(golden) -> None:
    assert golden.json("cosmos_policy/value_aggregation")["unknown_scheme_raises"]
    with pytest.raises(CosmosRobotError, match="majority_mean"):
        aggregate([0.5], "majority_meen")


@pytest.mark.golden("cosmos_policy/postprocess", key="value_ensembles")
def test_value_ensembles(case) -> None:
    values = np.clip((numbers(case["raw_latent_means"]) + 1) / 2, 0, 1)
    near(aggregate(values, case["aggregation"], nan="propagate"), case["value"])
    one = member_calls(case["num_denoising_steps_value"], case["values_per_future"], case["base_seed"])
    assert [list(c) for c in one * case["future_samples"]] == case["calls"]


@pytest.mark.golden("cosmos_policy/network/planning", key="selection_rule")
def test_choice(case) -> None:
    chosen = choose(numbers(case["values"]), "published")
    assert chosen == case["selected_query"]
    near(numbers(case["values"])[chosen], case["value_prediction"])


@pytest.mark.golden("cosmos_policy/network/planning", key="runs")
def test_order_of_calls(case) -> None:
    """Seeds and steps of every call of a served search, candidate by candidate."""
    asked = case["settings"]
    futures = asked.get("num_future_state_predictions_in_ensemble", 1)
    values = asked.get("num_value_predictions_in_ensemble", 1)
    expected = []
    for i in range(asked["num_queries_best_of_n"]):
        seed = asked["seed"] + i
        for _ in range(asked.get("search_depth", 1)):
            expected.append((asked["num_denoising_steps_action"], seed))
            if asked.get("ar_future_prediction"):
                expected += member_calls(asked["num_denoising_steps_future_state"], futures, seed)
            if asked.get("ar_value_prediction"):
                expected += futures * member_calls(asked["num_denoising_steps_value"], values, seed)
    found = [(c["num_steps"], c["seed"]) for c in case["calls"]]
    assert found == expected
    if case["all_value_predictions"]:
        best = choose(numbers(case["all_value_predictions"]), "published")
        near(numbers(case["all_value_predictions"])[best], case["value_prediction"])
