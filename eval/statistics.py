"""Intervals and tests for success rates. Pure functions over counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from cosmos_robot.errors import InputError


@dataclass(frozen=True)
class Rate:
    """A success rate with its interval; all three are fractions in 0..1."""

    successes: int
    episodes: int
    rate: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedComparison:
    """Two policies on the same episodes.

    both, only_a, only_b, neither: episodes by who succeeded. difference: rate of a minus rate of b, with its interval.
    p_value: exact two-sided McNemar test of "no difference".
    """

    both: int
    only_a: int
    only_b: int
    neither: int
    difference: float
    low: float
    high: float
    p_value: float

    @property
    def episodes(self) -> int:
        return self.both + self.only_a + self.only_b + self.neither


def wilson(successes: int, episodes: int, confidence: float = 0.95) -> Rate:
    """Wilson score interval (Wilson 1927), without continuity correction.

    With no episodes the rate is NaN and the interval (0, 1). Raises InputError on impossible counts.
    """
    if not 0 <= successes <= episodes:
        raise InputError(f"wilson: expected 0 <= successes <= episodes, got {successes} of {episodes}")
    if episodes == 0:
        return Rate(0, 0, math.nan, 0.0, 1.0)
    z = _z(confidence)
    p = successes / episodes
    centre = (p + z * z / (2 * episodes)) / (1 + z * z / episodes)
    half = z * math.sqrt(p * (1 - p) / episodes + (z / (2 * episodes)) ** 2) / (1 + z * z / episodes)
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == episodes else centre + half
    return Rate(successes, episodes, p, low, high)


def mcnemar_exact(only_a: int, only_b: int) -> float:
    """Exact two-sided McNemar p-value: a fair coin for the episodes on which only one of the two succeeded."""
    if only_a < 0 or only_b < 0:
        raise InputError(f"mcnemar: expected counts >= 0, got {only_a} and {only_b}")
    n = only_a + only_b
    tail = sum(math.comb(n, k) for k in range(min(only_a, only_b) + 1))
    return min(1.0, 2 * tail / 2**n)


def compare_paired(both: int, only_a: int, only_b: int, neither: int, confidence: float = 0.95) -> PairedComparison:
    """Difference of two paired rates with Newcombe's hybrid score interval and McNemar's exact test.

    Newcombe, "Improved confidence intervals for the difference between binomial proportions based on paired data",
    Statistics in Medicine 17 (1998), method 10. Raises InputError without any pair.
    """
    n = both + only_a + only_b + neither
    if min(both, only_a, only_b, neither) < 0 or n == 0:
        raise InputError(f"compare: expected counts >= 0 and at least one pair, got {(both, only_a, only_b, neither)}")
    a, b = wilson(both + only_a, n, confidence), wilson(both + only_b, n, confidence)
    phi = _phi(both, only_a, only_b, neither)
    difference = (only_a - only_b) / n
    down, up = a.rate - a.low, b.high - b.rate
    low = difference - math.sqrt(max(0.0, down**2 - 2 * phi * down * up + up**2))
    up, down = a.high - a.rate, b.rate - b.low
    high = difference + math.sqrt(max(0.0, up**2 - 2 * phi * up * down + down**2))
    return PairedComparison(both, only_a, only_b, neither, difference, low, high, mcnemar_exact(only_a, only_b))


def bootstrap_mean(values: Sequence[float], *, seed: int = 0, draws: int = 10_000) -> tuple[float, float, float]:
    """The mean of ``values`` and its 95 % interval, by percentiles of the bootstrap. Raises InputError without any."""
    if not len(values):
        raise InputError("bootstrap: expected at least one value, got none")
    drawn = np.random.default_rng(seed).choice(np.asarray(values, np.float64), (draws, len(values))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.mean(values)), float(low), float(high)


def bootstrap_difference(
    pairs: Sequence[tuple[bool, bool]], groups: Sequence[int], *, seed: int = 0, draws: int = 10_000
) -> tuple[float, float]:
    """95 % interval of the rate of a minus the rate of b over ``pairs`` (a, b), by percentiles of the bootstrap.

    groups: the task of each pair; pairs are drawn anew within their task, as the tasks are fixed and the init states
    are a sample (Efron and Tibshirani 1993, stratified). Raises InputError without any pair.
    """
    if not pairs or len(groups) != len(pairs):
        raise InputError(f"bootstrap: expected a group for each of at least one pair, got {len(groups)}, {len(pairs)}")
    rng = np.random.default_rng(seed)
    difference = np.array([int(a) - int(b) for a, b in pairs])
    total = np.zeros(draws)
    for group in sorted(set(groups)):
        own = difference[np.asarray(groups) == group]
        total += rng.choice(own, (draws, len(own))).sum(axis=1)
    low, high = np.quantile(total / len(pairs), [0.025, 0.975])
    return float(low), float(high)


def _phi(a: int, b: int, c: int, d: int) -> float:
    """Correlation of the pairs, its numerator drawn towards 0 by half the sample when positive (as in method 10)."""
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    if margins == 0:
        return 0.0
    product = a * d - b * c
    if product > 0:
        product = max(product - (a + b + c + d) / 2, 0.0)
    return product / math.sqrt(margins)


def student_mean(values: Sequence[float]) -> tuple[float, float, float] | None:
    """Mean and its 95 % interval by Student's t over seeds; no width with one value, None with none."""
    if not values:
        return None
    mean = float(np.mean(values))
    if len(values) == 1:
        return mean, mean, mean
    half = float(stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return mean, mean - half, mean + half


def _z(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise InputError(f"confidence: expected a number between 0 and 1, got {confidence}")
    return float(ndtri(0.5 + confidence / 2))
