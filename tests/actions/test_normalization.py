"""Normalisers: constant and near-constant dimensions, clamping, bounds, inverses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmos_robot.actions.normalization import LARGEST_NORMALISED, Normalizer, range_map, require_bounded, to_bfloat16
from cosmos_robot.actions.statistics import lint_statistics, statistics_of
from cosmos_robot.contract import NEEDED_STATISTICS, Normalization, Statistics
from cosmos_robot.errors import InputError

METHODS = tuple(name for name, needed in NEEDED_STATISTICS.items() if needed)
RNG = np.random.default_rng(5)
ROWS = RNG.normal([0.1, -2.0, 300.0, 0.0], [0.02, 1.0, 50.0, 3.0], (400, 4))


def normalizer(method: str, rows: np.ndarray = ROWS, **options) -> Normalizer:
    return Normalizer(Normalization(method=method, statistics=statistics_of(rows), **options), rows.shape[1])


@pytest.mark.parametrize("formula", ["centred", "from_low"])
@pytest.mark.parametrize("method", METHODS)
def test_denormalize_undoes_normalize(method, formula) -> None:
    n = normalizer(method, formula=formula)
    np.testing.assert_allclose(n.denormalize(n.normalize(3 * ROWS)), 3 * ROWS, rtol=1e-9, atol=1e-9)
    assert n.normalize(ROWS[0]).shape == (4,)


@settings(max_examples=60, deadline=None)
@given(
    method=st.sampled_from(METHODS),
    rows=st.lists(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=2), min_size=2, max_size=8),
    values=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=2),
    constant=st.sampled_from(["floor", "centre", "pass_through"]),
)
def test_any_rows_give_finite_invertible_numbers(method, rows, values, constant) -> None:
    n = normalizer(method, np.array(rows), constant=constant, constant_below=1e-3, scale_floor=1e-3)
    there = n.normalize(values)
    assert np.isfinite(there).all()
    back = n.denormalize(there)
    held = n.constant if constant == "centre" else np.zeros(2, dtype=bool)
    np.testing.assert_allclose(back[~held], np.array(values)[~held], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ["quantile", "minmax", "meanstd", "quantile_rot", "asinh_rot"])
def test_pc_20_a_constant_dimension_is_held(method) -> None:
    rows = np.stack([np.full(50, 0.5), np.linspace(-1, 1, 50)], axis=1)
    n = normalizer(method, rows, constant="centre")
    for value in (0.5, 0.51):
        there = n.normalize([value, 0.3])
        assert there[0] == 0
        assert n.denormalize(there)[0] == pytest.approx(0.5)
    # What serving does is what training did: the same object from a contract that went through JSON.
    served = Normalizer(Normalization.model_validate_json(n.spec.model_dump_json()), 2)
    np.testing.assert_array_equal(served.normalize(rows), n.normalize(rows))


@pytest.mark.parametrize("method", ["quantile", "minmax", "meanstd"])
def test_pc_20_the_other_policies_are_finite_too(method) -> None:
    rows = np.stack([np.full(50, 0.5), np.linspace(-1, 1, 50)], axis=1)
    passed = normalizer(method, rows, constant="pass_through")
    np.testing.assert_allclose(passed.normalize([0.51, 0])[0], 0.51)
    np.testing.assert_allclose(passed.denormalize(passed.normalize([0.51, 0]))[0], 0.51)
    floored = normalizer(method, rows, scale_floor=0.1)
    np.testing.assert_allclose(floored.normalize([0.51, 0])[0], 0.1)
    assert floored.denormalize([0.0, 0])[0] == pytest.approx(0.5)
    with pytest.raises(InputError, match=r"dimensions \[0\] are constant"):
        normalizer(method, rows, constant="refuse")


def test_the_two_formulas_differ_on_a_constant_dimension() -> None:
    spec = {"method": "quantile", "statistics": Statistics(q01=(0.5,), q99=(0.5,))}
    assert Normalizer(Normalization(**spec), 1).normalize([0.5])[0] == 0
    older = Normalizer(Normalization(**spec, formula="from_low"), 1)
    assert older.normalize([0.5])[0] == -1
    assert older.denormalize([0.7])[0] == 0.5


NEAR = Statistics(q01=(1.56864, -1.0), q99=(1.56962, 1.0))


def test_pc_19_a_near_constant_dimension_is_named_with_a_remedy() -> None:
    (finding,) = lint_statistics(NEAR)
    assert (finding.dimension, finding.kind) == (0, "near_constant")
    assert "0 becomes -3.2e+03" in finding.message
    assert "scale_floor" in finding.remedy and "pass_through" in finding.remedy


@pytest.mark.parametrize("value", [0.0, 1.6])
def test_pc_19_training_refuses_rows_beyond_the_limit(value) -> None:
    n = Normalizer(Normalization(method="quantile", statistics=NEAR), 2)
    rows = np.array([[1.569, 0.3], [value, 0.2]])
    limit = LARGEST_NORMALISED if value == 0.0 else 50
    with pytest.raises(InputError, match=r"dimensions 0 \(up to .*scale_floor"):
        require_bounded(n.normalize(rows), limit)
    require_bounded(n.normalize(rows), limit=1e5)  # the override
    for remedy in ({"scale_floor": 0.1}, {"constant": "pass_through", "constant_below": 1e-3}):
        bounded = Normalizer(Normalization(method="quantile", statistics=NEAR, **remedy), 2)
        require_bounded(bounded.normalize(rows), limit)
        assert np.abs(bounded.normalize(rows)).max() < 20


def test_rows_that_are_not_numbers_are_beyond_every_limit() -> None:
    with pytest.raises(InputError, match=r"actions: .*dimensions 1 \(up to nan\)"):
        require_bounded([[0.0, np.nan]], what="actions")
    require_bounded(np.zeros((0, 2)))


def test_clamped_values_are_counted() -> None:
    n = normalizer("minmax", np.array([[-1.0, -1.0], [1.0, 1.0]]), clamp=1.0, clamp_mask=(True, False))
    rows = np.array([[-3.0, -3.0], [0.5, 0.5], [2.0, 2.0], [1.0, 1.0]])
    np.testing.assert_array_equal(n.normalize(rows), [[-1, -3], [0.5, 0.5], [1, 2], [1, 1]])
    np.testing.assert_array_equal(n.clamped_share(rows), [0.5, 0.0])


def test_asinh_methods_keep_outliers_apart_and_the_common_range_near_linear() -> None:
    spec = {"statistics": Statistics(q01=(-1.0,), q99=(1.0,))}
    piecewise = Normalizer(Normalization(method="piecewise_asinh_rot", **spec), 1)
    np.testing.assert_array_equal(piecewise.normalize([[0.3], [-1.0]]), [[0.3], [-1.0]])
    curve = Normalizer(Normalization(method="asinh_rot", **spec), 1)
    np.testing.assert_allclose(curve.normalize([[1.0], [0.0], [-1.0]]), [[1], [0], [-1]], atol=1e-12)
    for n in (piecewise, curve):
        far = n.normalize([[100.0], [200.0]])[:, 0]
        assert 4 < far[0] < far[1] < 10


def test_scale_floor_by_outliers_keeps_them_within_five() -> None:
    rows = np.concatenate([np.linspace(-1, 1, 1000), [40.0]])[:, None]
    n = normalizer("quantile_rot_scale_floor", rows)
    assert np.abs(n.normalize(rows)).max() == pytest.approx(5)
    assert np.abs(normalizer("quantile_rot", rows).normalize(rows)).max() > 40


def test_range_map_reaches_both_ends_of_its_target() -> None:
    to_unit = range_map([-2.0], [6.0], floor=0.0, target=(0.0, 1.0))
    np.testing.assert_allclose(to_unit.forward(np.array([[-2.0], [2.0], [6.0]])), [[0], [0.5], [1]])
    np.testing.assert_allclose(to_unit.inverse(np.array([[0.0], [1.0]])), [[-2], [6]])


def test_bfloat16_rounds_to_nearest_even() -> None:
    step = 2.0**-7  # of bfloat16 between 1 and 2
    given = [1 + 0.4 * step, 1 + 0.5 * step, 1 + 0.6 * step, 1 + 1.5 * step, -1 - 0.6 * step, 0.0, np.inf, 256.4]
    want = [1, 1, 1 + step, 1 + 2 * step, -1 - step, 0, np.inf, 256]
    np.testing.assert_array_equal(to_bfloat16(given), want)
    assert np.isnan(to_bfloat16([np.nan])).all()
    values = RNG.standard_normal(2000)
    rounded = to_bfloat16(values)
    assert (np.abs(rounded - values) <= np.abs(values) * 2**-8).all()
    np.testing.assert_array_equal(to_bfloat16(rounded), rounded)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: normalizer("quantile").normalize(np.zeros(3)), "expected last axis 4, got shape"),
        (lambda: Normalizer(normalizer("quantile").spec, 5), "4 dimensions, expected 5"),
        (lambda: Normalizer(Normalization(method="quantile", note="never published"), 4), "never published"),
        (lambda: Normalizer(Normalization(method="pose_scale"), 2), "pose_scale"),
        (
            lambda: Normalizer(
                Normalization(method="minmax", constant="centre", statistics=Statistics(min=(1.0,), max=(0.0,))), 1
            ),
            "low is above high",
        ),
    ],
)
def test_bad_normalisers_are_refused(call, message) -> None:
    with pytest.raises(InputError, match=message):
        call()
