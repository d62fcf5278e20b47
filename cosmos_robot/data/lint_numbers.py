"""Checks on states, actions and times. Each takes the evidence and yields findings."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.statistics import lint_statistics, statistics_of
from cosmos_robot.data.evidence import QUANTITIES, Evidence, listed, spread
from cosmos_robot.data.findings import Finding

# A value this many spreads (5 % to 95 %) from the median is an outlier: 20 standard deviations of a normal variable.
OUTLIER_SPREADS = 6.0
# Where the middle nine tenths are one value, the standard deviation stands in; sparse commands reach ten of it.
OUTLIER_DEVIATIONS = 20.0
# A row is idle if no dimension of the state moves by this share of its spread.
IDLE_STEP = 0.001
IDLE_SHARE = 0.5
# Real clocks drift by less; a dropped frame is a step of 2 intervals.
RATE_TOLERANCE = 0.05
GAP = 1.5
# An episode recorded in other units (mm for m, degrees for radians) differs by more.
SCALE_JUMP = 20.0
STATISTICS_TOLERANCE = 0.02


def check_episodes(evidence: Evidence, lengths: Mapping[int, int]) -> Iterator[Finding]:
    """Rows against the dataset's own tables, empty and one-row episodes, missing instructions, widths."""
    silent = [r.where for _, r in evidence.episodes if not r.instruction.strip()]
    if silent:
        yield Finding(
            "no-instruction",
            "warning",
            listed(silent),
            "no task text is stored",
            "give one, e.g. data convert --instruction",
        )
    for index, r in evidence.episodes:
        if len(r) != lengths[index] or len(r.state) != len(r):
            what = f"{lengths[index]} rows in the table, {len(r)} actions and {len(r.state)} states in the data"
            yield Finding("row-count", "error", r.where, what, "record it again, or correct the table")
        if len(r) == 0:
            yield Finding("empty-episode", "error", r.where, "no rows", "delete the episode")
        elif len(r) == 1:
            yield Finding("short-episode", "warning", r.where, "one row: no motion can be learned from it", "delete it")
        for quantity in QUANTITIES:
            width = evidence.of(r, quantity).shape[1]
            if len(r) and width != evidence.widths[quantity]:
                what = f"{quantity} has width {width}, most episodes have {evidence.widths[quantity]}"
                yield Finding("width", "error", r.where, what, "remove the episode or record it again with one layout")


def check_finite(evidence: Evidence) -> Iterator[Finding]:
    """NaN and infinity."""
    for _, r in evidence.episodes:
        for quantity in QUANTITIES:
            bad = np.argwhere(~np.isfinite(evidence.of(r, quantity)))
            if len(bad):
                row, dimension = map(int, bad[0])
                what = f"{len(bad)} values are NaN or infinite, first in {evidence.label(quantity, dimension)}"
                yield Finding(
                    "not-finite", "error", f"{r.where} row {row}", what, "cut these rows out or drop the episode"
                )


def check_times(evidence: Evidence) -> Iterator[Finding]:
    """Order, gaps and rate of time stamps, and of any other clock, against the frame rate."""
    for _, r in evidence.episodes:
        if r.times is not None and len(r.times) > 1:
            yield from _stamps(r.where, r.times, evidence.fps)
    if evidence.fps is None:
        yield Finding("no-rate", "warning", "dataset", "the files name no frame rate", "state it, e.g. with --fps")
        return
    for name in sorted({name for _, r in evidence.episodes for name in r.clocks}):
        steps = [np.diff(r.clocks[name]) for _, r in evidence.episodes if len(r) > 1 and name in r.clocks]
        rate = _rate(np.concatenate(steps)) if steps else None
        if rate and abs(rate / evidence.fps - 1) > RATE_TOLERANCE:
            what = f"the dataset says {evidence.fps:g} rows per second, the clock {name!r} {rate:.4g}"
            yield Finding(
                "rate", "error", f"column {name}", what, f"set fps to {rate:.4g}, or resample to {evidence.fps:g}"
            )


def _stamps(where: str, times: NDArray[np.float64], fps: float | None) -> Iterator[Finding]:
    steps = np.diff(times)
    back = np.flatnonzero(steps <= 0)
    if len(back):
        row = int(back[0]) + 1
        what = f"time goes from {times[row - 1]:.4f} to {times[row]:.4f} s"
        yield Finding("time-order", "error", f"{where} row {row}", what, "sort or re-stamp the rows")
        return
    usual = float(np.median(steps))
    if fps and abs(usual * fps - 1) > RATE_TOLERANCE:
        what = f"steps of {usual:.4f} s are {1 / usual:.4g} rows per second, the dataset says {fps:g}"
        yield Finding("rate", "error", where, what, f"set fps to {1 / usual:.4g} or re-stamp the rows")
    gaps = np.flatnonzero(steps > GAP * usual)
    if len(gaps):
        row = int(gaps[0]) + 1
        what = f"{len(gaps)} gaps, the first of {steps[row - 1]:.4f} s where steps are {usual:.4f} s"
        yield Finding("time-gap", "error", f"{where} row {row}", what, "split the episode there, or record it again")


def _rate(steps: NDArray[np.float64]) -> float | None:
    """Rows per second from the steps of a clock in s, ms, us or ns, whichever gives 1 to 1000; None if none does."""
    usual = float(np.median(steps))
    rates = [unit / usual for unit in (1.0, 1e3, 1e6, 1e9)] if usual > 0 else []
    return next((rate for rate in rates if 1 <= rate <= 1000), None)


