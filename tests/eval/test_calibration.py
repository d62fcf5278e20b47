"""Calibration on values made so that the answer is known, and the bootstrap."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from cosmos_robot.errors import InputError
from cosmos_robot.eval.calibration import auroc, calibrate, plot_calibration
from cosmos_robot.eval.statistics import bootstrap_difference, compare_paired


def drawn(count: int = 20_000, seed: int = 0):
    rng = np.random.default_rng(seed)
    values = rng.uniform(size=count)
    return values, rng.uniform(size=count) < values


def test_honest_values_are_calibrated() -> None:
    found = calibrate(*drawn())
    assert found.ece < 0.02
    assert found.auroc == pytest.approx(5 / 6, abs=0.01)  # of a uniform value that is the chance itself
    assert found.brier == pytest.approx(1 / 6, abs=0.01)
    assert len(found.bins) == 10 and sum(b.count for b in found.bins) == found.count == 20_000
    assert all(b.low <= b.predicted <= b.high and b.happened_low <= b.happened <= b.happened_high for b in found.bins)


def test_boasting_values_rank_well_and_are_not_calibrated() -> None:
    values, truth = drawn()
    found = calibrate(np.sqrt(values), truth)
    assert found.auroc == pytest.approx(calibrate(values, truth).auroc)
    assert found.ece == pytest.approx(2 / 3 - 1 / 2, abs=0.02)


def test_values_that_know_nothing() -> None:
    _, truth = drawn()
    assert calibrate(np.full(len(truth), 0.5), truth).auroc == 0.5
    assert calibrate(np.full(len(truth), 0.9), truth).ece == pytest.approx(0.9 - truth.mean())


def test_by_hand() -> None:
    found = calibrate([0.1, 0.1, 0.9, 1.0, math.nan], [False, True, True, True, True], bins=2)
    assert (found.count, found.left_out, found.base_rate) == (4, 1, 0.75)
    assert [(b.count, b.happened) for b in found.bins] == [(2, 0.5), (2, 1.0)]
    assert found.ece == pytest.approx((2 * 0.4 + 2 * 0.05) / 4)
    assert found.auroc == pytest.approx((0.5 + 1 + 1) / 3)


def test_all_one_way_has_no_ranking() -> None:
    found = calibrate([0.2, 0.4], [True, True])
    assert math.isnan(found.auroc) and found.facts()["auroc"] is None
    assert math.isnan(auroc(np.array([0.5]), np.array([False])))


@pytest.mark.parametrize("wrong", [([], []), ([0.1], [True, False]), ([1.5], [True]), ([math.nan], [True])])
def test_refusals(wrong) -> None:
    with pytest.raises(InputError):
        calibrate(*wrong)


def test_the_plot_has_a_point_for_each_bin() -> None:
    found = calibrate([0.1, 0.5, 0.95], [False, True, True])
    root = ElementTree.fromstring(plot_calibration(found))
    curve = next(p for p in root.iter("polyline") if p.get("class") == "executed")
    assert len(curve.get("points").split()) == 3
    assert len([r for r in root.iter("rect") if r.get("class") == "count"]) == 3


def test_bootstrap_agrees_with_the_score_interval() -> None:
    pairs = [(True, True)] * 60 + [(True, False)] * 25 + [(False, True)] * 5 + [(False, False)] * 10
    low, high = bootstrap_difference(pairs, [0] * 100, seed=1)
    other = compare_paired(60, 25, 5, 10)
    assert low == pytest.approx(other.low, abs=0.03) and high == pytest.approx(other.high, abs=0.03)
    assert bootstrap_difference(pairs, [0] * 100, seed=1) == (low, high)


def test_bootstrap_keeps_to_tasks() -> None:
    """One task always won and one always lost: nothing is left to chance."""
    assert bootstrap_difference([(True, False)] * 5 + [(False, True)] * 5, [0] * 5 + [1] * 5) == (0, 0)
    with pytest.raises(InputError):
        bootstrap_difference([], [])
