"""Statistics of many rows in one pass, in float64, and what is wrong with statistics.

Mean and variance follow Welford and Chan (Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance").
Quantiles are exact while all rows fit; beyond that, sorted buffers are merged pairwise and every other row is kept
(Munro, Paterson 1980), and the largest error that this can have made is counted and told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.contract import Statistics
from cosmos_robot.errors import InputError

EXACT_ROWS: Final = 1 << 18
"""Rows kept whole for exact quantiles: 128 MiB at 64 dimensions."""

QUANTILES: Final = {"q01": 0.01, "q99": 0.99}
NEAR_CONSTANT: Final = 1e-3
"""A half-range below this share of the middle's magnitude is near-constant."""


class StatisticsAccumulator:
    """Statistics of rows that come in blocks; several accumulators merge into one.

    buffer_rows: rows of one sorted buffer once the exact ones no longer fit; the error of a quantile's rank falls with
    its inverse.
    """

    def __init__(self, width: int, *, exact_rows: int = EXACT_ROWS, buffer_rows: int = 1 << 14):
        if width < 1 or buffer_rows < 2 or exact_rows < 0:
            raise InputError(f"statistics: width={width}, exact_rows={exact_rows}, buffer_rows={buffer_rows}")
        self.width, self.exact_rows, self.buffer_rows = width, exact_rows, buffer_rows
        self.count = 0
        self._mean: NDArray[np.float64] = np.zeros(width)
        self._squares: NDArray[np.float64] = np.zeros(width)
        self._low: NDArray[np.float64] = np.full(width, np.inf)
        self._high: NDArray[np.float64] = np.full(width, -np.inf)
        self._waiting: list[NDArray[np.float64]] = []
        self._levels: dict[int, NDArray[np.float64]] = {}
        self._rank_error = 0
        self._odd = False

    def update(self, rows: ArrayLike) -> None:
        """Take in (N, D) rows. Raises InputError for another width and for rows that are not finite."""
        x = np.asarray(rows, dtype=np.float64)
        if x.ndim != 2 or x.shape[1] != self.width:
            raise InputError(f"statistics: expected (N, {self.width}), got {x.shape}")
        if not np.isfinite(x).all():
            row, column = np.argwhere(~np.isfinite(x))[0]
            raise InputError(f"statistics: row {self.count + row}, dimension {column} is not finite")
        if not len(x):
            return
        mean = x.mean(axis=0)
        self._join_moments(len(x), mean, ((x - mean) ** 2).sum(axis=0))
        self._low, self._high = np.minimum(self._low, x.min(axis=0)), np.maximum(self._high, x.max(axis=0))
        self._waiting.append(x.copy())
        self._make_room()

    def merge(self, other: StatisticsAccumulator) -> None:
        """Take in all that ``other`` has seen; ``other`` is not changed. Raises InputError if the two differ in width
        or in ``buffer_rows``."""
        if (other.width, other.buffer_rows) != (self.width, self.buffer_rows):
            raise InputError(
                f"statistics: accumulators of {self.width} and {other.width} dimensions, {self.buffer_rows} and "
                f"{other.buffer_rows} buffer rows do not merge"
            )
        if not other.count:
            return
        self._join_moments(other.count, other._mean, other._squares)
        self._low, self._high = np.minimum(self._low, other._low), np.maximum(self._high, other._high)
        self._waiting += other._waiting
        self._rank_error += other._rank_error
        for level, buffer in other._levels.items():
            self._push(buffer, level)
        self._make_room()

    @property
    def exact(self) -> bool:
        """Whether quantiles are exact: all rows are still here."""
        return not self._levels

    @property
    def rank_error(self) -> float:
        """Bound on the error of a quantile's rank, as a share of all rows: q01 lies between the true quantiles
        0.01 - rank_error and 0.01 + rank_error. 0 while exact."""
        heaviest = 1 << max(self._levels) if self._levels else 0
        return (self._rank_error + heaviest) / self.count if self.count else 0.0

    def finish(self) -> Statistics:
        """The statistics of all rows so far. Raises InputError if there were none."""
        if not self.count:
            raise InputError("statistics: no rows")
        quantiles = self._exact_quantiles() if self.exact else self._sketched_quantiles()
        columns = {
            "mean": self._mean,
            "std": np.sqrt(self._squares / self.count),
            "min": self._low,
            "max": self._high,
        } | quantiles
        return Statistics(count=self.count, **{name: tuple(v.tolist()) for name, v in columns.items()})

    def _join_moments(self, count: int, mean: NDArray[np.float64], squares: NDArray[np.float64]) -> None:
        """Chan's update of count, mean and sum of squared deviations."""
        total = self.count + count
        step = mean - self._mean
        self._mean = self._mean + step * (count / total)
        self._squares = self._squares + squares + step**2 * (self.count * count / total)
        self.count = total

    def _make_room(self) -> None:
        """Move waiting rows into sorted buffers once they are too many, all but an incomplete last buffer."""
        waiting = sum(len(block) for block in self._waiting)
        if waiting <= (self.exact_rows if self.exact else self.buffer_rows):
            return
        rows = np.concatenate(self._waiting)
        whole = len(rows) // self.buffer_rows * self.buffer_rows
        for start in range(0, whole, self.buffer_rows):
            self._push(np.sort(rows[start : start + self.buffer_rows], axis=0), 0)
        self._waiting = [rows[whole:]]

    def _push(self, buffer: NDArray[np.float64], level: int) -> None:
        """Store a sorted buffer whose rows stand for 2^level rows each; two of one level become one of the next."""
        while level in self._levels:
            both = np.sort(np.concatenate([self._levels.pop(level), buffer]), axis=0)
            # Of each pair one row stays; a rank is off by at most the weight of one row. Alternating the choice keeps
            # the errors from adding up in one direction.
            buffer = both[int(self._odd) :: 2]
            self._odd = not self._odd
            self._rank_error += 1 << level
            level += 1
        self._levels[level] = buffer

    def _exact_quantiles(self) -> dict[str, NDArray[np.float64]]:
        found = np.quantile(np.concatenate(self._waiting), list(QUANTILES.values()), axis=0)
        return dict(zip(QUANTILES, found, strict=True))

    def _sketched_quantiles(self) -> dict[str, NDArray[np.float64]]:
        blocks = [(np.concatenate(self._waiting), 0)] + [(rows, level) for level, rows in self._levels.items()]
        rows = np.concatenate([block for block, _ in blocks])
        weights = np.concatenate([np.full(len(block), 1 << level) for block, level in blocks])
        order = np.argsort(rows, axis=0)
        ranks = np.cumsum(weights[order], axis=0)
        found = {}
        for name, share in QUANTILES.items():
            first = np.argmax(ranks >= share * self.count, axis=0)
            at = np.take_along_axis(order, first[None], axis=0)
            found[name] = np.take_along_axis(rows, at, axis=0)[0]
        return found


