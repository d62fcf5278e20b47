"""What every robot promises, real or simulated. No network, model or simulator here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import RobotSpec
from cosmos_robot.errors import InputError, RobotError
from cosmos_robot.hardware.gate import Limits, Moment, judge
from cosmos_robot.types import Observation


@dataclass(frozen=True)
class Sent:
    """What a robot was really told. values: (D,) in the units of its spec. notes: what was changed, and why."""

    values: NDArray[np.float64]
    notes: tuple[str, ...] = ()


def at_rate(spec: RobotSpec, rate_hz: float | None) -> RobotSpec:
    """``spec`` at another control rate; itself for None. Raises InputError for a rate that is not over zero."""
    if rate_hz is not None and not 0 < rate_hz < float("inf"):
        raise InputError(f"rate_hz: expected a number over zero, got {rate_hz!r}")
    return spec if rate_hz is None else spec.model_copy(update={"rate_hz": float(rate_hz)})


def standing(
    spec: RobotSpec, last: NDArray[np.float64] | None, place: Callable[[], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """(D,) the command that standing still amounts to. For absolute commands the ``last`` one, or ``place()``, where
    the robot is, before any; for changes no change, grippers as they were told last, or open."""
    if spec.action_reference == "absolute":
        return place() if last is None else last
    still, start = np.zeros(spec.action_width), 0
    for field in spec.action:
        part = slice(start, start + field.width)
        if spec.gripper is not None and field.name in spec.gripper.fields:
            still[part] = spec.gripper.open_value if last is None else last[part]
        start += field.width
    return still


class Robot(ABC):
    """One robot behind the control loop. A subclass sets ``robot`` and ``limits``.

    Calls come from one thread, the control loop's, and return within a fraction of a control period: whatever blocks (a
    gripper, a camera) runs on a thread of its own. Every method raises RobotError when the robot is lost.
    """

    robot: RobotSpec
    limits: Limits

    def tool(self, command: NDArray[np.float64]) -> NDArray[np.float64]:
        """Where the tool (3,) would be under ``command``, metres; for robots whose limits hold a workspace."""
        raise RobotError(f"{self.robot.name!r} does not tell where its tool is; leave the workspace out of its limits")

    def guarded(
        self, values: NDArray[np.float64], measured: NDArray[np.float64], last: NDArray[np.float64] | None
    ) -> tuple[NDArray[np.float64], tuple[str, ...]]:
        """The last look at a command before it is sent, whoever sends it: ``judge`` under the robot's own limits.

        Returns (values, notes). Raises RobotError for what may not be sent at all."""
        moment = Moment(measured, last, 1.0 / self.robot.rate_hz, 0.0)
        verdict = judge(values, self.limits, moment, self.tool)
        if verdict.values is None:
            raise RobotError(f"refused to send: {verdict.reason}; put a Gate with this robot's limits before it")
        return verdict.values, tuple(map(str, verdict.interventions))

    @abstractmethod
    def connect(self) -> None:
        """Make the robot ready to be moved; nothing moves yet. Raises RobotError naming the remedy."""

    @abstractmethod
    def observe(self, instruction: str) -> Observation:
        """The newest state, and the newest picture of each camera; ``time`` is when the state was read, on the clock
        of the control loop (``time.monotonic``)."""

    @abstractmethod
    def position(self) -> NDArray[np.float64]:
        """(D,) where the robot is now, laid out as a command; for a robot commanded by changes, zeros."""

    @abstractmethod
    def send(self, values: NDArray[np.float64]) -> Sent:
        """Command (D,) in the units of the spec, for the present control period. Returns what was really sent."""

    @abstractmethod
    def hold(self) -> None:
        """Stay where the last command led, without jerk. Called once a period while nothing is to be done."""

    @abstractmethod
    def stop(self) -> None:
        """Come to rest as fast as the robot may. Safe to call at any time and twice."""

    @abstractmethod
    def recover(self) -> None:
        """After a fault: clear it, so that ``observe`` and ``send`` work again. Raises RobotError if it cannot."""

    @abstractmethod
    def close(self) -> None:
        """Stop and let go of the robot. Safe to call twice."""

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
