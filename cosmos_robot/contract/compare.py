"""What a checkpoint was trained for against what is there: each difference, and whether it matters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from cosmos_robot.contract.conversions import (
    PICTURES_BY,
    Conversion,
    Refusal,
    gripper_conversion,
    rotation_conversion,
    unit_conversion,
)
from cosmos_robot.contract.document import Contract
from cosmos_robot.contract.model import ModelSpec
from cosmos_robot.contract.robot import CameraSpec, FieldSpec, GripperSpec, RobotSpec
from cosmos_robot.contract.words import say
from cosmos_robot.errors import ContractError

Verdict = Literal["refuse", "convert", "warn"]

WARNED_OF_MODEL: Final[dict[str, str]] = {
    "name": "another checkpoint",
    "domain_name": "a name only, the domain's number decides",
    "execute": "how many rows are run is the caller's choice",
    "sampler": "another way to sample the same model",
}
"""Fields of a model that may differ; every other one refuses."""


@dataclass(frozen=True)
class Difference:
    """One field in which two sides differ.

    field: its path. expected, actual: both values. verdict: ``refuse``, ``convert`` (``by`` names the function that
    does it) or ``warn``. why: in words.
    """

    field: str
    expected: object
    actual: object
    verdict: Verdict
    why: str
    by: str = ""

    def __str__(self) -> str:
        return f"{self.sentence} [{self.verdict}]"

    @property
    def sentence(self) -> str:
        """The difference in words, without its verdict."""
        done = f" ({self.by})" if self.by else ""
        return f"{self.field}: expected {_short(self.expected)}, got {_short(self.actual)}; {self.why}{done}"


def compatible(expected: Contract | RobotSpec, actual: Contract | RobotSpec) -> tuple[Difference, ...]:
    """Every difference between what was trained for (``expected``) and what is there (``actual``); empty if none.

    Between a contract and a robot, the robot halves; between two contracts, the model halves too. Nothing is
    converted here: ``cosmos_robot.actions.adapter`` does what the verdicts say.
    """
    found = list(_robots(_robot(expected), _robot(actual)))
    if isinstance(expected, Contract) and isinstance(actual, Contract):
        found += _models(expected.model, actual.model)
    return tuple(found)


def differences(expected: RobotSpec, actual: RobotSpec) -> list[str]:
    """``compatible`` in words."""
    return [str(difference) for difference in compatible(expected, actual)]


def require_fit(contract: Contract, actual: RobotSpec, *, adapted: bool = False) -> tuple[Difference, ...]:
    """Raise ContractError naming each field in which ``actual`` does not fit the contract's robot; return what is left
    to warn of.

    adapted: the caller sends everything through an ``Adapter``, so that what can be converted is no reason to refuse.
    """
    found = compatible(contract, actual)
    wrong = [d for d in found if d.verdict == "refuse" or (d.verdict == "convert" and not adapted)]
    if wrong:
        raise ContractError(
            f"checkpoint {contract.model.name!r} (trained for {contract.robot.name!r}) does not fit {actual.name!r}:"
            + "".join(f"\n  - {line}" for line in wrong)
        )
    return tuple(d for d in found if d not in wrong)


def _robot(side: Contract | RobotSpec) -> RobotSpec:
    return side.robot if isinstance(side, Contract) else side


def _robots(expected: RobotSpec, actual: RobotSpec) -> Iterator[Difference]:
    yield from _cameras(expected.cameras, actual.cameras)
    yield from _fields("state", actual.state, expected.state, expected_is_source=False)
    yield from _fields("action", expected.action, actual.action, expected_is_source=True)
    yield from _grippers("state_gripper", expected.state_gripper, actual.state_gripper, expected_is_source=False)
    yield from _grippers("gripper", expected.gripper, actual.gripper, expected_is_source=True)
    for name, why in (
        ("action_reference", "a target taken for a change, or the reverse, moves the robot somewhere else"),
        ("action_low", "commands would be cut at another value"),
        ("action_high", "commands would be cut at another value"),
        ("rate_hz", "the rows are spaced for another rate"),
    ):
        want, have = getattr(expected, name), getattr(actual, name)
        if want != have:
            yield Difference(name, want, have, "refuse", why)


def _cameras(expected: tuple[CameraSpec, ...], actual: tuple[CameraSpec, ...]) -> Iterator[Difference]:
    there = {camera.name: camera for camera in actual}
    for camera in expected:
        path, other = f"cameras.{camera.name}", there.pop(camera.name, None)
        if other is None:
            yield Difference(path, camera, None, "refuse", f"the robot has only {sorted(c.name for c in actual)}")
            continue
        if (camera.height, camera.width) != (other.height, other.width):
            sizes = f"{camera.height}x{camera.width}", f"{other.height}x{other.width}"
            yield Difference(path, *sizes, "refuse", "pictures are cut and placed by pixel")
        if camera.orientation != other.orientation:
            why = f"turned from {say(other.orientation)} to {say(camera.orientation)}"
            yield Difference(f"{path}.orientation", camera.orientation, other.orientation, "convert", why, PICTURES_BY)
        if camera.view and other.view and camera.view != other.view:
            yield Difference(f"{path}.view", camera.view, other.view, "warn", "described differently")
    for name, camera in there.items():
        yield Difference(f"cameras.{name}", None, camera, "warn", "not looked at")


def _fields(
    side: str, source: tuple[FieldSpec, ...], target: tuple[FieldSpec, ...], *, expected_is_source: bool
) -> Iterator[Difference]:
    """Fields of ``target`` made from those of ``source``: of a state from what the robot reports, of a command from
    what the model says."""
    given = {field.name: field for field in source}

    def told(path: str, s: object, t: object, verdict: Verdict, why: str, by: str = "") -> Difference:
        return Difference(path, *((s, t) if expected_is_source else (t, s)), verdict, why, by)

    for field in target:
        path = f"{side}.{field.name}"
        if field.name not in given:
            yield told(path, None, field, "refuse", f"nothing of that name among {sorted(f.name for f in source)}")
            continue
        have = given.pop(field.name)
        for aspect, verdict, why, by in _aspects(have, field, read_by_model=not expected_is_source):
            yield told(f"{path}.{aspect}", getattr(have, aspect), getattr(field, aspect), verdict, why, by)
    for name, left in given.items():
        if expected_is_source:
            yield told(f"{side}.{name}", left, None, "refuse", "the robot does not take it")
        else:
            yield told(f"{side}.{name}", left, None, "warn", "not read")
    names = [f.name for f in target]
    order = [f.name for f in source if f.name in names]
    if sorted(order) == sorted(names) and order != names:
        by = "cosmos_robot.actions.layouts:convert_fields"
        yield told(f"{side}.order", ", ".join(order), ", ".join(names), "convert", "put in order by name", by)


def _aspects(have: FieldSpec, want: FieldSpec, *, read_by_model: bool) -> Iterator[tuple[str, Verdict, str, str]]:
    if have.kind != want.kind:
        unsaid = "other" in (have.kind, want.kind)
        yield "kind", "warn" if unsaid else "refuse", "one side does not say" if unsaid else "not the same thing", ""
    turned = have.rotation and want.rotation and have.rotation != want.rotation
    if turned and have.rotation and want.rotation:
        yield "rotation", *_verdict(rotation_conversion(have.rotation, want.rotation, read_by_model=read_by_model))
    elif have.width != want.width:
        yield "width", "refuse", "not the same number of values", ""
    if have.unit != want.unit and not turned and have.kind != "gripper":
        yield "unit", *_verdict(unit_conversion(have.unit, want.unit))
    if have.frame != want.frame:
        unsaid = not (have.frame and want.frame)
        yield "frame", "warn" if unsaid else "refuse", "one side does not say" if unsaid else "other axes", ""
    for limit in ("low", "high"):
        if getattr(have, limit) != getattr(want, limit):
            yield limit, "warn", "another range is published", ""
    if have.meaning != want.meaning:
        yield "meaning", "warn", "described differently", ""


def _grippers(
    path: str, expected: GripperSpec | None, actual: GripperSpec | None, *, expected_is_source: bool
) -> Iterator[Difference]:
    if expected is None or actual is None:
        if expected is not actual:
            # A state gripper that only the robot reports is not read.
            verdict: Verdict = "warn" if path == "state_gripper" and expected is None else "refuse"
            yield Difference(path, expected, actual, verdict, "one side does not say which value is open")
        return
    if expected.fields != actual.fields:
        yield Difference(f"{path}.field", expected.fields, actual.fields, "refuse", "another part is the gripper")
        return
    source, target = (expected, actual) if expected_is_source else (actual, expected)
    decided = source.kind == "continuous" and target.kind == "binary"
    if (expected.open_value, expected.closed_value) != (actual.open_value, actual.closed_value):
        want, have = (f"{g.open_value:g} open, {g.closed_value:g} closed" for g in (expected, actual))
        step = gripper_conversion(source, target)
        yield Difference(f"{path}.values", want, have, "convert", step.how, step.by)
    if decided:
        by = "cosmos_robot.actions.grippers:BinaryGripper"
        why = f"decided at openness {target.threshold:g}"
        yield Difference(f"{path}.kind", expected.kind, actual.kind, "convert", why, by)
    elif expected.kind != actual.kind:
        yield Difference(f"{path}.kind", expected.kind, actual.kind, "warn", "only its two ends are used")
    for name in ("threshold", "hysteresis"):
        if expected.kind == actual.kind == "binary" and getattr(expected, name) != getattr(actual, name):
            yield Difference(
                f"{path}.{name}", getattr(expected, name), getattr(actual, name), "warn", "decided elsewhere"
            )


def _models(expected: ModelSpec, actual: ModelSpec) -> Iterator[Difference]:
    for name in ModelSpec.model_fields:
        want, have = getattr(expected, name), getattr(actual, name)
        if want != have:
            verdict: Verdict = "warn" if name in WARNED_OF_MODEL else "refuse"
            why = WARNED_OF_MODEL.get(name, "the rows, pictures or words of one model mean something else to the other")
            yield Difference(f"model.{name}", want, have, verdict, why)


def _short(value: object) -> str:
    """A value in words; of a field only what it is."""
    if isinstance(value, FieldSpec):
        return f"{value.width} x {value.unit} ({value.rotation or value.kind})"
    return say(value)


def _verdict(found: Conversion | Refusal) -> tuple[Verdict, str, str]:
    if isinstance(found, Refusal):
        return "refuse", found.why, ""
    return "convert", found.how, found.by
