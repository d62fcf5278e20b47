"""Whether values mean what they say: predicted returns against what came about.

A value model is trained on gamma^(control steps left to the end) where the task was done, 0 where it was not, so that
is what its values are held against; how well they tell success from failure is asked beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from cosmos_robot.errors import InputError
from cosmos_robot.eval.statistics import bootstrap_episodes

GAMMA = 0.99
"""Discount per control step that Cosmos Policy's values are trained with."""


@dataclass(frozen=True)
class Bin:
    """Predictions from ``low`` to ``high``: how many, their mean, the mean return that came about and its interval over
    episodes, None where there is but one."""

    low: float
    high: float
    count: int
    predicted: float
    happened: float
    happened_low: float | None
    happened_high: float | None


@dataclass(frozen=True)
class Calibration:
    """How far predictions are from returns; each ``_low`` and ``_high`` is the 95 % interval by the bootstrap over
    episodes, NaN where there is but one.

    left_out: predictions that are no number. base_rate: share that ended in success. bins: the reliability curve,
    without empty ones. ece: expected calibration error, the mean over predictions of how far their bin's mean is from
    the mean return in it. mae: mean absolute error; constant_mae: of the constant that fits best, the median return.
    auroc: how often a success was predicted higher than a failure, ties counting half; NaN where all went one way.
    """

    count: int
    left_out: int
    episodes: int
    base_rate: float
    mean_predicted: float
    mean_return: float
    ece: float
    ece_low: float
    ece_high: float
    mae: float
    mae_low: float
    mae_high: float
    constant_mae: float
    auroc: float
    auroc_low: float
    auroc_high: float
    bins: tuple[Bin, ...]

    def facts(self) -> dict[str, Any]:
        """As plain values; what is no number is None."""
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(self).items()}


def discounted(success: bool, steps_left: int, gamma: float = GAMMA) -> float:
    """The return at a moment with ``steps_left`` control steps to the end of its episode, 0 to 1; moments after the end
    count as the end, as in training. Raises InputError unless 0 < gamma <= 1."""
    if not 0 < gamma <= 1:
        raise InputError(f"gamma: expected a number above 0, at most 1, got {gamma}; the published one is {GAMMA}")
    return float(gamma ** max(0, steps_left)) if success else 0.0


def calibrate(
    predicted: Sequence[float],
    returns: Sequence[float],
    succeeded: Sequence[bool],
    episodes: Sequence[Hashable] | None = None,
    bins: int = 10,
) -> Calibration:
    """Hold predictions (N,) against returns (N,), both from 0 to 1, in ``bins`` equal bins (Naeini et al. 2015; ECE as
    in Guo et al. 2017).

    succeeded: (N,) how the episode of each ended. episodes: (N,) which it was; each its own where None. Raises
    InputError where they do not fit or no prediction is a number.
    """
    values, truth = np.asarray(predicted, dtype=np.float64), np.asarray(returns, dtype=np.float64)
    good, names = np.asarray(succeeded, dtype=bool), list(range(len(values)) if episodes is None else episodes)
    if not values.shape == truth.shape == good.shape == (len(names),) or bins < 1:
        raise InputError(
            f"calibration: got {values.shape} predictions, {truth.shape} returns, {good.shape} outcomes, {len(names)} "
            f"episodes and {bins} bins; expected one of each for each prediction, and at least one bin"
        )
    usable = np.isfinite(values)
    names = [name for name, use in zip(names, usable, strict=True) if use]
    left_out, values, truth, good = int((~usable).sum()), values[usable], truth[usable], good[usable]
    if not len(values) or not all((a >= 0).all() and (a <= 1).all() for a in (values, truth)):
        raise InputError(
            "calibration: expected at least one prediction, and all of them and of the returns from 0 to 1"
        )
    places = np.minimum((values * bins).astype(int), bins - 1)
    found = tuple(_bin(i, bins, places == i, values, truth, names) for i in sorted(set(places.tolist())))

    def with_interval(figure: Callable[[NDArray[np.intp]], float]) -> tuple[float, float, float]:
        return (figure(np.arange(len(values))), *bootstrap_episodes(figure, names))

    return Calibration(
        len(values),
        left_out,
        len(set(names)),
        float(good.mean()),
        float(values.mean()),
        float(truth.mean()),
        *with_interval(lambda chosen: _ece(places[chosen], values[chosen] - truth[chosen])),
        *with_interval(lambda chosen: float(np.abs(values[chosen] - truth[chosen]).mean())),
        float(np.abs(truth - np.median(truth)).mean()),
        *with_interval(lambda chosen: auroc(values[chosen], good[chosen])),
        found,
    )


