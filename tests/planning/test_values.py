"""Aggregations and choices beyond the recorded cases."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.errors import InputError, UnknownNameError
from cosmos_robot.planning.values import AGGREGATIONS, aggregate, choose, disagreement, member_calls

BIMODAL = [0.9, 0.8, 0.0, 0.02, 0.04]


def test_a_failing_majority_as_the_paper_and_as_the_code_have_it() -> None:
    assert aggregate(BIMODAL, "majority_mean") == 0
    assert aggregate(BIMODAL, "majority_mean_paper") == pytest.approx(0.02)
    assert aggregate([0.9, 0.8, 0.0], "majority_mean_paper") == pytest.approx(0.85)


def test_median() -> None:
    assert aggregate(BIMODAL, "median") == pytest.approx(0.04)


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_what_is_no_number_is_left_out_or_not(how: str) -> None:
    clean, spoilt = [0.2, 0.9, 0.4], [0.2, np.nan, 0.9, np.inf, 0.4]
    assert aggregate(spoilt, how) == pytest.approx(aggregate(clean, how))
    assert np.isnan(aggregate([np.nan, np.inf], how))
    assert aggregate(clean, how, nan="propagate") == pytest.approx(aggregate(clean, how))


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_members_are_the_first_axis(how: str) -> None:
    values = np.random.default_rng(0).uniform(0, 0.2, (5, 2, 3))
    together = aggregate(values, how)
    assert together.shape == (2, 3)
    assert together[1, 2] == pytest.approx(aggregate(values[:, 1, 2], how))


def test_a_threshold_of_ones_own() -> None:
    assert aggregate([0.4, 0.6], "success_vote", threshold=0.5) == 0.5


def test_refusals() -> None:
    with pytest.raises(InputError, match="at least one value"):
        aggregate([], "average")
    with pytest.raises(UnknownNameError, match="median"):
        aggregate([1.0], "medain")
    with pytest.raises(UnknownNameError, match="first"):
        choose([1.0], "frist")
    with pytest.raises(InputError, match="at least 1 step"):
        member_calls(0, 3, 1)


@pytest.mark.parametrize(
    ("scores", "rule", "best"),
    [
        ([0.4, 0.7, 0.7], "first", 1),
        ([0.7, 0.2, 0.7], "base", 0),
        ([0.4, 0.7, 0.7], "base", 1),
        ([np.nan, 0.1, 0.7], "first", 2),
        ([np.nan, 0.1, 0.1], "base", 1),
        ([0.1, np.nan, np.inf], "base", 0),
        ([np.nan, 0.1, 0.7], "published", 0),
        ([np.nan, np.nan], "first", None),
        ([], "base", None),
        ([0.0, 0.0], "first", 0),
    ],
)
def test_choices(scores, rule: str, best: int | None) -> None:
    assert choose(scores, rule) == best


def test_published_calls() -> None:
    assert member_calls(5, 3, 7) == [(1, 7), (3, 8), (5, 9)]
    assert member_calls(5, 1, 7) == [(5, 7)]


def test_disagreement() -> None:
    assert disagreement([[0.5, 0.5], [np.nan], []]) == 0
    assert disagreement([[0.0], [1.0]]) == 0.5
    assert disagreement([]) == 0
