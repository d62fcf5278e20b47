"""Intervals and tests against scipy and published values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from cosmos_robot.errors import InputError
from cosmos_robot.eval.statistics import compare_paired, mcnemar_exact, wilson


@pytest.mark.parametrize("successes, episodes", [(0, 10), (3, 10), (10, 10), (1, 1), (81, 263), (449, 500)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_wilson_is_scipys(successes: int, episodes: int, confidence: float) -> None:
    ours = wilson(successes, episodes, confidence)
    theirs = binomtest(successes, episodes).proportion_ci(confidence, method="wilson")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert ours.rate == successes / episodes


def test_wilson_without_episodes_knows_nothing() -> None:
    rate = wilson(0, 0)
    assert math.isnan(rate.rate)
    assert (rate.low, rate.high) == (0, 1)


@pytest.mark.parametrize("successes, episodes", [(-1, 3), (4, 3)])
def test_wilson_refuses_impossible_counts(successes: int, episodes: int) -> None:
    with pytest.raises(InputError, match="0 <= successes <= episodes"):
        wilson(successes, episodes)


@pytest.mark.parametrize("only_a, only_b", [(0, 0), (5, 5), (12, 2), (0, 7), (40, 21)])
def test_mcnemar_is_the_binomial_test(only_a: int, only_b: int) -> None:
    expected = binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    assert mcnemar_exact(only_a, only_b) == pytest.approx(expected)


def test_paired_interval_of_newcombe_1998() -> None:
    """Table of the paper: 36 both, 12 and 2 discordant, 0 neither; method 10 gives 0.0569 to 0.3404."""
    found = compare_paired(36, 12, 2, 0)
    assert found.difference == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.0569, 0.3404), abs=5e-5)


counts = st.integers(0, 60)


@given(counts, counts, counts, counts)
def test_paired_interval_holds_the_difference_and_is_symmetric(a: int, b: int, c: int, d: int) -> None:
    if a + b + c + d == 0:
        return
    one, other = compare_paired(a, b, c, d), compare_paired(a, c, b, d)
    assert -1 - 1e-12 <= one.low <= one.difference <= one.high <= 1 + 1e-12
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    assert one.p_value == other.p_value


def test_paired_comparison_needs_pairs() -> None:
    with pytest.raises(InputError, match="at least one pair"):
        compare_paired(0, 0, 0, 0)
