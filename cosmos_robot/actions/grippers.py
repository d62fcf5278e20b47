"""Gripper commands: which value opens, which closes, and what a value between means.

``GripperRange`` names the two ends of a command. ``convert_gripper`` maps one range onto another and leaves values
between them between; ``BinaryGripper`` makes open or closed of them, with hysteresis, and keeps no state of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from cosmos_robot.contract import GripperSpec

AGIBOT_CLOSED_DEGREES: Final = 120.0
AGIBOT_OVERSHOOT_DEGREES: Final = 5.0
AGIBOT_OPEN_ANGLE: Final = np.pi / 4
AGIBOT_JITTER: Final = 1e-4


@dataclass(frozen=True)
class GripperRange:
    """A gripper command in one convention: the value that opens it and the value that closes it."""

    open_value: float
    closed_value: float

    def __post_init__(self) -> None:
        if not np.isfinite([self.open_value, self.closed_value]).all() or self.open_value == self.closed_value:
            raise InputError(
                f"gripper: open {self.open_value} and closed {self.closed_value} must differ and be finite"
            )

    def openness(self, values: ArrayLike) -> NDArray[np.float64]:
        """Values of this range as 0 (closed) to 1 (open), clipped to it. Raises InputError unless finite."""
        return np.clip(self.openness_unclipped(values), 0.0, 1.0)

    def openness_unclipped(self, values: ArrayLike) -> NDArray[np.float64]:
        """As ``openness``, but values beyond the range stay beyond it."""
        x = np.asarray(values, dtype=np.float64)
        if not np.isfinite(x).all():
            raise InputError(f"gripper: value {x[~np.isfinite(x)].flat[0]} is not finite")
        return np.asarray((x - self.closed_value) / (self.open_value - self.closed_value))

    def command(self, openness: ArrayLike) -> NDArray[np.float64]:
        """0 (closed) to 1 (open) as values of this range."""
        x = np.asarray(openness, dtype=np.float64)
        return np.asarray(self.closed_value + x * (self.open_value - self.closed_value))

    @property
    def opens_upwards(self) -> bool:
        """Polarity: whether the larger value opens."""
        return self.open_value > self.closed_value


ROBOSUITE_GRIPPER: Final = GripperRange(open_value=-1.0, closed_value=1.0)
"""What LIBERO and robosuite's OSC controllers take."""

LIBERO_DATASETS: Final[dict[str, GripperRange]] = {
    "zero_one": GripperRange(open_value=1.0, closed_value=0.0),
    "pm_one": GripperRange(open_value=-1.0, closed_value=1.0),
    "pm_one_flip": GripperRange(open_value=1.0, closed_value=-1.0),
}
"""Gripper columns of LIBERO datasets: ``zero_one`` in NVIDIA's LIBERO_LeRobot_v3, ``pm_one`` in LeRobot's own
(cosmos-framework, ``simulation/libero/closed_loop_eval.py``)."""


def libero_dataset(mode: str) -> GripperRange:
    """The range of LIBERO dataset convention ``mode``; raises UnknownNameError."""
    if mode not in LIBERO_DATASETS:
        raise UnknownNameError("LIBERO gripper mode", mode, LIBERO_DATASETS)
    return LIBERO_DATASETS[mode]


def convert_gripper(values: ArrayLike, source: GripperRange, target: GripperRange) -> NDArray[np.float64]:
    """Continuous commands of one range as commands of another; values beyond the source's ends are clipped to them.

    Half open stays half open. A robot that does not move at half open (robosuite's 0) needs ``BinaryGripper``.
    """
    return target.command(source.openness(values))


@dataclass(frozen=True)
class BinaryGripper:
    """Open or closed, nothing between.

    range: the convention of the values that come in.
    threshold: openness (0 closed, 1 open) at which the decision turns.
    hysteresis: width of the band around the threshold in which the last decision stays.
    """

    range: GripperRange
    threshold: float = 0.5
    hysteresis: float = 0.0

    def __post_init__(self) -> None:
        half = self.hysteresis / 2
        if not (self.hysteresis >= 0 and self.threshold >= half and self.threshold + half <= 1):
            raise InputError(f"gripper: threshold {self.threshold} +- {half} (half the hysteresis) leaves 0..1")

    @classmethod
    def of(cls, spec: GripperSpec) -> BinaryGripper:
        """The decision that a robot's binary gripper makes, on its own numbers."""
        return cls(GripperRange(spec.open_value, spec.closed_value), spec.threshold, spec.hysteresis)

    def opens(self, values: ArrayLike) -> NDArray[np.bool_]:
        """Whether each of ``values`` by itself means open: no band, no memory; at the threshold, open. Raises
        InputError for values that are not finite."""
        return np.asarray(self.range.openness(values) >= self.threshold)

    def decide(self, values: ArrayLike, was_open: bool) -> NDArray[np.bool_]:
        """Whether the hand is open at each of (T,) values in time order. ``was_open`` is its state before the first;
        within the band, and at the threshold itself, it stays as it was. Nothing is remembered here: the last of the
        result is the state to pass with the next values. Raises InputError for values that are not finite."""
        x = self.range.openness(values)
        if x.ndim != 1:
            raise InputError(f"gripper: expected (T,) values in time order, got {x.shape}")
        decided, now = np.empty(len(x), dtype=bool), bool(was_open)
        for i, openness in enumerate(x):
            if abs(openness - self.threshold) > self.hysteresis / 2:
                now = bool(openness > self.threshold)
            decided[i] = now
        return decided

    def commands(self, values: ArrayLike, was_open: bool, target: GripperRange) -> tuple[NDArray[np.float64], bool]:
        """(T,) values to commands of ``target``, each its open or its closed value; and the state after the last."""
        decided = self.decide(values, was_open)
        return target.command(decided), bool(decided[-1]) if len(decided) else bool(was_open)


def agibot_openness(values: ArrayLike) -> NDArray[np.float64]:
    """AgiBot's recorded gripper states as 0 (closed) to 1 (open).

    The unit is read from the range of all values together, as AgiBotWorld's data mix three: actuator degrees 0 (open)
    to 120 (closed, up to 5 more are clipped), joint angles 0 (closed) to -pi/4 (open), and the same in degrees.
    Raises InputError for any other range. Source: ``agibot_fk.py`` of cosmos-framework.
    """
    x = np.asarray(values, dtype=np.float64)
    if not x.size:
        return x
    if not np.isfinite(x).all():
        raise InputError("AgiBot gripper: values are not finite")
    low, high = float(x.min()), float(x.max())
    if low < -AGIBOT_JITTER and high <= AGIBOT_JITTER:
        for widest in (AGIBOT_OPEN_ANGLE, float(np.degrees(AGIBOT_OPEN_ANGLE))):
            if low >= -widest - AGIBOT_JITTER:
                return GripperRange(open_value=-widest, closed_value=0.0).openness(x)
    if low >= -AGIBOT_JITTER and high <= AGIBOT_CLOSED_DEGREES + AGIBOT_OVERSHOOT_DEGREES + AGIBOT_JITTER:
        return GripperRange(open_value=0.0, closed_value=AGIBOT_CLOSED_DEGREES).openness(x)
    raise InputError(
        f"AgiBot gripper: values from {low:.4g} to {high:.4g}; expected actuator degrees 0..125, or joint angles "
        "-pi/4..0 or -45..0"
    )