def statistics_of(rows: ArrayLike) -> Statistics:
    """Exact per-dimension statistics of (N, D) finite rows, in float64."""
    x = np.asarray(rows, dtype=np.float64)
    if x.ndim != 2 or not len(x):
        raise InputError(f"statistics: expected (N, D) with N >= 1, got {x.shape}")
    accumulator = StatisticsAccumulator(x.shape[1], exact_rows=len(x))
    accumulator.update(x)
    return accumulator.finish()


def merged(parts: Sequence[Statistics]) -> Statistics:
    """The statistics of several data sets together, from their finished statistics.

    Counts, means, deviations and ranges join exactly. Quantiles do not: parts that hold q01 or q99 are refused, since
    no function of the parts gives them. Raises InputError that names the remedy.
    """
    if not parts:
        raise InputError("statistics: nothing to merge")
    recorded = set(parts[0].recorded)
    for part in parts[1:]:
        if part.width != parts[0].width:
            raise InputError(f"statistics: {parts[0].width} and {part.width} dimensions do not merge")
        recorded &= set(part.recorded)
    quantiles = sorted(recorded & set(QUANTILES))
    if quantiles:
        raise InputError(
            f"statistics: {', '.join(quantiles)} of the parts do not give those of the whole; recompute them in one "
            "pass over all rows (`cosmos-robot data stats` on every data set together), or merge accumulators before "
            "they are finished"
        )
    columns: dict[str, NDArray[np.float64]] = {}
    for name, join in (("min", np.min), ("max", np.max)):
        if name in recorded:
            columns[name] = join([part.column(name) for part in parts], axis=0)
    counts = [part.count for part in parts]
    if {"mean", "std"} <= recorded and all(counts):
        weights = np.array(counts, dtype=np.float64)[:, None]
        means, stds = (np.array([part.column(name) for part in parts]) for name in ("mean", "std"))
        columns["mean"] = (weights * means).sum(axis=0) / weights.sum()
        spread = weights * (stds**2 + (means - columns["mean"]) ** 2)
        columns["std"] = np.sqrt(spread.sum(axis=0) / weights.sum())
    if not columns:
        raise InputError("statistics: the parts share no column that can be merged; recompute them from the rows")
    total = sum(c for c in counts if c) if all(counts) else None
    return Statistics(count=total, **{name: tuple(v.tolist()) for name, v in columns.items()})


