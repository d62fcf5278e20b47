"""Whether values mean what they say: predicted success against what happened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from cosmos_robot.errors import InputError
from cosmos_robot.eval.statistics import wilson


@dataclass(frozen=True)
class Bin:
    """Predictions from ``low`` to ``high``: how many, their mean, the share that succeeded and its Wilson interval."""

    low: float
    high: float
    count: int
    predicted: float
    happened: float
    happened_low: float
    happened_high: float


@dataclass(frozen=True)
class Calibration:
    """bins: the reliability curve, without empty ones. ece: expected calibration error, the mean over predictions of
    how far their bin's mean is from what happened. brier: mean squared error. auroc: how often a success was predicted
    higher than a failure, ties counting half; NaN where all went one way. left_out: predictions that are no number."""

    count: int
    left_out: int
    base_rate: float
    mean_predicted: float
    ece: float
    brier: float
    auroc: float
    bins: tuple[Bin, ...]

    def facts(self) -> dict[str, Any]:
        """As plain values; what is no number is None."""
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(self).items()}


def calibrate(predicted: Sequence[float], happened: Sequence[bool], bins: int = 10) -> Calibration:
    """Hold predictions (N,) in 0..1 against outcomes (N,), in ``bins`` equal bins (Naeini et al. 2015; ECE as in
    Guo et al. 2017). Raises InputError where they do not fit or no prediction is a number."""
    values, truth = np.asarray(predicted, dtype=np.float64), np.asarray(happened, dtype=bool)
    if values.shape != truth.shape or values.ndim != 1 or bins < 1:
        raise InputError(f"calibration: got {values.shape} predictions, {truth.shape} outcomes and {bins} bins")
    usable = np.isfinite(values)
    left_out, values, truth = int((~usable).sum()), values[usable], truth[usable]
    if not len(values) or values.min() < 0 or values.max() > 1:
        raise InputError("calibration: expected at least one prediction, and all of them from 0 to 1")
    places = np.minimum((values * bins).astype(int), bins - 1)
    found = tuple(_bin(i, bins, values[places == i], truth[places == i]) for i in sorted(set(places.tolist())))
    error = sum(b.count * abs(b.predicted - b.happened) for b in found) / len(values)
    return Calibration(
        count=len(values),
        left_out=left_out,
        base_rate=float(truth.mean()),
        mean_predicted=float(values.mean()),
        ece=float(error),
        brier=float(((values - truth) ** 2).mean()),
        auroc=auroc(values, truth),
        bins=found,
    )


def auroc(values: NDArray[np.float64], truth: NDArray[np.bool_]) -> float:
    """Area under the ROC curve, by ranks (Mann and Whitney 1947); NaN where all went one way."""
    good, bad = int(truth.sum()), int((~truth).sum())
    if not good or not bad:
        return math.nan
    return float((rankdata(values)[truth].sum() - good * (good + 1) / 2) / (good * bad))


def plot_calibration(found: Calibration, side: int = 320) -> str:
    """The reliability curve as an inline SVG: what happened over what was predicted, the diagonal, and a bar below for
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
    words = f"predicted against happened; ECE {found.ece:.3f}, AUROC {found.auroc:.3f}, {found.count} decisions"
    parts.append(f'<text class="name" x="{margin}" y="{margin / 2 - 6}">{words}</text>')
    height = margin / 2 + side + 18 + bars + 4
    return (
        f'<svg class="calibration" viewBox="0 0 {side + margin + 12} {height:.0f}" role="img" '
        f'aria-label="predicted success against what happened">{"".join(parts)}</svg>'
    )


def _bin(place: int, bins: int, values: NDArray[np.float64], truth: NDArray[np.bool_]) -> Bin:
    rate = wilson(int(truth.sum()), len(truth))
    ends = (place / bins, (place + 1) / bins)
    return Bin(*ends, len(values), float(values.mean()), rate.rate, rate.low, rate.high)
