"""A robot driven for a while by a policy whose path is known, through a network that is made slow and unreliable.

The policy turns two joints of each arm on a circle about where it began, at a steady speed, and works the gripper now
and then. It is a function of what it sees, and of the commands given with the question: a robot that had to wait goes
on where it stands. What is measured is the loop: ticks missed, their jitter, holds, the gate, the path.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import RobotSpec
from cosmos_robot.errors import InputError
from cosmos_robot.hardware.asking import FuturePending, Pending
from cosmos_robot.hardware.chunks import Scheduler, Strategy
from cosmos_robot.hardware.clock import MonotonicClock, before_others
from cosmos_robot.hardware.gate import Gate
from cosmos_robot.hardware.loop import ControlLoop, LoopReport, LoopSettings, Tick
from cosmos_robot.hardware.reporting import facts
from cosmos_robot.hardware.robot import Robot
from cosmos_robot.types import ActionChunk, Observation

Array = NDArray[np.float64]
PAUSE_SHARE: Final = 0.25
"""A command that goes less than this share of the steady step counts as a pause."""


@dataclass(frozen=True)
class Network:
    """latency_s: shortest and longest time to an answer, drawn evenly between. dropped: share that never comes."""

    latency_s: tuple[float, float] = (0.25, 0.25)
    dropped: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        low, high = self.latency_s
        if not 0 <= low <= high < 60:
            raise InputError(f"latency: expected 0 <= shortest <= longest < 60 s, got {self.latency_s}")
        if not 0 <= self.dropped < 1:
            raise InputError(f"drop: expected a share from 0 to below 1, got {self.dropped}")


@dataclass(frozen=True)
class Circle:
    """The policy. radius_rad, turn_s: of the circle. rows: of a chunk. lag_s: how far the robot's measured place is
    behind its command, for chunks that begin from what is seen. grip_s: how long the gripper stays as it is.
    """

    spec: RobotSpec
    home: Array
    radius_rad: float = 0.15
    turn_s: float = 6.0
    rows: int = 32
    lag_s: float = 0.1
    grip_s: float = 4.0

    @property
    def step_rad(self) -> float:
        """Way of one steady command, of the two joints together."""
        return self.radius_rad * 2 * np.pi / self.turn_s / self.spec.rate_hz

    def chunk(self, observation: Observation, committed: Array | None) -> ActionChunk:
        """(rows, D): the committed rows first, then on along the circle from the last of them, or from what is seen."""
        given = np.empty((0, len(self.home))) if committed is None else committed[: self.rows - 1]
        rows = [*given]
        here = given[-1] if len(given) else np.concatenate([observation.state[f.name] for f in self.spec.action])
        ahead = 0.0 if len(given) else self.lag_s
        for _ in range(self.rows - len(given)):
            here = self._after(here, 1 / self.spec.rate_hz + ahead)
            ahead = 0.0
            rows.append(here)
        chunk = np.array(rows)
        for column in self._columns("gripper"):
            closed = int(observation.time / self.grip_s) % 2
            chunk[len(given) :, column] = [self._gripper().open_value, self._gripper().closed_value][closed]
        return ActionChunk(chunk, self.spec.rate_hz, observation.time, "circle")

    def _after(self, place: Array, seconds: float) -> Array:
        out = np.array(self.home)
        for one, two in self._pairs():
            x, y = place[[one, two]] - self.home[[one, two]]
            radius = min(self.radius_rad, np.hypot(x, y) + self.radius_rad * 2 * np.pi / self.turn_s * seconds)
            angle = np.arctan2(y, x) + 2 * np.pi / self.turn_s * seconds
            out[one] += radius * np.cos(angle)
            out[two] += radius * np.sin(angle)
        return out

    def _pairs(self) -> list[tuple[int, int]]:
        joints = self._columns("joint")
        arms = np.split(np.array(joints), np.flatnonzero(np.diff(joints) > 1) + 1) if joints else []
        pairs = [(int(arm[0]), int(arm[-1])) for arm in arms if len(arm) > 1]
        if not pairs or self.spec.action_reference != "absolute":
            raise InputError(f"{self.spec.name!r} is not told joint positions; choose a robot that is")
        return pairs

    def _columns(self, kind: str) -> list[int]:
        kinds = [f.kind for f in self.spec.action for _ in range(f.width)]
        return [i for i, k in enumerate(kinds) if k == kind]

    def _gripper(self) -> Any:
        return self.spec.gripper


class Distant:
    """A policy behind a network: every answer is made on a thread of its own, late, or never."""

    def __init__(self, answer: Callable[[Observation, Array | None], ActionChunk], network: Network):
        self._answer, self._network = answer, network
        self._generator = np.random.default_rng(network.seed)

    def ask(self, observation: Observation, seed: int, committed: Array | None, now: float) -> Pending:
        """Send a question and return at once."""
        delay = self._generator.uniform(*self._network.latency_s)
        lost = self._generator.random() < self._network.dropped
        future: Future[ActionChunk] = Future()
        if not lost:
            timer = threading.Timer(delay, self._deliver, (future, observation, committed))
            timer.daemon = True
            timer.start()
        return FuturePending(future)

    def reset(self) -> None:
        """Nothing to forget."""

    def _deliver(self, future: Future[ActionChunk], observation: Observation, committed: Array | None) -> None:
        if future.set_running_or_notify_cancel():
            future.set_result(self._answer(observation, committed))


@dataclass
class Path:
    """A witness: where the robot was, and what it was told, at every tick."""

    robot: Robot
    times: list[float] = field(default_factory=list)
    measured: list[Array] = field(default_factory=list)
    told: list[Array | None] = field(default_factory=list)

    def tick(self, tick: Tick) -> None:
        """One control period is over."""
        self.times.append(time.monotonic())
        self.measured.append(self.robot.position())
        self.told.append(None if tick.sent is None else tick.sent.values)

    def figures(self, circle: Circle) -> dict[str, Any]:
        """Whether places and speeds, told and measured, kept to the robot's limits; and pauses after the first move."""
        limits, spec = self.robot.limits, circle.spec
        limited = np.isfinite(limits.max_rate)
        places = np.array(self.measured)[:, limited]
        told = [None if t is None else t[limited] for t in self.told]
        steps = [b - a for a, b in pairwise(told) if a is not None and b is not None]
        began = next((i for i, t in enumerate(told) if t is not None), len(told))
        pauses = sum(t is None for t in told[began:])
        pauses += sum(float(np.linalg.norm(s[:])) < PAUSE_SHARE * circle.step_rad for s in steps[1:])
        speed = np.abs(np.diff(places, axis=0)) / np.diff(self.times)[:, None] if len(places) > 1 else np.zeros((1, 1))
        asked = np.abs(np.array(steps)) * spec.rate_hz if steps else np.zeros((1, int(limited.sum())))
        low, high, rate = limits.low[limited], limits.high[limited], limits.max_rate[limited]
        everything = np.concatenate([places, *([np.array([t for t in told if t is not None])] if steps else [])])
        outside = np.maximum(low - everything, everything - high).max()
        return {
            "pauses_between_chunks": int(pauses),
            "ticks_before_the_first_command": began,
            "path": {
                "within_limits": bool(outside <= 0 and (asked <= rate * (1 + 1e-6)).all() and (speed <= rate).all()),
                "nearest_to_a_limit_rad": float(-outside),
                "fastest_told_share": float((asked / rate).max()),
                "fastest_measured_share": float((speed / rate).max()),
                "travelled_rad": float(np.abs(np.diff(places, axis=0)).sum()),
            },
        }


