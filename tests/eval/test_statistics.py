"""Intervals and tests against scipy and published values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from cosmos_robot.errors import InputError
from cosmos_robot.eval.statistics import bootstrap_episodes, clustered, compare_paired, mcnemar_exact, wilson


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


def test_windows_that_are_alike_still_leave_doubt() -> None:
    """All 10 windows of 3 episodes won: by windows Wilson would say 0.72 and more, by 3 episodes hardly anything."""
    share = clustered([True] * 10, [0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
    assert (share.successes, share.windows, share.episodes, share.rate, share.high) == (10, 10, 3, 1.0, 1.0)
    assert 0.35 < share.low < wilson(3, 3).low < wilson(10, 10).low


def test_episodes_of_one_kind_count_as_one_window_each() -> None:
    """Five episodes that are all won and five that are all lost are 10 draws, however many windows each has."""
    flags = [episode < 5 for episode in range(10) for _ in range(8)]
    whole = clustered(flags, [episode for episode in range(10) for _ in range(8)])
    single = clustered([episode < 5 for episode in range(10)], range(10))
    apart = clustered(flags, range(80))
    assert (whole.low, whole.high) == pytest.approx((single.low, single.high), abs=0.03)
    assert whole.low < 0.25 < apart.low and (apart.low, apart.high) == pytest.approx(
        (wilson(40, 80).low, wilson(40, 80).high), abs=0.002
    )


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=60))
def test_never_narrower_than_by_windows(told: list[tuple[bool, int]]) -> None:
    flags, episodes = [flag for flag, _ in told], [episode for _, episode in told]
    share, naive = clustered(flags, episodes), wilson(sum(flags), len(flags))
    assert share.low <= naive.low + 1e-12 and naive.high <= share.high + 1e-12
    assert 0 <= share.low <= share.rate <= share.high <= 1


def test_the_interval_holds_the_truth_where_windows_wilson_does_not() -> None:
    """8 episodes of 10 windows whose rates differ: of 400 drawn evaluations at least 92 % hold the true mean."""
    rng, held, naive = np.random.default_rng(0), 0, 0
    episodes = np.repeat(np.arange(8), 10)
    for _ in range(400):
        flags = rng.uniform(size=80) < rng.beta(1.4, 0.6, size=8)[episodes]
        share, plain = clustered(flags.tolist(), episodes.tolist()), wilson(int(flags.sum()), 80)
        held += share.low <= 0.7 <= share.high
        naive += plain.low <= 0.7 <= plain.high
    assert held >= 0.92 * 400 > naive


def test_one_episode_says_nothing() -> None:
    share = clustered([True] * 20, ["the same"] * 20)
    assert (share.rate, share.low, share.high) == (1, 0, 1)
    nothing = clustered([], [])
    assert math.isnan(nothing.rate) and (nothing.low, nothing.high) == (0, 1)
    with pytest.raises(InputError, match="2 windows but the episodes of 1"):
        clustered([True, False], [0])


def test_bootstrap_draws_whole_episodes() -> None:
    values, episodes = np.repeat([0.0, 1.0], 50), [0] * 50 + [1] * 50
    low, high = bootstrap_episodes(lambda chosen: float(values[chosen].mean()), episodes)
    assert (low, high) == (0, 1)
    assert all(math.isnan(x) for x in bootstrap_episodes(lambda chosen: 0.5, [7, 7]))
