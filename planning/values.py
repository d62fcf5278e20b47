"""From many values of one candidate to one number, and from one number each to a choice. Pure functions.

Aggregations, by name (Cosmos Policy, arXiv 2601.16163, and NVlabs/cosmos-policy ``aggregate_value_predictions``):

- ``average``: the mean. ``median``: the middle value.
- ``lcb``: mean less one standard deviation (of a sample), not below 0; not a number for a single value.
- ``success_vote``: the share of values above ``THRESHOLD``.
- ``majority_mean``: the mean of those above it if they are at least half, else 0, as the public code has it.
- ``majority_mean_paper``: the mean of the majority, be it above or not, as the paper has it; half counts as above.

A value that is no finite number: ``propagate`` does what the public code does (it makes a mean no number, and counts as
not above the threshold); ``drop`` leaves it out, and without any value the result is no number. What is no number is
never chosen, except under ``published``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.errors import InputError, UnknownNameError

Aggregation = Literal["average", "median", "lcb", "success_vote", "majority_mean", "majority_mean_paper"]
NanRule = Literal["drop", "propagate"]
TieRule = Literal["first", "base", "published"]

THRESHOLD: Final = 0.05
"""A value above it predicts success."""


def aggregate(
    values: ArrayLike, how: str = "majority_mean_paper", *, nan: NanRule = "drop", threshold: float = THRESHOLD
) -> NDArray[np.float64]:
    """(M, ...) values of M members to (...) one each. Raises UnknownNameError for ``how``, InputError without members.

    The threshold is compared in float32, as values leave a model.
    """
    if how not in _RULES:
        raise UnknownNameError("value aggregation", how, _RULES)
    members = np.asarray(values, dtype=np.float64)
    if members.ndim == 0 or len(members) == 0:
        raise InputError(f"aggregate: expected at least one value in the first axis, got shape {members.shape}")
    if nan == "propagate":
        return np.asarray(_RULES[how](members, threshold))
    columns = members.reshape(len(members), -1).T
    kept = [column[np.isfinite(column)] for column in columns]
    found = [float(_RULES[how](column, threshold)) if len(column) else np.nan for column in kept]
    return np.array(found).reshape(members.shape[1:])


def choose(scores: ArrayLike, ties: str = "first") -> int | None:
    """The index of the best of (N,) ``scores``; None where nothing is a number.

    ties: ``first`` takes the first of the best. ``base`` keeps index 0, the plain policy's own candidate, unless
    another is strictly better, and takes the first of the best otherwise. ``published`` begins with index 0 whatever
    it is and moves on to what is strictly better: a base that is no number then wins, a fault of the public server.
    """
    if ties not in get_args(TieRule):
        raise UnknownNameError("rule for ties", ties, get_args(TieRule))
    found = np.asarray(scores, dtype=np.float64)
    if ties == "published":
        best = 0
        for i, score in enumerate(found):
            best = i if score > found[best] else best
        return best if len(found) else None
    usable = np.where(np.isfinite(found), found, -np.inf)
    if not len(found) or not np.isfinite(usable).any():
        return None
    best = int(np.argmax(usable))
    return 0 if ties == "base" and usable[0] == usable[best] else best


def member_calls(most_steps: int, members: int, seed: int) -> list[tuple[int, int]]:
    """(sampler steps, seed) of each member of a published ensemble: steps spread evenly from 1 to ``most_steps``,
    whole numbers by cutting, and seeds counted up from ``seed``. Raises InputError unless both are at least 1."""
    if most_steps < 1 or members < 1:
        raise InputError(f"ensemble: expected at least 1 step and 1 member, got {most_steps} and {members}")
    steps = [most_steps] if members == 1 else [int(s) for s in np.linspace(1, most_steps, members)]
    return [(count, seed + i) for i, count in enumerate(steps)]


def disagreement(values: Sequence[ArrayLike]) -> float:
    """Standard deviation over all finite values of all candidates; 0 with fewer than two of them."""
    every = np.concatenate([np.ravel(np.asarray(v, dtype=np.float64)) for v in values] or [np.zeros(0)])
    finite = every[np.isfinite(every)]
    return float(finite.std()) if len(finite) > 1 else 0.0


def _above(members: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
    return np.asarray(members.astype(np.float32) > np.float32(threshold))


def _mean_of(members: NDArray[np.float64], which: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean over the first axis of those in ``which``; 0 where there is none."""
    count = which.sum(axis=0)
    total = np.where(which, members, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.zeros_like(total), where=count > 0))


def _lcb(members: NDArray[np.float64], threshold: float) -> NDArray[np.float64]:
    if len(members) < 2:
        return np.full(members.shape[1:], np.nan)
    return np.asarray(np.maximum(members.mean(axis=0) - members.std(axis=0, ddof=1), 0.0))


def _majority(members: NDArray[np.float64], threshold: float, lost: bool) -> NDArray[np.float64]:
    """lost: whether a majority that predicts failure is averaged too."""
    above = _above(members, threshold)
    won = 2 * above.sum(axis=0) >= len(members)
    return np.asarray(np.where(won, _mean_of(members, above), _mean_of(members, ~above) if lost else 0.0))


_RULES: Mapping[str, Callable[[NDArray[np.float64], float], NDArray[np.float64]]] = {
    "average": lambda v, t: np.asarray(v.mean(axis=0)),
    "median": lambda v, t: np.asarray(np.median(v, axis=0)),
    "lcb": _lcb,
    "success_vote": lambda v, t: np.asarray(_above(v, t).mean(axis=0)),
    "majority_mean": lambda v, t: _majority(v, t, lost=False),
    "majority_mean_paper": lambda v, t: _majority(v, t, lost=True),
}
AGGREGATIONS: tuple[str, ...] = tuple(_RULES)
