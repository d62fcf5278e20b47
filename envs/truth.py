"""What a simulator knows of itself apart from what its environment reports: the yardstick of the probes.

Lengths in metres, angles in radians, matrices with axes as columns.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MARK_AT = (0.66, 0.3)
"""Where in an upright picture a mark is put, as fractions of width and height: off both centre lines, so that turning
or mirroring the picture moves it."""


@dataclass(frozen=True)
class Pose:
    """A place (3,) and an orientation (3, 3), in world axes."""

    position: NDArray[np.float64]
    matrix: NDArray[np.float64]

    def within(self, frame: Pose) -> Pose:
        """This pose as seen from ``frame``."""
        return Pose(frame.matrix.T @ (self.position - frame.position), frame.matrix.T @ self.matrix)


class GroundTruth:
    """What a probe asks of a simulator. Answers are computed afresh from joint positions, not taken from what the
    environment has already reported.
    """

    @abstractmethod
    def seconds(self) -> float | None:
        """Simulated time, None where there is no physics."""

    @abstractmethod
    def frames(self) -> Mapping[str, Pose]:
        """The frames that a contract may name, now, in the world."""

    @abstractmethod
    def hand(self) -> Pose:
        """The point that position commands move, and its orientation."""

    def joints(self) -> NDArray[np.float64]:
        """The joints that joint commands move, in the order of the action's joint fields; empty where there are
        none."""
        return np.empty(0)

    @abstractmethod
    def fingers(self) -> NDArray[np.float64]:
        """The finger joints, in the order of the robot."""

    @abstractmethod
    def opening(self) -> float:
        """How far the fingers are apart."""

    @abstractmethod
    def fully_open(self) -> float:
        """``opening()`` of a hand that is fully open."""

    @abstractmethod
    def seen_at(self, camera: str, u: float, v: float) -> NDArray[np.float64]:
        """A point (3,) of the world that ``camera`` sees at (u, v) of its upright picture."""

    @abstractmethod
    def put_mark(self, point: NDArray[np.float64] | None) -> Callable[[], None]:
        """Show something at ``point``, or hide it; the answer puts it back where it was."""

    @abstractmethod
    def start(self) -> NDArray[np.float64]:
        """The simulator's state right after a reset, comparable with ``recorded_start``."""

    @abstractmethod
    def recorded_start(self, index: int) -> NDArray[np.float64]:
        """The official initial state ``index`` as its file holds it."""

    @contextmanager
    def mark(self, point: NDArray[np.float64] | None) -> Iterator[None]:
        """``put_mark`` for the duration of a block."""
        undo = self.put_mark(point)
        try:
            yield
        finally:
            undo()
