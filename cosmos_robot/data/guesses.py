"""What the conventions of a dataset look like, from its numbers and pictures, with the evidence.

These are guesses: a contract is written by somebody who knows, and this is what to compare it with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.data.evidence import Evidence, correlation
from cosmos_robot.data.findings import Finding, Guess
from cosmos_robot.data.lint_pictures import CameraLook

LAGS = range(0, 13, 2)
CLEAR = 0.35
GRIPPER_REMEDY = "negate its gripper commands, or drop it"


def guess_conventions(evidence: Evidence, looks: Sequence[CameraLook]) -> list[Guess]:
    """One guess per topic: gripper, reference of the actions, their scale, orientation of each camera."""
    return [
        guess_gripper(evidence),
        guess_reference(evidence),
        guess_scale(evidence),
        *guess_orientations(evidence, looks),
    ]


def guess_gripper(evidence: Evidence) -> Guess:
    """Whether a higher gripper command opens or closes, from the fingers' width a moment later."""
    command = _gripper_dimension(evidence)
    if command is None:
        return Guess("gripper", "unknown", 0.0, "no action dimension is named after a gripper, and none has two values")
    widths = {index: _width(evidence, r.state) for index, r in evidence.whole()}
    if any(width is None for width in widths.values()):
        what = "no state dimension is named after a gripper, so no width to compare with"
        return Guess("gripper", "unknown", 0.0, f"command in {evidence.label('action', command)}; {what}")
    r, lag = _pooled(evidence, command)
    evidence_text = (
        f"correlation of {evidence.label('action', command)} with the fingers' width {lag} rows later: {r:+.2f} over "
        f"{len(widths)} episodes; commands span {_span(evidence.rows('action')[:, command])}"
    )
    if abs(r) < CLEAR:
        return Guess("gripper", "unknown", abs(r), evidence_text)
    return Guess("gripper", f"high commands {'open' if r > 0 else 'close'}", abs(r), evidence_text)


def check_gripper(evidence: Evidence) -> Iterator[Finding]:
    """Episodes whose gripper command means the opposite of the others'."""
    command = _gripper_dimension(evidence)
    if command is None:
        return
    signs = []
    for _, recording in evidence.whole():
        width = _width(evidence, recording.state)
        if width is not None:
            signs.append((recording.where, _best([(recording.actions[:, command], width)])[0]))
    clear = [(where, r) for where, r in signs if abs(r) > CLEAR]
    if len(clear) < 3:
        return
    usual = float(np.sign(np.median([r for _, r in clear])))
    for where, r in clear:
        if np.sign(r) == -usual:
            what = f"its gripper command and the fingers' width agree by {r:+.2f}, the other way round in most episodes"
            yield Finding("gripper-mixed", "error", where, what, GRIPPER_REMEDY)


def guess_reference(evidence: Evidence) -> Guess:
    """Whether actions are targets (like the next state) or changes (like the step of the state)."""
    pairs = [(r.actions[:-1], r.state[:-1], r.state[1:]) for _, r in evidence.whole() if len(r) > 2]
    if not pairs:
        return Guess("reference", "unknown", 0.0, "no episode of three rows")
    actions, before, after = (np.concatenate(parts).astype(float) for parts in zip(*pairs, strict=True))
    target, step = _best_matches(actions, after), _best_matches(actions, after - before)
    text = (
        f"best correlation, median over action dimensions: {target:.2f} with the next state, {step:.2f} with its step"
    )
    if max(target, step) < CLEAR:
        return Guess("reference", "unknown", max(target, step), text)
    same = actions.shape[1] == after.shape[1] and float(np.median(abs(actions - after))) < 0.05 * float(np.ptp(after))
    if target > step and same:
        return Guess("reference", "absolute targets in the units of the state", target, f"{text}; the values agree too")
    return Guess("reference", "absolute targets" if target > step else "changes per step", abs(target - step), text)


def guess_scale(evidence: Evidence) -> Guess:
    """Whether actions look normalised, like a controller's -1..1, or in physical units."""
    rows = evidence.rows("action")
    if not len(rows):
        return Guess("scale", "unknown", 0.0, "no rows")
    low, high = rows.min(axis=0), rows.max(axis=0)
    text = f"actions lie in {low.min():.3g} to {high.max():.3g}"
    reach = float((np.maximum(abs(low), abs(high)) > 0.9).mean())
    if max(abs(low).max(), abs(high).max()) > 1.0001:
        return Guess("scale", "physical units: values leave -1..1", 1.0, text)
    if reach > 0.5:
        what = f"{text}; {reach:.0%} of the dimensions reach 0.9"
        return Guess("scale", "normalised, or a controller's range -1..1", reach, what)
    return Guess("scale", "physical units, or a normaliser was never applied", 1 - reach, f"{text}; few reach 0.9")


