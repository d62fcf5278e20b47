"""How far predicted commands are from recorded ones, in the robot's units, and what knows nothing would score.

Axis legend: N moments, T chunk steps, D action width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.layouts import action_layout, state_layout
from cosmos_robot.contract import RobotSpec
from cosmos_robot.data.bridge import column_names
from cosmos_robot.data.episodes import Episode
from cosmos_robot.policies.base import Policy
from cosmos_robot.types import Observation

AT_ONCE = 16
DRAWS = 2000
VARIES = 0.01
"""A column stands still where the mean command misses it by less than this share of what it misses over all data."""


def observation_of(robot: RobotSpec, episode: Episode, row: int, stride: int = 1) -> Observation:
    """What the robot saw at ``row`` of a recorded episode."""
    layout, vector = state_layout(robot), episode.state[row].astype(np.float64)
    return Observation(
        {name: frames[row] for name, frames in episode.images.items()},
        {field.name: vector[layout.columns(field.name)] for field in robot.state},
        episode.instruction,
        row * stride / robot.rate_hz,
    )


def predicted(policy: Policy, episode: Episode, seed: int, rows: Sequence[int] | None = None) -> NDArray[np.float64]:
    """The policy's chunks (N, T, D) at ``rows`` (all by default) of a recorded episode."""
    rows = range(len(episode)) if rows is None else rows
    seen = [observation_of(policy.contract.robot, episode, row) for row in rows]
    chunks = []
    for first in range(0, len(seen), AT_ONCE):
        part = seen[first : first + AT_ONCE]
        chunks += policy.act(part, [seed + first + i for i in range(len(part))])
    return np.stack([chunk.values for chunk in chunks])


def column_errors(chunks: NDArray[np.floating], episode: Episode) -> NDArray[np.float64]:
    """Mean absolute error (D,) over the valid commands of all rows, column by column: these have different units."""
    return np.abs(chunks - episode.actions)[episode.valid].mean(axis=0, dtype=np.float64)


def mean_command(rows: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean (D,) of commands (N, D), and the mean absolute error (D,) of giving it always."""
    mean = rows.mean(axis=0, dtype=np.float64)
    return mean, np.abs(rows - mean).mean(axis=0)


@dataclass(frozen=True)
class Ratio:
    """One column's error as a share of another's. share: None where the column stands still, so nothing is missed by
    knowing nothing. than: whose error it is compared with."""

    column: str
    error: float
    other: float
    share: float | None
    than: str

    @property
    def told(self) -> str:
        """In words."""
        if self.share is None:
            return f"{self.column}: {self.error:.4g}, not compared: it stands still"
        return f"{self.column}: {self.error:.4g}, {self.share:.2f} of what {self.than!r} misses ({self.other:.4g})"


def column_ratios(
    robot: RobotSpec,
    mine: Sequence[float],
    others: Mapping[str, Sequence[float]],
    constant: Sequence[float],
    usual: Sequence[float],
) -> tuple[Ratio, ...]:
    """Errors ``mine`` (D,) against the best of ``others`` in each column of the robot's commands.

    constant: what the mean command misses on the same rows; usual: what it misses over all training episodes. Together
    they tell columns that stand still.
    """
    found = []
    for i, name in enumerate(n for field in robot.action for n in column_names(field)):
        than = min(others, key=lambda other, i=i: others[other][i])
        best = float(others[than][i])
        moves = best > 0 and constant[i] > VARIES * usual[i]
        found.append(Ratio(name, float(mine[i]), best, float(mine[i]) / best if moves else None, than))
    return tuple(found)


def worst_of(ratios: Sequence[Ratio]) -> Ratio | None:
    """The column with the largest share, None where all stand still."""
    return max((r for r in ratios if r.share is not None), key=lambda r: r.share or 0.0, default=None)


@dataclass(frozen=True)
class Error:
    """A mean absolute error per column (D,) and over all, with its 95 % interval over episodes, None for one. That over
    all means something only where all columns have one unit."""

    name: str
    columns: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None

    @property
    def told(self) -> str:
        """In words."""
        if self.low is None or self.high is None:
            return f"{self.mean:.4g} (one episode, so no interval)"
        return f"{self.mean:.4g} ({self.low:.4g} to {self.high:.4g})"


def error_of(name: str, parts: Sequence[tuple[NDArray[np.floating], Episode, Sequence[int]]], execute: int) -> Error:
    """The error of the first ``execute`` commands of chunks, given for each episode with the rows they stand at.

    The interval is the bootstrap's over episodes, since moments of one episode are alike; with one episode it is none.
    """
    each = []
    for chunks, episode, rows in parts:
        valid = episode.valid[list(rows), :execute]
        error = np.abs(chunks[:, :execute] - episode.actions[list(rows), :execute])
        each.append(error[valid].mean(axis=0))
    columns = np.array(each)
    means = columns.mean(axis=1)
    drawn = np.random.default_rng(0).choice(means, (DRAWS, len(means))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist() if len(means) > 1 else (None, None)
    return Error(name, tuple(columns.mean(axis=0).tolist()), float(means.mean()), low, high)


def standing(robot: RobotSpec, episode: Episode, rows: Sequence[int], chunk: int) -> NDArray[np.float64]:
    """Chunks (N, T, D) that leave the robot where it is: its state as absolute commands where it has such a field, no
    change where commands are changes; 0 for what neither says."""
    state, action = state_layout(robot), action_layout(robot)
    out = np.zeros((len(rows), chunk, robot.action_width))
    if robot.action_reference != "absolute":
        return out
    known = {field.name: field for field in robot.state}
    for field in robot.action:
        twin = known.get(field.name)
        if twin is not None and (twin.width, twin.unit) == (field.width, field.unit):
            out[:, :, action.columns(field.name)] = episode.state[list(rows)][:, None, state.columns(field.name)]
    return out