def check_dimensions(evidence: Evidence) -> Iterator[Finding]:
    """Constant and near-constant dimensions, outliers and lone spikes."""
    for quantity in QUANTITIES:
        rows = evidence.rows(quantity)
        if len(rows) < 2:
            continue
        for found in lint_statistics(statistics_of(rows)):
            value = rows[:, found.dimension]
            code = "constant" if value.min() == value.max() else "near-constant"
            where = evidence.label(quantity, found.dimension)
            yield Finding(code, "warning", where, found.message.partition(": ")[2], found.remedy)
        yield from _outliers(evidence, quantity, rows)


def _outliers(evidence: Evidence, quantity: str, rows: NDArray[np.float64]) -> Iterator[Finding]:
    middle, width = np.median(rows, axis=0), spread(rows)
    limit = np.where(width > 0, OUTLIER_SPREADS * width, OUTLIER_DEVIATIONS * rows.std(axis=0))
    for d in range(rows.shape[1]):
        if limit[d] == 0 or len(np.unique(rows[:, d])) <= 3:  # commands with few values have no outliers
            continue
        hits = []
        for _, r in evidence.whole():
            wild = np.flatnonzero(abs(evidence.of(r, quantity)[:, d] - middle[d]) > limit[d])
            hits += [(r.where, int(row), float(evidence.of(r, quantity)[row, d])) for row in wild]
        if hits:
            place, row, value = hits[0]
            what = f"{len(hits)} outliers in {evidence.label(quantity, d)}, the first {value:.4g}; the median is "
            what += f"{middle[d]:.4g}, nine tenths lie within {width[d]:.4g}"
            yield Finding(
                "outlier", "warning", f"{place} row {row}", what, "cut the rows out, or use quantiles and a clamp"
            )


def check_idle(evidence: Evidence) -> Iterator[Finding]:
    """Episodes that mostly stand still."""
    shares = idle_shares(evidence)
    still = {index: share for index, share in shares.items() if share > IDLE_SHARE}
    if still:
        where = listed([r.where for index, r in evidence.whole() if index in still])
        what = f"the state stands still in up to {max(still.values()):.0%} of the rows"
        yield Finding("idle", "warning", where, what, "cut the still rows, or the policy learns to wait")


def idle_shares(evidence: Evidence) -> dict[int, float]:
    """Per episode, the share of steps in which no dimension of the state moves."""
    width = evidence.motion()
    moving = width > 0
    if not moving.any():
        return {}
    found = {}
    for index, r in evidence.whole():
        steps = abs(np.diff(r.state[:, moving].astype(float), axis=0)) / width[moving]
        found[index] = float((steps < IDLE_STEP).all(axis=1).mean()) if len(steps) else 0.0
    return found


def check_duplicates(evidence: Evidence) -> Iterator[Finding]:
    """Episodes with the same numbers."""
    groups = defaultdict(list)
    for _, r in evidence.whole():
        digest = hashlib.blake2b(digest_size=16)
        for quantity in QUANTITIES:
            digest.update(np.round(evidence.of(r, quantity).astype(np.float64), 6).tobytes())
        groups[digest.digest()].append(r.where)
    for same in groups.values():
        if len(same) > 1:
            what = "the same states and actions, row by row"
            yield Finding("duplicate", "warning", listed(same), what, "keep one, or it counts more than once")


def check_scale(evidence: Evidence) -> Iterator[Finding]:
    """Episodes whose values are all of another size, as when somebody changed the unit."""
    episodes = list(evidence.whole())
    if len(episodes) < 3:
        return
    for quantity in QUANTITIES:
        sizes = np.array([np.quantile(abs(evidence.of(r, quantity)), 0.9, axis=0) for _, r in episodes])
        usual = np.median(sizes, axis=0)
        known = usual > 1e-6
        if not known.any():
            continue
        ratios = np.median(sizes[:, known] / usual[known], axis=1)
        for (_, r), ratio in zip(episodes, ratios, strict=True):
            if ratio > SCALE_JUMP or ratio < 1 / SCALE_JUMP:
                what = f"the {quantity} is {ratio:.3g} times the size of other episodes'"
                yield Finding("scale", "error", r.where, what, "convert its unit (mm or degrees?) or drop it")


def check_statistics(evidence: Evidence, stored: Mapping[str, Mapping[str, NDArray[np.float64]]]) -> Iterator[Finding]:
    """The dataset's own statistics against its rows."""
    for quantity, values in stored.items():
        rows = evidence.rows(quantity)
        if not len(rows):
            continue
        scale = np.maximum(rows.max(axis=0) - rows.min(axis=0), 1e-6)
        for name in ("min", "max", "mean", "std"):
            actual = getattr(rows, name)(axis=0)
            known = values.get(name)
            if known is None:
                continue
            off = abs(known - actual) / scale if known.shape == actual.shape else np.array([np.inf])
            if off.max() > STATISTICS_TOLERANCE:
                d = int(off.argmax())
                told = f"{known[d]:.4g}" if known.shape == actual.shape else f"of width {known.size}"
                what = f"{name} of {evidence.label(quantity, d)} is {told} in the file, {actual[d]:.4g} in the rows"
                yield Finding("statistics", "error", "stored statistics", what, "compute them again: data stats")
                break