def run_trial(
    robot: Robot,
    network: Network,
    seconds: float,
    strategy: Strategy = "rtc",
    rows: int = 32,
    execute: int = 16,
    answer_timeout_s: float = 1.2,
) -> dict[str, Any]:
    """Connect, drive for ``seconds``, close; the figures. Raises RobotError if the robot cannot be connected."""
    with robot:
        home = robot.position()
        circle = Circle(robot.robot, home, rows=rows)
        circle.chunk(
            robot.observe("turn"), None
        )  # refuses a robot that this policy cannot drive, before anything moves
        path = Path(robot)
        loop = ControlLoop(
            robot,
            Distant(circle.chunk, network),
            Scheduler(robot.robot, strategy, execute),
            Gate(robot.limits, None if robot.limits.workspace_low is None else robot.tool),
            MonotonicClock(),
            LoopSettings("turn", answer_timeout_s=answer_timeout_s, seconds=seconds),
            (path,),
        )
        with before_others() as first:
            report = loop.run()
        return _figures(report) | path.figures(circle) | {"real_time_priority": first}


def _figures(report: LoopReport) -> dict[str, Any]:
    """``facts`` with what a benchmark asks: holds as one number, those before the first answer apart."""
    found = facts(report)
    return found | {
        "gate_violations": report.interventions.total(),
        "holds": report.holds.total() - report.holds["no chunk yet"],
        "holds_by_reason": found["holds"],
        "aborts": int(report.ended != "time is up"),
    }