def guess_orientations(evidence: Evidence, looks: Sequence[CameraLook]) -> Iterator[Guess]:
    """Per camera: does what moves in the picture go up when the arm does?"""
    height = next((d for d, name in enumerate(evidence.names["state"]) if _is_height(name)), None)
    states = {r.where: r.state for _, r in evidence.whole()}
    for camera in sorted({look.camera for look in looks}):
        topic = f"orientation of {camera}"
        if "wrist" in camera or "hand" in camera:
            yield Guess(topic, "unknown", 0.0, "a camera on the hand moves with it")
        elif height is None:
            yield Guess(topic, "unknown", 0.0, "no state dimension is named as a height (z)")
        else:
            mine = [look for look in looks if look.camera == camera and look.where in states]
            yield _orientation(topic, [_up_and_moved(look, states[look.where][:, height]) for look in mine])


def _orientation(topic: str, parts: Sequence[tuple[NDArray, NDArray]]) -> Guess:
    heights, places = (np.concatenate([p[i] for p in parts]) if parts else np.zeros(0) for i in (0, 1))
    r = correlation(heights, places) if len(heights) > 10 else 0.0
    text = f"correlation of the arm's height with how far down the picture changes: {r:+.2f} over {len(heights)} pairs"
    if abs(r) < CLEAR:
        return Guess(topic, "unknown", abs(r), text)
    if r < 0:
        return Guess(topic, "upright, or mirrored left to right", abs(r), text)
    return Guess(topic, "upside down: flipped, or turned by 180 degrees", abs(r), text)


def _up_and_moved(look: CameraLook, height: NDArray[np.floating]) -> tuple[NDArray, NDArray]:
    """Heights of the arm between successive pictures, and where these changed, each without its episode's mean."""
    moved, between = np.asarray(look.moved), height[look.rows].astype(float)
    middle = (between[1:] + between[:-1]) / 2
    seen = np.isfinite(moved)
    if not seen.any():
        return np.zeros(0), np.zeros(0)
    return middle[seen] - middle[seen].mean(), moved[seen] - moved[seen].mean()


def _is_height(name: str) -> bool:
    return name.lower() == "z" or (name.lower().endswith((".z", "_z", "pos.2", "position.2")) and "quat" not in name)


def _gripper_dimension(evidence: Evidence) -> int | None:
    named = [d for d, name in enumerate(evidence.names["action"]) if "grip" in name.lower()]
    if named:
        return named[0]
    rows = evidence.rows("action")
    two = [d for d in range(rows.shape[1]) if len(rows) and len(np.unique(rows[:, d])) == 2]
    return two[-1] if two else None


def _width(evidence: Evidence, state: NDArray[np.floating]) -> NDArray[np.floating] | None:
    """The opening of the fingers (N,): the one gripper dimension, or the distance of two that move apart."""
    named = [d for d, name in enumerate(evidence.names["state"]) if "grip" in name.lower()]
    if not named:
        return None
    if len(named) > 1 and correlation(state[:, named[0]], state[:, named[1]]) < 0:
        return state[:, named[0]] - state[:, named[1]]
    return state[:, named[0]]


def _pooled(evidence: Evidence, command: int) -> tuple[float, int]:
    parts = [(r.actions[:, command], _width(evidence, r.state)) for _, r in evidence.whole()]
    return _best([(u, w) for u, w in parts if w is not None])


def _best(parts: Sequence[tuple[NDArray, NDArray]]) -> tuple[float, int]:
    """The strongest correlation of commands with widths over the lags, and its lag."""
    found = []
    for lag in LAGS:
        usable = [(u[: len(u) - lag], w[lag:]) for u, w in parts if len(u) > lag + 2]
        if usable:
            u, w = (np.concatenate(side) for side in zip(*usable, strict=True))
            found.append((correlation(u, w), lag))
    return max(found, key=lambda pair: abs(pair[0]), default=(0.0, 0))


def _best_matches(actions: NDArray[np.float64], columns: NDArray[np.float64]) -> float:
    """Per action dimension the best absolute correlation with any column; their median."""
    best = [
        max((abs(correlation(actions[:, a], columns[:, c])) for c in range(columns.shape[1])), default=0.0)
        for a in range(actions.shape[1])
    ]
    return float(np.median(best)) if best else 0.0


def _span(values: NDArray[np.float64]) -> str:
    few = np.unique(values)
    return " and ".join(f"{v:g}" for v in few) if len(few) <= 3 else f"{few[0]:.3g} to {few[-1]:.3g}"
