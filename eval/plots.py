"""Actions over time as inline SVG: what was predicted at each decision, and what was run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import FieldSpec, RobotSpec

WIDTH, HEIGHT, LEFT, GAP = 760, 64, 96, 8


def action_names(fields: Sequence[FieldSpec]) -> list[str]:
    """One label per action dimension: ``position x``, ``joints 3``, ``gripper``."""
    names = []
    for field in fields:
        if field.width == 1:
            names.append(field.name)
        elif field.width == 3:
            names += [f"{field.name} {axis}" for axis in "xyz"]
        else:
            names += [f"{field.name} {i}" for i in range(field.width)]
    return names


def plot_actions(
    robot: RobotSpec, decisions: Sequence[tuple[int, NDArray[np.float64]]], executed: NDArray[np.float64]
) -> str:
    """An SVG with one panel per action dimension.

    decisions: (step at which it was made, predicted rows (T, D)). executed: (n, D) rows that were run, from step 0.
    Thin lines are predictions, the thick one is what was run; vertical lines mark the decisions.
    """
    names = action_names(robot.action)
    last = max([len(executed), *(step + len(rows) for step, rows in decisions)])
    panels = []
    for dim, name in enumerate(names):
        values = [executed[:, dim], *(rows[:, dim] for _, rows in decisions)]
        low, high = _range(robot, np.concatenate(values))
        panels.append(_panel(dim, name, low, high, last, decisions, executed))
    height = len(names) * (HEIGHT + GAP) + 24
    axis = _time_axis(last, robot.rate_hz, height)
    return (
        f'<svg class="actions" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="predicted and executed actions over time">{"".join(panels)}{axis}</svg>'
    )


def _range(robot: RobotSpec, values: NDArray[np.float64]) -> tuple[float, float]:
    low = min(values.min(), np.inf if robot.action_low is None else robot.action_low)
    high = max(values.max(), -np.inf if robot.action_high is None else robot.action_high)
    return (float(low), float(high)) if high > low else (float(low) - 1, float(high) + 1)


def _panel(dim, name, low, high, last, decisions, executed) -> str:
    top = dim * (HEIGHT + GAP)

    def points(start: int, values: NDArray[np.float64]) -> str:
        return " ".join(
            f"{_x(start + i, last):.1f},{top + HEIGHT * (high - v) / (high - low):.1f}" for i, v in enumerate(values)
        )

    parts = [
        f'<rect class="panel" x="{LEFT}" y="{top}" width="{WIDTH - LEFT}" height="{HEIGHT}"/>',
        f'<text class="name" x="{LEFT - 10}" y="{top + HEIGHT / 2 + 4}">{escape(name)}</text>',
        f'<text class="bound" x="{LEFT - 4}" y="{top + 8}">{high:.3g}</text>',
        f'<text class="bound" x="{LEFT - 4}" y="{top + HEIGHT}">{low:.3g}</text>',
    ]
    if low < 0 < high:
        zero = top + HEIGHT * high / (high - low)
        parts.append(f'<line class="zero" x1="{LEFT}" x2="{WIDTH}" y1="{zero:.1f}" y2="{zero:.1f}"/>')
    for step, rows in decisions:
        x = _x(step, last)
        parts.append(f'<line class="decision" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + HEIGHT}"/>')
        parts.append(f'<polyline class="predicted" points="{points(step, rows[:, dim])}"/>')
    parts.append(f'<polyline class="executed" points="{points(0, executed[:, dim])}"/>')
    return "".join(parts)


def _time_axis(last: int, rate_hz: float, height: int) -> str:
    seconds = last / rate_hz
    tick = next((t for t in (0.5, 1, 2, 5, 10, 20) if seconds / t <= 12), 60)
    labels = []
    for i in range(int(seconds / tick) + 1):
        x = _x(i * tick * rate_hz, last)
        labels.append(f'<text class="tick" x="{x:.1f}" y="{height - 6}">{i * tick:g} s</text>')
    return "".join(labels)


def _x(step: float, last: int) -> float:
    return LEFT + (WIDTH - LEFT) * step / max(last, 1)
