"""From robot units to model units: statistics, normalisers, and the model's own space where it is not the robot's."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cosmos_robot.contract.base import Spec
from cosmos_robot.contract.robot import FieldSpec, GripperSpec, check_fields

NormalizationMethod = Literal[
    "identity",
    "quantile",
    "quantile_rot",
    "minmax",
    "meanstd",
    "quantile_rot_scale_floor",
    "asinh_rot",
    "piecewise_asinh_rot",
    "pose_scale",
]

NEEDED_STATISTICS: dict[NormalizationMethod, tuple[str, ...]] = {
    "identity": (),
    "pose_scale": (),
    "quantile": ("q01", "q99"),
    "quantile_rot": ("q01", "q99"),
    "asinh_rot": ("q01", "q99"),
    "piecewise_asinh_rot": ("q01", "q99"),
    "minmax": ("min", "max"),
    "meanstd": ("mean", "std"),
    "quantile_rot_scale_floor": ("q01", "q99", "min", "max"),
}


class Statistics(Spec):
    """Per-dimension statistics of one vector over all training rows, before normalisation; None where not recorded.

    count: rows they were taken from.
    """

    count: int | None = Field(default=None, gt=0)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    min: tuple[float, ...] | None = None
    max: tuple[float, ...] | None = None
    q01: tuple[float, ...] | None = None
    q99: tuple[float, ...] | None = None

    @property
    def width(self) -> int:
        """Dimensions."""
        return next(len(value) for name, value in self if name != "count" and value is not None)

    def column(self, name: str) -> tuple[float, ...]:
        """The statistic ``name``; raises ValueError if it was not recorded."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"statistics hold no {name!r}, only {self.recorded}")
        return tuple(value)

    @property
    def recorded(self) -> list[str]:
        """The statistics that are there."""
        return [name for name, value in self if name != "count" and value is not None]

    @model_validator(mode="after")
    def _one_width(self) -> Statistics:
        widths = {name: len(getattr(self, name)) for name in self.recorded}
        if not widths:
            raise ValueError("statistics without a single column")
        if len(set(widths.values())) != 1:
            raise ValueError(f"statistics are not all of one width: {widths}")
        if self.std and min(self.std) < 0:
            raise ValueError(f"negative std: {self.std}")
        return self


class Normalization(Spec):
    """How one vector becomes model units: x -> (x - offset) / scale, clamped where ``clamp`` is set.

    method: the seven of Cosmos 3, where ``_rot`` says that rotation columns are normalised too, plus ``pose_scale``
    (positions times ``translation_scale``, the rest times ``rotation_scale``) and ``identity``.
    formula: ``centred`` is (x - middle) / half-range; ``from_low`` is 2 (x - low) / range - 1, inverse without a floor.
    scale_floor: a half-range (or std) below it is raised to it, so that a near-constant dimension is never blown up.
    constant: what is done with dimensions whose half-range (or std) is at or below ``constant_below``: ``floor`` the
    scale like any other, give ``centre`` (0) and restore the constant, ``pass_through`` unchanged, or ``refuse``.
    clamp: largest magnitude after normalising; clamp_mask: the dimensions it holds for, all if None.
    beta: of ``piecewise_asinh_rot``. statistics are None only with a ``note`` that says why: nothing is encoded then.
    """

    method: NormalizationMethod
    formula: Literal["centred", "from_low"] = "centred"
    scale_floor: float = Field(default=0.5e-8, gt=0)
    constant: Literal["floor", "centre", "pass_through", "refuse"] = "floor"
    constant_below: float = Field(default=0.0, ge=0)
    clamp: float | None = Field(default=None, gt=0)
    clamp_mask: tuple[bool, ...] | None = None
    beta: float = Field(default=1.0, gt=0)
    translation_scale: float = Field(default=1.0, gt=0)
    rotation_scale: float = Field(default=1.0, gt=0)
    statistics: Statistics | None = None
    note: str = ""

    @model_validator(mode="after")
    def _has_statistics(self) -> Normalization:
        needed = NEEDED_STATISTICS[self.method]
        if needed and self.statistics is None and not self.note:
            raise ValueError(f"method {self.method!r} needs statistics, or a note that says why there are none")
        missing = [name for name in needed if self.statistics and name not in self.statistics.recorded]
        if missing:
            raise ValueError(f"method {self.method!r} needs the statistics {needed}, {missing} are not recorded")
        if self.statistics and self.clamp_mask and len(self.clamp_mask) != self.statistics.width:
            raise ValueError(f"clamp_mask has {len(self.clamp_mask)} dimensions, statistics {self.statistics.width}")
        return self

    @property
    def usable(self) -> bool:
        """Whether the numbers that the method needs are there."""
        return not NEEDED_STATISTICS[self.method] or self.statistics is not None


class ModelSpace(Spec):
    """The model's own action or state space, before normalisation, where it is not the robot's.

    reference: ``as_robot`` keeps the robot's (only formats, units and gripper values change); ``framewise_relative`` is
    the pose from each row to the next, ``anchored_relative`` from the first row, ``absolute`` a target.
    gripper: the model's values for open and closed. axis_rotation: a 3x3 matrix, row after row, that right-multiplies
    the robot's orientation before poses are compared. tool_offset: metres, added in the tool's axes to reach the frame
    the model speaks of. translation_scale: factor on metres.
    """

    fields: tuple[FieldSpec, ...]
    reference: Literal["as_robot", "framewise_relative", "anchored_relative", "absolute"] = "as_robot"
    gripper: GripperSpec | None = None
    axis_rotation: tuple[float, ...] | None = Field(default=None, min_length=9, max_length=9)
    tool_offset: tuple[float, ...] | None = Field(default=None, min_length=3, max_length=3)
    translation_scale: float = Field(default=1.0, gt=0)

    @property
    def relative(self) -> bool:
        """Whether rows are relative to where the robot is, so that its state is needed to make and to read them."""
        return self.reference in ("framewise_relative", "anchored_relative")

    @property
    def width(self) -> int:
        return sum(f.width for f in self.fields)

    @model_validator(mode="after")
    def _consistent(self) -> ModelSpace:
        check_fields("model space", self.fields, self.gripper)
        return self
