"""Intervals and tests for success rates. Pure functions over counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
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
class Share:
    """A share of windows, several of an episode, with its interval; all three are fractions in 0..1."""

    successes: int
    windows: int
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
    p = successes / episodes
    return Rate(successes, episodes, p, *_score_interval(p, episodes, _z(confidence)))


def clustered(flags: Sequence[bool], episodes: Sequence[Hashable], confidence: float = 0.95) -> Share:
    """The share of windows with a flag, where windows of one episode are alike.

    episodes: which one each window is of. Wilson's interval over the effective number of windows of Korn and Graubard,
    "Confidence intervals for proportions with small expected number of positive counts estimated from survey data",
    Survey Methodology 24 (1998): their number over the design effect of drawing whole episodes, times the squared ratio
    of Student's quantiles, as so few episodes do not tell the design effect. A design effect below 1, or one of windows
    that are all alike, counts as 1, so it is never narrower than Wilson's over windows. One episode says nothing: 0 to
    1; without windows the rate is NaN, too. Raises InputError where the lengths differ.
    """
    if len(flags) != len(episodes):
        raise InputError(f"clustered: got {len(flags)} windows but the episodes of {len(episodes)}; pass one for each")
    won, names = np.asarray(flags, dtype=bool), list(dict.fromkeys(episodes))
    n, count = len(won), len(names)
    p = float(won.mean()) if n else math.nan
    if count < 2:
        return Share(int(won.sum()), n, count, p, 0.0, 1.0)
    place = {name: i for i, name in enumerate(names)}
    apart = np.bincount([place[name] for name in episodes], won - p)
    variance = count / (count - 1) * float((apart**2).sum()) / n**2
    design = max(1.0, n * variance / (p * (1 - p))) if 0 < p < 1 else 1.0
    tail = 0.5 + confidence / 2
    z = _z(confidence)
    effective = n / design * float(stdtrit(n - 1, tail) / stdtrit(count - 1, tail)) ** 2
    return Share(int(won.sum()), n, count, p, *_score_interval(p, effective, z))


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


def bootstrap_episodes(
    statistic: Callable[[NDArray[np.intp]], float], episodes: Sequence[Hashable], *, seed: int = 0, draws: int = 1000
) -> tuple[float, float]:
    """95 % interval of a figure over windows, by percentiles of the bootstrap over whole episodes (Davison and Hinkley
    1997, section 3.8).

    statistic: from the indices of windows, which may stand several times, to the figure; draws for which it is NaN are
    left out. Not a number both where there is but one episode, or no draw is left.
    """
    names = list(dict.fromkeys(episodes))
    if len(names) < 2:
        return math.nan, math.nan
    members = [np.flatnonzero([name == each for each in episodes]) for name in names]
    rng, found = np.random.default_rng(seed), []
    for _ in range(draws):
        figure = statistic(np.concatenate([members[i] for i in rng.integers(len(names), size=len(names))]))
        if not math.isnan(figure):
            found.append(figure)
    low, high = np.quantile(found, [0.025, 0.975]) if found else (math.nan, math.nan)
    return float(low), float(high)


def _score_interval(p: float, n: float, z: float) -> tuple[float, float]:
    """Wilson's over ``n`` draws, which need not be a whole number."""
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2) / (1 + z * z / n)
    return 0.0 if p == 0 else max(0.0, centre - half), 1.0 if p == 1 else min(1.0, centre + half)


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
