"""The contract: everything about one robot and one checkpoint that two ends could disagree about, as data.

``RobotSpec`` is what an environment or a robot reports about itself. ``ModelSpec`` is what a checkpoint was trained
for. A ``Contract`` holds both, is saved as ``contract.json`` beside the weights, and nothing is served, evaluated or
trained without it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cosmos_robot.errors import ContractError

CONTRACT_FILE = "contract.json"
CONTRACT_VERSION: Final = 1

Orientation = Literal["upright", "flip_vertical", "mirror", "rot180"]
"""How a picture arrives, relative to the true upright view: as is, upside down (raw OpenGL rows), left and right
exchanged (what a 180-degree turn of raw OpenGL rows gives), or turned by 180 degrees."""


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class CameraSpec(_Spec):
    """One camera as the robot delivers it (pixels)."""

    name: str
    height: int = Field(gt=0)
    width: int = Field(gt=0)
    orientation: Orientation = "upright"


class FieldSpec(_Spec):
    """One named part of a state or action vector."""

    name: str
    width: int = Field(gt=0)
    unit: str
    meaning: str = ""


class GripperSpec(_Spec):
    """The gripper command: which value opens, which closes, and whether values between mean anything."""

    field: str
    open_value: float
    closed_value: float
    kind: Literal["continuous", "binary"]


class RobotSpec(_Spec):
    """A robot, real or simulated: cameras, state and action layout, rate.

    action_reference: whether a row is an absolute target, a change per step, or a change from the chunk's first pose.
    action_low, action_high: the command range, one pair for all dimensions or None where the robot sets no range.
    """

    name: str
    cameras: tuple[CameraSpec, ...]
    state: tuple[FieldSpec, ...]
    action: tuple[FieldSpec, ...]
    action_reference: Literal["absolute", "per_step", "per_chunk"]
    action_low: float | None = None
    action_high: float | None = None
    gripper: GripperSpec | None = None
    rate_hz: float = Field(gt=0)

    @property
    def state_width(self) -> int:
        return sum(f.width for f in self.state)

    @property
    def action_width(self) -> int:
        return sum(f.width for f in self.action)

    def camera(self, name: str) -> CameraSpec:
        """The camera called ``name``; raises ContractError listing the ones there are."""
        for camera in self.cameras:
            if camera.name == name:
                return camera
        raise ContractError(f"no camera {name!r} on {self.name}; it has {[c.name for c in self.cameras]}")

    @model_validator(mode="after")
    def _consistent(self) -> RobotSpec:
        for what, names in {
            "camera": [c.name for c in self.cameras],
            "state field": [f.name for f in self.state],
            "action field": [f.name for f in self.action],
        }.items():
            if len(set(names)) != len(names):
                raise ValueError(f"{what} named twice in {names}")
        if self.gripper and self.gripper.field not in [f.name for f in self.action]:
            raise ValueError(f"gripper field {self.gripper.field!r} is not an action field")
        low, high = self.action_low, self.action_high
        if low is not None and high is not None and low >= high:
            raise ValueError(f"action_low={low} is not below action_high={high}")
        return self


class Box(_Spec):
    """A pixel rectangle: rows top..top+height, columns left..left+width."""

    top: int = Field(ge=0)
    left: int = Field(ge=0)
    height: int = Field(gt=0)
    width: int = Field(gt=0)


class Placement(_Spec):
    """One camera on the canvas: the part of it that is taken, and where that part goes (area-averaged to size)."""

    camera: str
    crop: Box
    to: Box


class CanvasSpec(_Spec):
    """The one picture the model sees, composed of cameras; uncovered pixels are black."""

    height: int = Field(gt=0)
    width: int = Field(gt=0)
    placements: tuple[Placement, ...]

    @model_validator(mode="after")
    def _inside(self) -> CanvasSpec:
        for p in self.placements:
            if p.to.top + p.to.height > self.height or p.to.left + p.to.width > self.width:
                raise ValueError(f"placement of {p.camera!r} leaves the {self.height}x{self.width} canvas: {p.to}")
        return self


class Statistics(_Spec):
    """Per-dimension statistics of one vector, over all training rows, in the robot's units."""

    count: int = Field(gt=0)
    mean: tuple[float, ...]
    std: tuple[float, ...]
    min: tuple[float, ...]
    max: tuple[float, ...]
    q01: tuple[float, ...]
    q99: tuple[float, ...]

    @model_validator(mode="after")
    def _one_width(self) -> Statistics:
        widths = {name: len(value) for name, value in self if name != "count"}
        if len(set(widths.values())) != 1:
            raise ValueError(f"statistics are not all of one width: {widths}")
        return self


class Normalization(_Spec):
    """How robot units become model units: x -> (x - offset) / scale, clamped where ``clamp`` is set.

    quantile and minmax take offset and half-range from q01..q99 or min..max; meanstd takes mean and std.
    A scale below ``scale_floor`` is raised to it, so a near-constant dimension is never blown up.
    """

    method: Literal["identity", "quantile", "minmax", "meanstd"]
    scale_floor: float = Field(gt=0)
    clamp: float | None = Field(default=None, gt=0)
    statistics: Statistics | None = None

    @model_validator(mode="after")
    def _has_statistics(self) -> Normalization:
        if self.method != "identity" and self.statistics is None:
            raise ValueError(f"method {self.method!r} needs statistics")
        return self


