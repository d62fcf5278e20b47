"""Calibration on values made so that the answer is known, and the bootstrap."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from cosmos_robot.data.returns import value_targets
from cosmos_robot.errors import InputError
from cosmos_robot.eval.calibration import auroc, calibrate, discounted, plot_calibration
from cosmos_robot.eval.statistics import bootstrap_difference, compare_paired


def drawn(count: int = 20_000, seed: int = 0):
    rng = np.random.default_rng(seed)
    values = rng.uniform(size=count)
    return values, rng.uniform(size=count) < values


def held(values, truth, **more):
    """Calibration on 50 episodes that end at once, so that a return is 1 or 0."""
    return calibrate(values, np.asarray(truth, float), truth, [i % 50 for i in range(len(values))], **more)


def test_honest_values_are_calibrated() -> None:
    found = held(*drawn())
    assert found.ece < 0.02
    assert found.auroc == pytest.approx(5 / 6, abs=0.01)  # of a uniform value that is the chance itself
    assert found.mae == pytest.approx(1 / 3, abs=0.01) and found.constant_mae == pytest.approx(1 / 2, abs=0.01)
    assert found.episodes == 50 and found.mae_low < found.mae < found.mae_high
    assert len(found.bins) == 10 and sum(b.count for b in found.bins) == found.count == 20_000
    assert all(b.low <= b.predicted <= b.high and b.happened_low <= b.happened <= b.happened_high for b in found.bins)


def test_boasting_values_rank_well_and_are_not_calibrated() -> None:
    values, truth = drawn()
    found = held(np.sqrt(values), truth)
    assert found.auroc == pytest.approx(held(values, truth).auroc)
    assert found.ece == pytest.approx(2 / 3 - 1 / 2, abs=0.02)


def test_values_that_know_nothing() -> None:
    _, truth = drawn()
    assert held(np.full(len(truth), 0.5), truth).auroc == 0.5
    assert held(np.full(len(truth), 0.9), truth).ece == pytest.approx(0.9 - truth.mean())


def test_by_hand() -> None:
    found = held([0.1, 0.1, 0.9, 1.0, math.nan], [False, True, True, True, True], bins=2)
    assert (found.count, found.left_out, found.base_rate) == (4, 1, 0.75)
    assert [(b.count, b.happened) for b in found.bins] == [(2, 0.5), (2, 1.0)]
    assert found.ece == pytest.approx((2 * 0.4 + 2 * 0.05) / 4)
    assert found.auroc == pytest.approx((0.5 + 1 + 1) / 3)


def test_all_one_way_has_no_ranking() -> None:
    found = held([0.2, 0.4], [True, True])
    assert math.isnan(found.auroc) and found.facts()["auroc"] is None
    assert math.isnan(auroc(np.array([0.5]), np.array([False])))


@pytest.mark.parametrize("wrong", [([], []), ([0.1], [True, False]), ([1.5], [True]), ([math.nan], [True])])
def test_refusals(wrong) -> None:
    with pytest.raises(InputError):
        held(*wrong)


def test_the_plot_has_a_point_for_each_bin() -> None:
    found = held([0.1, 0.5, 0.95], [False, True, True])
    root = ElementTree.fromstring(plot_calibration(found))
    curve = next(p for p in root.iter("polyline") if p.get("class") == "executed")
    assert len(curve.get("points").split()) == 3
    assert len([r for r in root.iter("rect") if r.get("class") == "count"]) == 3


def test_perfect_discounted_values_are_calibrated() -> None:
    """A model trained on gamma to the steps left says 0.37 a hundred steps before success, and is right."""
    left = np.tile(np.arange(0, 200, 10), 6)
    episodes, good = np.repeat(np.arange(6), 20), np.repeat([True] * 5 + [False], 20)
    returns = [discounted(bool(g), int(n)) for g, n in zip(good, left, strict=True)]
    found = calibrate(returns, returns, good, episodes.tolist())
    assert found.ece == found.mae == 0 < found.constant_mae
    assert found.auroc == 1 and found.base_rate == pytest.approx(5 / 6)
    against_success = calibrate(returns, good.astype(float), good, episodes.tolist())
    assert against_success.ece > 0.2, "what holding them against success would say"


def test_returns_are_those_of_training() -> None:
    targets = value_targets(31, 1.0, 0.99)
    for step in (0, 12, 30):
        assert discounted(True, 30 - step) == pytest.approx((targets[step] + 1) / 2, abs=1e-5)
    assert discounted(True, -5) == 1 and discounted(False, 0) == 0
    with pytest.raises(InputError, match="the published one is"):
        discounted(True, 1, 1.2)


def test_intervals_are_by_episode() -> None:
    """Windows of one episode that say the same narrow nothing."""
    values, truth = drawn(40, seed=3)
    once = calibrate(values, truth.astype(float), truth, range(40))
    again = calibrate(np.tile(values, 5), np.tile(truth, 5).astype(float), np.tile(truth, 5), list(range(40)) * 5)
    assert (once.mae_low, once.mae_high) == pytest.approx((again.mae_low, again.mae_high), abs=0.02)
    alone = calibrate(values, truth.astype(float), truth, [0] * 40)
    assert math.isnan(alone.ece_low) and alone.bins[0].happened_low is None and "polyline" in plot_calibration(alone)


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