def auroc(values: NDArray[np.float64], truth: NDArray[np.bool_]) -> float:
    """Area under the ROC curve, by ranks (Mann and Whitney 1947); NaN where all went one way."""
    good, bad = int(truth.sum()), int((~truth).sum())
    if not good or not bad:
        return math.nan
    return float((rankdata(values)[truth].sum() - good * (good + 1) / 2) / (good * bad))


def plot_calibration(found: Calibration, side: int = 320) -> str:
    """The reliability curve as an inline SVG: the return over what was predicted, the diagonal, and a bar below for
    how many predictions each bin has."""
    margin, bars = 40, 44

    def at(x: float, y: float) -> str:
        return f"{margin + side * x:.1f},{margin / 2 + side * (1 - y):.1f}"

    parts = [
        f'<rect class="panel" x="{margin}" y="{margin / 2}" width="{side}" height="{side}"/>',
        f'<polyline class="zero" points="{at(0, 0)} {at(1, 1)}"/>',
        f'<polyline class="executed" points="{" ".join(at(b.predicted, b.happened) for b in found.bins)}"/>',
    ]
    most = max(b.count for b in found.bins)
    for b in found.bins:
        if b.happened_low is not None and b.happened_high is not None:
            interval = f"{at(b.predicted, b.happened_low)} {at(b.predicted, b.happened_high)}"
            parts.append(f'<polyline class="predicted" points="{interval}"/>')
        height = bars * b.count / most
        top = margin / 2 + side + 18 + bars - height
        left, width = margin + side * b.low, side * (b.high - b.low) - 1
        parts.append(f'<rect class="count" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"/>')
    for tick in (0.0, 0.5, 1.0):
        x, y = at(tick, 0).split(",")
        parts.append(f'<text class="tick" x="{x}" y="{float(y) + 13:.1f}">{tick:g}</text>')
        x, y = at(0, tick).split(",")
        parts.append(f'<text class="bound" x="{float(x) - 4:.1f}" y="{y}">{tick:g}</text>')
    words = f"predicted against return; ECE {found.ece:.3f}, AUROC {found.auroc:.3f}, {found.count} decisions"
    parts.append(f'<text class="name" x="{margin}" y="{margin / 2 - 6}">{words}</text>')
    height = margin / 2 + side + 18 + bars + 4
    return (
        f'<svg class="calibration" viewBox="0 0 {side + margin + 12} {height:.0f}" role="img" '
        f'aria-label="predicted return against the one that came about">{"".join(parts)}</svg>'
    )


def _ece(places: NDArray[np.intp], apart: NDArray[np.float64]) -> float:
    """places: (N,) the bin of each. apart: (N,) prediction less return."""
    return float(np.abs(np.bincount(places, apart)).sum() / len(apart))


def _bin(
    place: int,
    bins: int,
    inside: NDArray[np.bool_],
    values: NDArray[np.float64],
    truth: NDArray[np.float64],
    names: Sequence[Hashable],
) -> Bin:
    own = truth[inside]
    low, high = bootstrap_episodes(
        lambda chosen: float(own[chosen].mean()), [name for name, use in zip(names, inside, strict=True) if use]
    )
    ends = (place / bins, (place + 1) / bins)
    interval = (None, None) if math.isnan(low) else (low, high)
    return Bin(*ends, int(inside.sum()), float(values[inside].mean()), float(own.mean()), *interval)