class PromptSpec(_Spec):
    """How an instruction becomes the text the model reads. ``caption``: the instruction itself, lower case, no full
    stop, through the tokenizer's chat template."""

    template: Literal["caption"]
    system_prompt: bool = False


class SamplerSpec(_Spec):
    """Rectified-flow sampling: steps, time shift, guidance (1 = off)."""

    solver: Literal["euler", "unipc"]
    steps: int = Field(gt=0)
    shift: float = Field(gt=0)
    guidance: float = 1.0


class ModelSpec(_Spec):
    """What a checkpoint expects: canvas, chunk, domain, normalisers, prompt, sampler.

    chunk: action rows predicted per call. execute: how many of them a caller should run before asking again.
    state_row: whether the state rides along as one clean action row.
    sees: False for a blind control, which reads a black canvas whatever the cameras show.
    """

    name: str
    backbone: Literal["cosmos3"]
    domain_id: int = Field(ge=0)
    chunk: int = Field(gt=0)
    execute: int = Field(gt=0)
    state_row: bool
    sees: bool = True
    canvas: CanvasSpec
    state_normalization: Normalization
    action_normalization: Normalization
    prompt: PromptSpec
    sampler: SamplerSpec


class Contract(_Spec):
    """One robot and one checkpoint. Widths, cameras and ranges of the two halves are checked against each other."""

    version: Literal[1] = CONTRACT_VERSION
    robot: RobotSpec
    model: ModelSpec

    @model_validator(mode="after")
    def _halves_agree(self) -> Contract:
        for p in self.model.canvas.placements:
            camera = self.robot.camera(p.camera)
            if p.crop.top + p.crop.height > camera.height or p.crop.left + p.crop.width > camera.width:
                raise ValueError(f"crop of {p.camera!r} leaves its {camera.height}x{camera.width} picture: {p.crop}")
        for what, norm, width in (
            ("state", self.model.state_normalization, self.robot.state_width),
            ("action", self.model.action_normalization, self.robot.action_width),
        ):
            if norm.statistics and len(norm.statistics.mean) != width:
                raise ValueError(f"{what} statistics have {len(norm.statistics.mean)} dimensions, the robot {width}")
        if self.model.execute > self.model.chunk:
            raise ValueError(f"execute={self.model.execute} is more than chunk={self.model.chunk}")
        return self

    def save(self, folder: Path) -> Path:
        """Write ``contract.json`` into ``folder`` and return its path."""
        path = Path(folder) / CONTRACT_FILE
        path.write_text(self.model_dump_json(indent=2) + "\n")
        return path

    @classmethod
    def load(cls, folder: Path) -> Contract:
        """Read ``contract.json`` from ``folder``. Raises ContractError if it is absent or malformed."""
        path = Path(folder) / CONTRACT_FILE
        if not path.is_file():
            raise ContractError(f"no {CONTRACT_FILE} in {folder}; a checkpoint without its contract is not run")
        try:
            return cls.model_validate(json.loads(path.read_text()))
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ContractError(f"{path} is not a contract of version {CONTRACT_VERSION}: {error}") from error
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, e['loc'])) or 'contract'}: {e['msg']}" for e in error.errors()]
            raise ContractError(
                f"{path} is not a contract of version {CONTRACT_VERSION}:" + "".join(f"\n  - {line}" for line in wrong)
            ) from error


def differences(expected: RobotSpec, actual: RobotSpec) -> list[str]:
    """Each disagreement between what a checkpoint was trained for and what a robot reports, in plain words.

    Extra cameras on the robot are allowed; everything else must match by name, order, width, unit and value.
    """
    found = []
    cameras = {c.name: c for c in actual.cameras}
    for camera in expected.cameras:
        other = cameras.get(camera.name)
        if other is None:
            found.append(f"camera {camera.name!r}: expected, but the robot has {sorted(cameras)}")
        elif other != camera:
            found.append(f"camera {camera.name!r}: expected {_plain(camera)}, robot gives {_plain(other)}")
    for field in RobotSpec.model_fields:
        if field in ("name", "cameras"):
            continue
        want, have = getattr(expected, field), getattr(actual, field)
        if want != have:
            found.append(f"{field}: expected {_plain(want)}, robot gives {_plain(have)}")
    return found


def require_fit(contract: Contract, actual: RobotSpec) -> None:
    """Raise ContractError naming each field in which ``actual`` differs from the contract's robot."""
    found = differences(contract.robot, actual)
    if found:
        raise ContractError(
            f"checkpoint {contract.model.name!r} (trained for {contract.robot.name!r}) does not fit {actual.name!r}:"
            + "".join(f"\n  - {line}" for line in found)
        )


def _plain(value: object) -> str:
    if isinstance(value, BaseModel):
        return ", ".join(f"{k}={v}" for k, v in value.model_dump().items() if v not in ("", None))
    if isinstance(value, tuple):
        return "[" + "; ".join(_plain(v) for v in value) + "]"
    return repr(value)
