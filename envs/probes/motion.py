"""Probes that move: the gripper, joints, the axes of position and rotation, and staying put."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.rotations import Rotations
from cosmos_robot.contract import FieldSpec
from cosmos_robot.envs.probes.trial import Finding, NotApplicable, Trial, numbers, verdict
from cosmos_robot.envs.truth import Pose

GRIP_SECONDS, MOVE_STEPS, HOLD_STEPS = 1.0, 10, 20
NEARLY_OPEN = 0.35
"""Where between open (0) and closed (1) a command is tried that a binary gripper would take for open."""
OPEN_SHARE, CLOSED_SHARE = 0.8, 0.2
STILL_METRES, STILL_RADIANS = 0.005, 0.03
LEAST_METRES, LEAST_RADIANS = 0.003, 0.03
SIDEWAYS_SHARE = 0.4
GOAL_SHARE = (0.1, 1.5)
"""What share of the commanded way a hand may have gone: controllers lag, but not tenfold."""


def probe_action_layout(trial: Trial) -> Iterator[Finding]:
    """The command has the width and the range that the contract says."""
    want, have = trial.spec, trial.env.robot
    width = trial.env.action_space.shape
    yield verdict(
        "action_layout",
        "robot.action",
        width == (want.action_width,),
        f"{width[0] if width else 0} numbers",
        f"{want.action_width}: {', '.join(f'{f.name} {f.width}' for f in want.action)}",
    )
    for name in ("action_low", "action_high"):
        said, is_ = getattr(want, name), getattr(have, name)
        yield verdict("action_layout", f"robot.{name}", said == is_, str(is_), str(said))


def probe_hold_still(trial: Trial) -> Iterator[Finding]:
    """No change, or the present pose as target, moves nothing; a target taken for a change, or the reverse, does."""
    trial.start()  # not after some steps of holding: a wrong target would have been reached by then
    before, fingers, joints = trial.truth.hand(), trial.truth.fingers(), trial.truth.joints()
    trial.run(trial.hold(), HOLD_STEPS)
    after = trial.truth.hand()
    way, turn = _way(before, after), np.append(_turn(before, after), trial.truth.joints() - joints)
    drift = float(np.abs(trial.truth.fingers() - fingers).max(initial=0.0))
    turned = float(np.abs(turn).max())
    holds = np.linalg.norm(way) < STILL_METRES and turned < STILL_RADIANS and drift < STILL_METRES
    yield verdict(
        "hold_still",
        "robot.action_reference",
        bool(holds),
        f"{1000 * np.linalg.norm(way):.1f} mm and {turned:.3f} rad in {HOLD_STEPS} steps",
        f"told to stay ({trial.spec.action_reference}): less than {1000 * STILL_METRES:.0f} mm and {STILL_RADIANS} rad",
    )


def probe_gripper(trial: Trial) -> Iterator[Finding]:
    """Open opens and closed closes, measured on the fingers; and what lies between them."""
    gripper = trial.gripper
    full = trial.truth.fully_open()

    def opening(value: float) -> float:
        trial.run(trial.hold(**{name: [value] for name in gripper.fields}), trial.steps(GRIP_SECONDS))
        return trial.truth.opening() / full

    opening(gripper.open_value)
    closed, opened = opening(gripper.closed_value), opening(gripper.open_value)
    for field, share, holds, words in (
        ("open_value", opened, opened > OPEN_SHARE, f"more than {OPEN_SHARE:.0%} open"),
        ("closed_value", closed, closed < CLOSED_SHARE, f"less than {CLOSED_SHARE:.0%} open"),
    ):
        value = getattr(gripper, field)
        yield verdict("gripper", f"robot.gripper.{field}", holds, f"{value:g} leaves the hand {share:.0%} open", words)
    halfway = gripper.open_value + NEARLY_OPEN * (gripper.closed_value - gripper.open_value)
    opening(gripper.closed_value)
    nearly = opening(halfway)
    binary = nearly > OPEN_SHARE
    yield verdict(
        "gripper",
        "robot.gripper.kind",
        binary == (gripper.kind == "binary"),
        f"{halfway:g}, nearer to open, leaves the hand {nearly:.0%} open",
        f"{gripper.kind}: " + ("all the way open" if gripper.kind == "binary" else "partly open"),
    )


def probe_position_axes(trial: Trial) -> Iterator[Finding]:
    """A change along +x, +y or +z moves the hand that way in the frame that the contract names."""
    yield from _axes(trial, "position_axes", "position", LEAST_METRES, "m")


def probe_rotation_axes(trial: Trial) -> Iterator[Finding]:
    """A turn about +x, +y or +z turns the hand that way about the axis of the frame that the contract names."""
    yield from _axes(trial, "rotation_axes", "rotation", LEAST_RADIANS, "rad")


def probe_joints(trial: Trial) -> Iterator[Finding]:
    """Each joint that is told a larger angle turns that way, by that much, and the others stay."""
    fields = [f for f in trial.spec.action if f.kind == "joint"]
    if not fields:
        raise NotApplicable("the contract names no joints among its action fields")
    if sum(f.width for f in fields) != len(trial.truth.joints()):
        raise NotApplicable(f"the simulator knows {len(trial.truth.joints())} joints")
    first = 0
    for field in fields:
        moves = [_turned(trial, field, axis) for axis in range(field.width)]
        right = [_alone(move, first + axis, trial.amount(field)) for axis, move in enumerate(moves)]
        wrong = "; ".join(f"joint {axis} gave {numbers(moves[axis])}" for axis, good in enumerate(right) if not good)
        share = min(move[first + axis] for axis, move in enumerate(moves)) / trial.amount(field)
        yield verdict(
            "joints",
            f"robot.action.{field.name}.unit",
            all(right),
            wrong or f"each went at least {share:.0%} of {trial.amount(field):.1f} {field.unit}",
            "each joint alone, by the angle it was told",
        )
        first += field.width


def _turned(trial: Trial, field: FieldSpec, axis: int) -> NDArray[np.float64]:
    """How far all joints turn when one is told to by a clear amount; the way back is gone too."""
    trial.run(trial.hold(), 2)
    there = trial.moved(field, axis, trial.amount(field))
    back = trial.hold()
    before = trial.truth.joints()
    trial.run(there, trial.steps(MOVE_STEPS / 15))
    after = trial.truth.joints()
    trial.run(back, trial.steps(MOVE_STEPS / 15))
    return after - before


def _alone(move: NDArray[np.float64], joint: int, told: float) -> bool:
    low, high = GOAL_SHARE
    others = np.abs(np.delete(move, joint)).max(initial=0.0)
    return bool(low < move[joint] / told < high and others < SIDEWAYS_SHARE * move[joint])


def _axes(trial: Trial, probe: str, kind: str, least: float, unit: str) -> Iterator[Finding]:
    fields = [f for f in trial.spec.action if f.kind == kind]
    if not fields:
        raise NotApplicable(f"the contract names no {kind} among its action fields")
    for field in fields:
        moves = [_moved(trial, field, axis) for axis in range(3 if kind == "rotation" else field.width)]
        right = all(_along(move, axis, least) for axis, move in enumerate(moves))
        told = "; ".join(f"+{'xyz'[axis]} gave {numbers(move)} {unit}" for axis, move in enumerate(moves))
        yield verdict(
            probe, f"robot.action.{field.name}.frame", right, told, f"each along its own axis of frame {field.frame!r}"
        )
        if right:
            yield from _scale(trial, probe, field, unit, [float(move[axis]) for axis, move in enumerate(moves)])


def _moved(trial: Trial, field: FieldSpec, axis: int) -> NDArray[np.float64]:
    """Metres (3,) moved, or radians (3,) turned, in the field's frame by a command along one axis; the way back is
    gone too."""
    trial.run(trial.hold(), HOLD_STEPS // 4)
    amount = trial.amount(field)
    before = trial.pose(field.frame)
    frame = trial.truth.frames()[field.frame]
    trial.run(trial.moved(field, axis, amount), MOVE_STEPS)
    after = trial.truth.hand().within(frame)
    trial.run(trial.moved(field, axis, -amount), MOVE_STEPS)
    return _way(before, after) if field.kind == "position" else _turn(before, after)


def _scale(trial: Trial, probe: str, field: FieldSpec, unit: str, amounts: list[float]) -> Iterator[Finding]:
    """The unit, where it says how far 1 goes: not a tenth of it, nor more than it."""
    per_step = _unit_per_step(field.unit, unit)
    if per_step is None or trial.spec.action_reference != "per_step":
        return
    told = per_step * trial.amount(field) * MOVE_STEPS
    shares = [amount / told for amount in amounts]
    low, high = GOAL_SHARE
    yield verdict(
        probe,
        f"robot.action.{field.name}.unit",
        all(low < share < high for share in shares),
        f"{numbers(amounts)} {unit} for {told:.2f} {unit} commanded",
        f"{field.unit!r}, of which a hand that lags goes {low:.0%} to {high:.0%}",
    )


def _unit_per_step(text: str, unit: str) -> float | None:
    """``"5 cm per step"`` to 0.05; None if ``text`` is not of that form."""
    found = re.fullmatch(r"([\d.]+) (m|cm|mm|rad|deg) per step", text)
    if found is None:
        return None
    sizes = {"m": ("m", 1.0), "cm": ("m", 0.01), "mm": ("m", 0.001), "rad": ("rad", 1.0), "deg": ("rad", np.pi / 180)}
    kind, size = sizes[found[2]]
    return float(found[1]) * size if kind == unit else None


def _along(move: NDArray[np.float64], axis: int, least: float) -> bool:
    return bool(move[axis] > least and np.abs(np.delete(move, axis)).max() < SIDEWAYS_SHARE * move[axis])


def _way(before: Pose, after: Pose) -> NDArray[np.float64]:
    return after.position - before.position


def _turn(before: Pose, after: Pose) -> NDArray[np.float64]:
    """The turn from one pose to the other as a rotation vector in the axes that both are given in."""
    return Rotations.of(after.matrix @ before.matrix.T, "matrix").to("rotvec")