@dataclass(frozen=True)
class Finding:
    """One dimension of statistics, or of rows against statistics, that is probably wrong. remedy: what to do."""

    dimension: int
    kind: Literal["constant", "near_constant", "inverted", "scale", "offset"]
    message: str
    remedy: str


def lint_statistics(statistics: Statistics) -> tuple[Finding, ...]:
    """Dimensions whose range is inverted, empty, or tiny beside its middle (openpi #814: q01 1.56864, q99 1.56962
    takes 0 to -3200), by q01 and q99, else min and max, else mean and std."""
    middle, half, names = _middle_and_half(statistics)
    findings = []
    for i, (m, h) in enumerate(zip(middle, half, strict=True)):
        shown = f"dimension {i}: {names} give {m:.6g} +- {h:.3g}"
        if h < 0:
            findings.append(Finding(i, "inverted", f"{shown}; low is above high", "recompute the statistics"))
        elif h == 0:
            remedy = "constant='centre' restores the constant, 'pass_through' leaves the dimension as it is"
            findings.append(Finding(i, "constant", f"{shown}; the dimension never changes", remedy))
        elif h < NEAR_CONSTANT * abs(m):
            message = f"{shown}; 0 becomes {-m / h:.3g}"
            remedy = f"a scale_floor well above {h:.3g}, or pass_through with constant_below={h:.3g}"
            findings.append(Finding(i, "near_constant", message, remedy))
    return tuple(findings)


def distribution_check(rows: ArrayLike, statistics: Statistics, limit: float = 5.0) -> tuple[Finding, ...]:
    """Dimensions in which (N, D) rows of a data set are unlike the recorded distribution they should follow.

    scale: their spread is more than ``limit`` times as wide or as narrow. offset: their middle is more than ``limit``
    half-ranges away. Dimensions that never change, in the rows or on record, are compared by middle only. For start-up,
    with rows of many windows: normalised rows where raw ones belong, or the reverse, show here.
    """
    x = np.asarray(rows, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] != statistics.width:
        raise InputError(f"distribution: expected (N, {statistics.width}) rows, got {x.shape}")
    if limit <= 1:
        raise InputError(f"distribution: limit={limit}, expected more than 1")
    known_middle, known, _ = _middle_and_half(statistics)
    seen_middle, seen, _ = _middle_and_half(statistics_of(x), like=statistics)
    findings = []
    for i in range(statistics.width):
        if seen[i] > 0 and known[i] > 0 and not 1 / limit <= seen[i] / known[i] <= limit:
            ratio = seen[i] / known[i]
            message = f"dimension {i}: the rows spread over {seen[i]:.3g}, on record {known[i]:.3g} (ratio {ratio:.3g})"
            findings.append(Finding(i, "scale", message, "check units, and whether normalisation is applied once"))
        elif abs(seen_middle[i] - known_middle[i]) > limit * max(known[i], seen[i], 1e-9):
            message = f"dimension {i}: the rows lie around {seen_middle[i]:.3g}, on record {known_middle[i]:.3g}"
            findings.append(Finding(i, "offset", message, "check polarity, frame and column order"))
    return tuple(findings)


def _middle_and_half(
    statistics: Statistics, like: Statistics | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64], str]:
    """Middle and half-range (D,) by the first of three pairs that is recorded (in ``like``, if given)."""
    recorded = (like or statistics).recorded
    for low, high in (("q01", "q99"), ("min", "max")):
        if low in recorded and high in recorded:
            a, b = np.array(statistics.column(low)), np.array(statistics.column(high))
            return (a + b) / 2, (b - a) / 2, f"{low} and {high}"
    if "mean" in recorded and "std" in recorded:
        return np.array(statistics.column("mean")), np.array(statistics.column("std")), "mean and std"
    raise InputError(f"statistics: a range needs q01 and q99, min and max, or mean and std; recorded are {recorded}")
