"""Statistics in one pass, their quantiles beyond what fits, merging, and comparison with a record."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.actions.normalization import Normalizer
from cosmos_robot.actions.statistics import (
    StatisticsAccumulator,
    distribution_check,
    lint_statistics,
    merged,
    statistics_of,
)
from cosmos_robot.contract import Normalization, Statistics
from cosmos_robot.errors import InputError

RNG = np.random.default_rng(11)
ROWS = RNG.normal([1e6, 0.0, -3.0], [1e-2, 1.0, 20.0], (30_000, 3))


def assert_moments(found: Statistics, rows: np.ndarray) -> None:
    assert found.count == len(rows)
    for name, want in {"mean": rows.mean(0), "std": rows.std(0), "min": rows.min(0), "max": rows.max(0)}.items():
        np.testing.assert_allclose(found.column(name), want, rtol=1e-9, atol=1e-9)


def fed(rows: np.ndarray, blocks: int, **options) -> StatisticsAccumulator:
    accumulator = StatisticsAccumulator(rows.shape[1], **options)
    for block in np.array_split(rows, blocks):
        accumulator.update(block)
    return accumulator


def test_blocks_give_what_all_rows_give() -> None:
    accumulator = fed(ROWS, 37)
    assert accumulator.exact and accumulator.rank_error == 0
    found = accumulator.finish()
    assert_moments(found, ROWS)
    np.testing.assert_array_equal([found.q01, found.q99], np.quantile(ROWS, [0.01, 0.99], axis=0))
    assert found.q01 == statistics_of(ROWS).q01


@pytest.mark.parametrize("order", ["random", "sorted", "reversed"])
def test_beyond_what_fits_quantiles_keep_the_stated_bound(order) -> None:
    rows = ROWS if order == "random" else np.sort(ROWS, axis=0)[:: -1 if order == "reversed" else 1]
    accumulator = fed(rows, 37, exact_rows=1000, buffer_rows=512)
    assert not accumulator.exact and 0 < accumulator.rank_error < 0.02
    found = accumulator.finish()
    assert_moments(found, rows)
    for name, share in (("q01", 0.01), ("q99", 0.99)):
        value = np.array(found.column(name))
        below, up_to = (rows < value).mean(0), (rows <= value).mean(0)
        assert (below <= share + accumulator.rank_error).all() and (up_to >= share - accumulator.rank_error).all()


@pytest.mark.parametrize("exact_rows", [1 << 18, 1000])
def test_merged_accumulators_equal_one_pass(exact_rows) -> None:
    parts = [fed(part, 5, exact_rows=exact_rows, buffer_rows=256) for part in np.array_split(ROWS, [4000, 4100, 21000])]
    whole = parts[0]
    for part in parts[1:]:
        before = part.count
        whole.merge(part)
        assert part.count == before
    whole.merge(StatisticsAccumulator(3, exact_rows=exact_rows, buffer_rows=256))
    found = whole.finish()
    assert_moments(found, ROWS)
    for name, share in (("q01", 0.01), ("q99", 0.99)):
        rank = (np.array(found.column(name)) >= ROWS).mean(0)
        np.testing.assert_allclose(rank, share, atol=whole.rank_error + 1 / len(ROWS))


def test_finished_statistics_merge_without_quantiles_only() -> None:
    first, second = ROWS[:10_000], ROWS[10_000:]
    finished = [statistics_of(first), statistics_of(second)]
    with pytest.raises(InputError, match=r"q01, q99 .*data stats.*accumulators"):
        merged(finished)
    bare = [s.model_copy(update={"q01": None, "q99": None}) for s in finished]
    assert_moments(merged(bare), ROWS)
    with pytest.raises(InputError, match="dimensions do not merge"):
        merged([bare[0], Statistics(min=(0.0,), max=(1.0,))])
    with pytest.raises(InputError, match="share no column"):
        merged([Statistics(min=(0.0,)), Statistics(max=(1.0,))])


def test_what_is_not_rows_is_refused_by_place() -> None:
    accumulator = fed(ROWS[:10], 1)
    bad = np.zeros((5, 3))
    bad[3, 1] = np.nan
    with pytest.raises(InputError, match="row 13, dimension 1"):
        accumulator.update(bad)
    assert accumulator.count == 10
    for call in (
        lambda: accumulator.update(np.zeros((2, 4))),
        lambda: accumulator.merge(StatisticsAccumulator(4)),
        lambda: StatisticsAccumulator(2).finish(),
        lambda: StatisticsAccumulator(0),
        lambda: statistics_of(np.zeros((0, 3))),
        lambda: statistics_of(np.zeros(3)),
        lambda: merged([]),
    ):
        with pytest.raises(InputError):
            call()


def test_updates_do_not_keep_the_caller_s_array() -> None:
    rows = ROWS[:100].copy()
    accumulator = fed(rows, 1)
    rows[:] = 0
    np.testing.assert_array_equal(accumulator.finish().q99, np.quantile(ROWS[:100], 0.99, axis=0))


def test_lint_names_inverted_and_constant_dimensions() -> None:
    findings = lint_statistics(Statistics(min=(0.0, 1.0, 0.5, -1.0), max=(1.0, 0.0, 0.5, 1.0)))
    assert [(f.dimension, f.kind) for f in findings] == [(1, "inverted"), (2, "constant")]
    assert lint_statistics(statistics_of(ROWS[:, 1:])) == ()


def droid_like() -> tuple[np.ndarray, Statistics]:
    """Framewise metres and a gripper column, and what was recorded after normalisation in training."""
    raw = np.concatenate([RNG.normal(0, 0.006, (2000, 3)), RNG.uniform(0, 0.43, (2000, 1))], axis=1)
    statistics = statistics_of(raw)
    trained = Normalizer(Normalization(method="quantile", statistics=statistics), 4).normalize(raw)
    return raw, statistics_of(trained)


def test_pc_17_actions_that_were_never_normalised_are_flagged() -> None:
    raw, recorded = droid_like()
    found = {f.dimension: f for f in distribution_check(raw, recorded)}
    assert {0, 1, 2} <= set(found)
    assert all(found[i].kind == "scale" for i in range(3))
    assert "normalisation" in found[0].remedy


def test_pc_17_the_right_rows_and_ordinary_differences_pass() -> None:
    raw, recorded = droid_like()
    good = Normalizer(Normalization(method="quantile", statistics=statistics_of(raw)), 4).normalize(raw)
    assert distribution_check(good, recorded) == ()
    assert distribution_check(good[:200] * 2, recorded) == ()
    assert {f.dimension for f in distribution_check(good * 6, recorded)} == {0, 1, 2, 3}


def test_pc_17_a_flipped_gripper_range_and_partial_records_are_compared() -> None:
    rows = np.stack([RNG.uniform(0, 0.1, 500), RNG.uniform(-1, 1, 500)], axis=1)
    (finding,) = distribution_check(rows, Statistics(q01=(0.95, -1.0), q99=(1.0, 1.0)))
    assert (finding.dimension, finding.kind) == (0, "offset")
    assert distribution_check(rows, Statistics(mean=(0.05, 0.0), std=(0.03, 0.6))) == ()
    with pytest.raises(InputError, match="needs q01 and q99"):
        distribution_check(rows, Statistics(min=(0.0, 0.0)))
    with pytest.raises(InputError, match=r"\(N, 2\)"):
        distribution_check(rows[:, :1], Statistics(min=(0.0, 0.0), max=(1.0, 1.0)))
