"""What every robot is checked for. A new one's test is its constructor:

    run(lambda: make_robot("franka-sim"))

Run it on a real arm only with room around it: it stays where it is, but it takes control.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.errors import InputError, RobotError
from cosmos_robot.hardware.robot import Robot
from cosmos_robot.types import Observation

PERIODS: Final = 8
SAME: Final = 1e-4
"""What a robot may round a command by without a note, in rad or m."""
STILL_RAD: Final = 0.05
"""How far a robot that holds may settle, in rad or m."""


def run(make: Callable[[], Robot]) -> list[str]:
    """Make a robot and run every check on it, in order; returns their names. Raises AssertionError with the sentence of
    the promise that was broken."""
    robot = make()
    try:
        for check in CHECKS.values():
            check(robot)
    finally:
        robot.close()
    return list(CHECKS)


def check_unconnected(robot: Robot) -> None:
    """Before ``connect``, a robot says so instead of hanging or crashing."""
    _raises(lambda: robot.observe("stand"), "observe() before connect()")
    _raises(robot.position, "position() before connect()")


def check_connect(robot: Robot) -> None:
    """``connect`` makes it ready."""
    robot.connect()


def check_observation(robot: Robot) -> None:
    """An observation has exactly the spec's fields and cameras, of their sizes, finite, with instruction and time."""
    before = robot.observe("stand").time
    seen = robot.observe("stand")
    assert isinstance(seen, Observation), f"observe() returned {type(seen).__name__}"
    widths, expected = {n: v.shape for n, v in seen.state.items()}, {f.name: (f.width,) for f in robot.robot.state}
    assert widths == expected, f"state is {widths}, its spec says {expected}"
    assert all(np.isfinite(v).all() for v in seen.state.values()), "state holds numbers that are not finite"
    assert set(seen.images) == {c.name for c in robot.robot.cameras}, f"cameras are {sorted(seen.images)}"
    assert seen.instruction == "stand", "the instruction was not passed on"
    assert np.isfinite(seen.time) and seen.time >= before, "time goes back"


def check_position(robot: Robot) -> None:
    """``position`` is laid out as a command."""
    place = robot.position()
    assert place.shape == (robot.robot.action_width,), (
        f"position is {place.shape}, a command {robot.robot.action_width}"
    )
    assert np.isfinite(place).all(), "position is not finite"


def check_send(robot: Robot) -> None:
    """``send`` returns what was really sent, which is what was asked for unless a note says otherwise."""
    still = _still(robot)
    free = np.isfinite(robot.limits.max_rate) if robot.limits.absolute else np.ones(len(still), bool)
    for _ in range(PERIODS):
        sent = robot.send(still)
        assert sent.values.shape == still.shape and np.isfinite(sent.values).all(), "what was sent is no command"
        assert sent.notes or np.abs(robot.limits.way(still, sent.values)[free]).max(initial=0.0) < SAME, (
            "something else was sent, without a note"
        )
        _wait(robot)


def check_refusals(robot: Robot) -> None:
    """What is not finite or of another width is never sent."""
    for i in range(robot.robot.action_width):
        broken = _still(robot)
        broken[i] = np.nan
        _raises(partial(robot.send, broken), f"send() with NaN in dimension {i}")
    _raises(lambda: robot.send(_still(robot)[:-1]), "send() of a command that is too short")


def check_hold(robot: Robot) -> None:
    """Holding keeps its place."""
    before = robot.position()
    for _ in range(PERIODS):
        robot.hold()
        _wait(robot)
    moved = np.abs(robot.limits.way(before, robot.position()))[_arm(robot)]
    assert not moved.size or moved.max() < STILL_RAD, f"moved by {moved.max():.3f} while it was to hold"


def check_stop_twice(robot: Robot) -> None:
    """``stop`` can be called twice, and what comes after works."""
    robot.stop()
    robot.stop()
    robot.observe("stand")
    robot.send(_still(robot))
    robot.hold()
    robot.stop()


def check_recover(robot: Robot) -> None:
    """``recover`` without a fault leaves a robot that works."""
    robot.recover()
    robot.send(_still(robot))
    robot.stop()


def check_close_twice(robot: Robot) -> None:
    """``close`` can be called twice."""
    robot.close()
    robot.close()


CHECKS: Final[dict[str, Callable[[Robot], None]]] = {
    "unconnected": check_unconnected,
    "connect": check_connect,
    "observation": check_observation,
    "position": check_position,
    "send": check_send,
    "refusals": check_refusals,
    "hold": check_hold,
    "stop twice": check_stop_twice,
    "recover": check_recover,
    "close twice": check_close_twice,
}


def _still(robot: Robot) -> NDArray[np.float64]:
    """A command that changes nothing."""
    place = robot.position()
    return place if not robot.limits.absolute else np.clip(place, robot.limits.low, robot.limits.high)


def _arm(robot: Robot) -> NDArray[np.bool_]:
    return np.array([f.kind != "gripper" for f in robot.robot.action for _ in range(f.width)])


def _wait(robot: Robot) -> None:
    time.sleep(1 / robot.robot.rate_hz)


def _raises(call: Callable[[], object], what: str) -> None:
    try:
        call()
    except (InputError, RobotError):
        return
    raise AssertionError(f"{what} was not refused")
