"""Differences between two sides: each named, each with its verdict, and what converts is really converted."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from cosmos_robot.actions.adapter import Adapter
from cosmos_robot.contract import (
    CameraSpec,
    Contract,
    FieldSpec,
    GripperSpec,
    RobotSpec,
    compatible,
    contract_names,
    describe,
    diff,
    load_contract,
    require_fit,
)
from cosmos_robot.contract.conversions import GRIPPERS_BY, PICTURES_BY, ROTATIONS_BY, UNITS_BY
from cosmos_robot.errors import ContractError
from cosmos_robot.types import Observation

EXPECTED = RobotSpec(
    name="trained",
    cameras=(CameraSpec(name="front", height=2, width=3), CameraSpec(name="wrist", height=2, width=2)),
    state=(
        FieldSpec(name="place", width=3, unit="m", kind="position", frame="base"),
        FieldSpec(name="turn", width=6, unit="1", kind="rotation", rotation="rot6d", frame="base"),
        FieldSpec(name="joint", width=2, unit="rad", kind="joint"),
        FieldSpec(name="grip", width=1, unit="1", kind="gripper"),
    ),
    action=(
        FieldSpec(name="place", width=3, unit="m", kind="position", frame="base"),
        FieldSpec(name="turn", width=3, unit="rad", kind="rotation", rotation="rotvec", frame="base"),
        FieldSpec(name="grip", width=1, unit="1", kind="gripper"),
    ),
    action_reference="absolute",
    gripper=GripperSpec(field="grip", open_value=1.0, closed_value=0.0, kind="continuous"),
    state_gripper=GripperSpec(field="grip", open_value=1.0, closed_value=0.0, kind="continuous"),
    rate_hz=15,
)


def changed(**changes: Any) -> RobotSpec:
    return RobotSpec.model_validate(EXPECTED.model_dump() | {"name": "there"} | changes)


def field(side: str, name: str, **changes: Any) -> RobotSpec:
    """``EXPECTED`` with one field of one side changed."""
    fields = tuple(
        f.model_copy(update=changes).model_dump() if f.name == name else f.model_dump() for f in getattr(EXPECTED, side)
    )
    return changed(**{side: fields})


def camera(name: str, **changes: Any) -> RobotSpec:
    return changed(
        cameras=tuple(
            c.model_copy(update=changes).model_dump() if c.name == name else c.model_dump() for c in EXPECTED.cameras
        )
    )


CASES: dict[str, tuple[RobotSpec, str, str, str]] = {
    "quaternion to rot6d": (
        field("state", "turn", width=4, rotation="quat_wxyz"), "state.turn.rotation", "convert", ROTATIONS_BY,
    ),
    "degrees": (field("state", "joint", unit="deg"), "state.joint.unit", "convert", UNITS_BY),
    "millimetres": (field("action", "place", unit="mm"), "action.place.unit", "convert", UNITS_BY),
    "gripper turned over": (
        changed(gripper=EXPECTED.gripper.model_copy(update={"open_value": 0.0, "closed_value": 1.0}).model_dump()),
        "gripper.values", "convert", GRIPPERS_BY,
    ),
    "mirrored picture": (camera("front", orientation="mirror"), "cameras.front.orientation", "convert", PICTURES_BY),
    "other order": (
        changed(state=tuple(f.model_dump() for f in reversed(EXPECTED.state))), "state.order", "convert",
        "cosmos_robot.actions.layouts:convert_fields",
    ),
    "binary gripper": (
        changed(gripper=EXPECTED.gripper.model_copy(update={"kind": "binary"}).model_dump()), "gripper.kind", "convert",
        "cosmos_robot.actions.grippers:BinaryGripper",
    ),
    "other frame": (field("state", "place", frame="world"), "state.place.frame", "refuse", ""),
    "frame unsaid": (field("state", "place", frame=""), "state.place.frame", "warn", ""),
    "kind unsaid": (field("state", "joint", kind="other"), "state.joint.kind", "warn", ""),
    "velocity for joint": (field("state", "joint", kind="velocity"), "state.joint.kind", "refuse", ""),
    "unknown unit": (field("state", "joint", unit="ticks"), "state.joint.unit", "refuse", ""),
    "wider": (field("state", "joint", width=3), "state.joint.width", "refuse", ""),
    "meaning": (field("state", "joint", meaning="of the left arm"), "state.joint.meaning", "warn", ""),
    "field missing": (
        changed(state=tuple(f.model_dump() for f in EXPECTED.state if f.name != "joint")), "state.joint", "refuse", "",
    ),
    "field more": (
        changed(state=(*[f.model_dump() for f in EXPECTED.state], {"name": "heat", "width": 1, "unit": "K"})),
        "state.heat", "warn", "",
    ),
    "command more": (
        changed(action=(*[f.model_dump() for f in EXPECTED.action], {"name": "base", "width": 2, "unit": "m"})),
        "action.base", "refuse", "",
    ),
    "changes for targets": (changed(action_reference="per_step"), "action_reference", "refuse", ""),
    "rate": (changed(rate_hz=20), "rate_hz", "refuse", ""),
    "range": (changed(action_high=1.0), "action_high", "refuse", ""),
    "camera missing": (changed(cameras=(EXPECTED.cameras[0].model_dump(),)), "cameras.wrist", "refuse", ""),
    "camera size": (camera("wrist", height=4), "cameras.wrist", "refuse", ""),
    "camera more": (
        changed(cameras=(*[c.model_dump() for c in EXPECTED.cameras], {"name": "side", "height": 2, "width": 2})),
        "cameras.side", "warn", "",
    ),
    "no gripper values": (changed(gripper=None), "gripper", "refuse", ""),
}  # fmt: skip


def contract() -> Contract:
    """A contract whose robot is ``EXPECTED``."""
    base = load_contract("tiny-libero")
    whole = {"top": 0, "left": 0, "height": 2, "width": 2}
    model = base.model.model_dump() | {
        "canvas": base.model.canvas.model_dump() | {"placements": [{"camera": "wrist", "crop": whole, "to": whole}]},
        "state_normalization": {"method": "identity"},
        "action_normalization": {"method": "identity"},
    }
    return Contract.model_validate({"robot": EXPECTED.model_dump(), "model": model})


@pytest.mark.parametrize("name", CASES)
def test_each_difference_has_its_verdict(name: str) -> None:
    actual, path, verdict, by = CASES[name]
    found = compatible(EXPECTED, actual)
    assert [(d.field, d.verdict, d.by) for d in found] == [(path, verdict, by)], [str(d) for d in found]
    assert found[0].why and found[0].expected != found[0].actual
    assert path in str(found[0])


def test_a_robot_fits_itself() -> None:
    assert compatible(EXPECTED, EXPECTED) == ()
    assert require_fit(contract(), EXPECTED) == ()


@pytest.mark.parametrize("name", CASES)
def test_fit_is_refused_unless_only_told_or_adapted(name: str) -> None:
    actual, path, verdict, _ = CASES[name]
    if verdict == "warn":
        assert [d.field for d in require_fit(contract(), actual)] == [path]
        return
    with pytest.raises(ContractError, match=path.replace(".", r"\.")):
        require_fit(contract(), actual)
    if verdict == "convert":
        assert [d.field for d in Adapter(contract(), actual).converted] == [path]
    else:
        with pytest.raises(ContractError, match=path.replace(".", r"\.")):
            Adapter(contract(), actual)


@pytest.mark.parametrize("by", sorted({case[3] for case in CASES.values()} - {""}))
def test_named_converters_exist(by: str) -> None:
    module, name = by.split(":")
    assert callable(getattr(importlib.import_module(module), name))


TURN = [0.0, 0.0, np.sqrt(0.5), np.sqrt(0.5)]
"""A quarter turn about z, quat_xyzw."""


def observed(robot: RobotSpec) -> Observation:
    """The same moment as ``robot`` reports it: a quarter turn, joints at 90 and -45 degrees, the hand open."""
    layout = {f.name: f for f in robot.state}
    turn = {"quat_wxyz": [TURN[3], *TURN[:3]], "rot6d": [0, 1, 0, -1, 0, 0]}[str(layout["turn"].rotation)]
    joints = np.array([np.pi / 2, -np.pi / 4]) if layout["joint"].unit == "rad" else np.array([90.0, -45.0])
    front = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    arrives = front[:, ::-1] if robot.camera("front").orientation == "mirror" else front
    return Observation(
        images={"front": arrives, "wrist": np.zeros((2, 2, 3), np.uint8)},
        state={"place": [1, 2, 3], "turn": turn, "joint": joints, "grip": [1.0]},
        instruction="wave",
    )


@pytest.mark.parametrize("name", ["quaternion to rot6d", "degrees", "mirrored picture", "other order"])
def test_observations_are_converted(name: str) -> None:
    actual = CASES[name][0]
    seen, wanted = Adapter(contract(), actual).observation(observed(actual)), observed(EXPECTED)
    assert list(seen.state) == [f.name for f in EXPECTED.state]
    for key, value in wanted.state.items():
        np.testing.assert_allclose(seen.state[key], value, atol=1e-9)
    np.testing.assert_array_equal(seen.images["front"], wanted.images["front"])


def test_commands_are_converted() -> None:
    command = np.array([[0.1, 0.2, 0.3, 0.0, 0.0, 0.5, 0.25]])
    for name, expected in {
        "millimetres": [100, 200, 300, 0, 0, 0.5, 0.25],
        "gripper turned over": [0.1, 0.2, 0.3, 0, 0, 0.5, 0.75],
        "binary gripper": [0.1, 0.2, 0.3, 0, 0, 0.5, 0.0],
    }.items():
        np.testing.assert_allclose(Adapter(contract(), CASES[name][0]).actions(command)[0], expected, atol=1e-12)


def test_angles_in_degrees_are_converted_before_their_format_is() -> None:
    actual = field("action", "turn", rotation="euler_xyz", unit="deg")
    found = compatible(EXPECTED, actual)
    assert {d.field for d in found} == {"action.turn.rotation"} and found[0].verdict == "convert"
    out = Adapter(contract(), actual).actions(np.array([[0, 0, 0, 0, 0, np.pi / 2, 1.0]]))
    np.testing.assert_allclose(out[0, 3:6], [0, 0, 90], atol=1e-9)


def test_two_models_never_convert() -> None:
    a, b = load_contract("cosmos-policy-libero"), load_contract("cosmos3-libero")
    verdicts = {d.field: d.verdict for d in compatible(a, b)}
    assert verdicts["model.canvas"] == verdicts["model.action_space"] == verdicts["model.backbone"] == "refuse"
    assert verdicts["model.sampler"] == verdicts["model.name"] == "warn"


def test_pc_11_three_orientations_are_told_apart() -> None:
    a, b = load_contract("cosmos-policy-libero"), load_contract("cosmos3-libero")
    told = {t.field: t for t in diff(a, b)}["model.canvas.orientation"]
    assert (told.first, told.second) == ("upright", "left and right exchanged")
    raw = changed(cameras=[c.model_dump() | {"orientation": "flip_vertical"} for c in EXPECTED.cameras])
    assert {d.verdict for d in compatible(EXPECTED, raw)} == {"convert"}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for i, item in enumerate(value) for leaf in leaves(item, (*path, i))]
    return [path]


OTHER = {str: "another", bool: None, int: 1, float: 0.25}


@pytest.mark.parametrize("name", ["tiny-libero", "cosmos3-base-bridge", "cosmos-policy-aloha"])
def test_no_change_goes_untold(name: str) -> None:
    """Every single field, changed, is told by ``diff``."""
    whole = load_contract(name)
    document = whole.model_dump(mode="json")
    tried = 0
    for path in leaves(document):
        part = document
        for key in path[:-1]:
            part = part[key]
        old = part[path[-1]]
        if old is None:
            continue
        for new in (not old,) if isinstance(old, bool) else (OTHER[type(old)] + old,):
            part[path[-1]] = new
            try:
                other = Contract.model_validate(document)
            except ValueError:
                continue
            tried += 1
            assert diff(whole, other), path
        part[path[-1]] = old
    assert tried > 30


@pytest.mark.parametrize("name", contract_names())
def test_a_contract_differs_from_itself_in_nothing(name: str) -> None:
    assert diff(load_contract(name), load_contract(name)) == []
    told = describe(load_contract(name))
    assert told["model"]["name"] == load_contract(name).model.name
    assert len([label for lines in told.values() for label in lines]) > 60
