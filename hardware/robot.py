"""What every robot promises, real or simulated. No network, model or simulator here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import RobotSpec
from cosmos_robot.hardware.gate import Limits
from cosmos_robot.types import Observation


@dataclass(frozen=True)
class Sent:
    """What a robot was really told. values: (D,) in the units of its spec. notes: what was changed, and why."""

    values: NDArray[np.float64]
    notes: tuple[str, ...] = ()


class Robot(ABC):
    """One robot behind the control loop. A subclass sets ``robot`` and ``limits``.

    Calls come from one thread, the control loop's, and return within a fraction of a control period: whatever blocks (a
    gripper, a camera) runs on a thread of its own. Every method raises RobotError when the robot is lost.
    """

    robot: RobotSpec
    limits: Limits

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
