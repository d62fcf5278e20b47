"""The codec under shipped contracts, against recorded rows; the domains."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cosmos_robot.actions.codec import Codec
from cosmos_robot.actions.embodiments import find_domain
from cosmos_robot.actions.rotations import convert
from cosmos_robot.contract import (
    ROTATION_WIDTHS,
    Contract,
    GripperSpec,
    ModelSpace,
    Normalization,
    RotationFormat,
    Statistics,
    load_contract,
)
from cosmos_robot.errors import CosmosRobotError

BASE = {
    "bridge": "cosmos3-base-bridge",
    "fractal": "cosmos3-base-fractal",
    "umi": "cosmos3-base-umi",
    "robomind-franka": "cosmos3-base-robomind-franka",
    "robomind-franka-dual": "cosmos3-base-robomind-franka-dual",
    "droid": "cosmos3-base-droid",
}
ROTATION_SPACES: dict[str, RotationFormat] = {"3d": "rotvec", "6d": "rot6d", "9d": "rot9d"}
ATOL = 2e-5
"""Recorded in float32 from metres and radians below 10."""


def raw(contract: Contract, **space: object) -> Contract:
    """``contract`` without normalisation, its action space changed by ``space``."""
    changes: dict[str, object] = {"action_normalization": Normalization(method="identity")}
    if space:
        own = contract.model.action_space
        assert own is not None
        changes["action_space"] = ModelSpace.model_validate(own.model_dump() | space)
    return Contract(robot=contract.robot, model=contract.model.model_copy(update=changes))


@pytest.mark.golden("cosmos3/domains")
def test_domains(case) -> None:
    if "error" in case:
        with pytest.raises(CosmosRobotError):
            find_domain(case["id"])
        return
    found = find_domain(case["id"])
    assert found.id == case["domain_id"]
    assert found.width == case["raw_action_dim"]


@pytest.mark.golden("cosmos3/libero_actions", where=lambda case: case["kind"] == "_framewise_action_to_delta")
def test_libero_rows_become_commands_and_back(case) -> None:
    contract = load_contract("cosmos3-libero")
    name = ROTATION_SPACES[case["rotation_space"]]
    fields = [f.model_dump() for f in contract.model.action_space.fields]
    fields[1] |= {"rotation": name, "width": ROTATION_WIDTHS[name]}
    free = contract.robot.model_copy(update={"action_low": None, "action_high": None})
    codec = Codec(raw(contract.model_copy(update={"robot": free}), fields=fields))
    rows = np.array([case["action"]])
    assert codec.action_width == rows.shape[1]
    command = codec.decode_actions(rows)
    expected = np.array(case["env_action_before_gripper"])
    np.testing.assert_allclose(command[0, :6], expected[:6], atol=1e-6)
    assert command[0, 6] == (-1.0 if expected[6] > 0.5 else 1.0)
    np.testing.assert_allclose(codec.decode_actions(codec.encode_actions(command)), command, atol=1e-6)


def recorded(case: dict) -> tuple[Contract, NDArray, NDArray]:
    """The contract of a recorded chunk, the robot's state where it begins, and its commands."""
    contract, columns, steps = load_contract(BASE[case["dataset"]]), case["in"], case["chunk_length"]
    given = {name: np.array(values, dtype=np.float64) for name, values in columns.items()}
    if case["dataset"] == "droid":
        poses, gripper = given["cartesian_xyz_eulerxyz"][-steps - 1 :], given["gripper_action"].reshape(-1, 1)[-steps:]
        ends = (1.0, 0.0) if case["gripper_flipped"] else (0.0, 1.0)
        space: dict[str, object] = {
            "gripper": GripperSpec(
                field="gripper_position", open_value=ends[0], closed_value=ends[1], kind="continuous"
            ).model_dump()
        }
        if case["action_space"] == "ee_pose_delta":
            space |= {"reference": "anchored_relative", "axis_rotation": None}
        state = np.append(poses[0], given["gripper_state"].ravel()[-steps - 1])
        return raw(contract, **space), state, np.concatenate([poses[1:], gripper], axis=1)
    if case["dataset"] in ("bridge", "fractal"):
        width = contract.robot.state_width
        poses, gripper = given["state"][: steps + 1, :width], given["action"][:steps, 6:7]
    elif case["dataset"] == "umi":
        poses, gripper = (
            given["trajectory_xyz_wxyz"][: steps + 1],
            given["gripper_width_m"].reshape(-1, 1)[1 : steps + 1],
        )
    else:
        poses, joints = given["end_effector"][: steps + 1], given["joint_position"][:steps]
        if poses.shape[1] == 12:
            hands = [poses[1:, :6], joints[:, 7:8], poses[1:, 6:], joints[:, 15:16]]
            return raw(contract), poses[0], np.concatenate(hands, axis=1)
        gripper = joints[:, 7:8]
    return raw(contract), poses[0], np.concatenate([poses[1:], gripper], axis=1)


def through_the_codec(case: dict) -> bool:
    return case["dataset"] in BASE and case.get("action_space") != "joint_pos" and isinstance(case.get("in"), dict)


@pytest.mark.golden("cosmos3/dataset_actions", where=through_the_codec)
def test_relative_poses_of_every_recorded_robot(case) -> None:
    contract, state, actions = recorded(case)
    codec = Codec(contract)
    rows = codec.encode_actions(actions, state)
    expected = np.array(case["action"])[-case["chunk_length"] :]
    np.testing.assert_allclose(rows, expected, atol=ATOL)
    back = codec.decode_actions(expected, state)
    same = poses_as_matrices(contract, back), poses_as_matrices(contract, actions)
    np.testing.assert_allclose(same[0], same[1], atol=2e-4)


def poses_as_matrices(contract: Contract, actions: NDArray) -> NDArray:
    """Commands with every rotation as nine numbers, which q and -q share."""
    parts, start = [], 0
    for field in contract.robot.action:
        part = actions[:, start : start + field.width]
        parts.append(convert(part, field.rotation, "rot9d") if field.rotation else part)
        start += field.width
    return np.concatenate(parts, axis=1)


@pytest.mark.golden("cosmos3/dataset_actions", where=lambda case: case.get("action_space") == "joint_pos")
def test_joint_targets_of_droid(case) -> None:
    steps, columns = case["chunk_length"], {k: np.array(v, dtype=np.float64) for k, v in case["in"].items()}
    contract = load_contract("cosmos3-nano-droid")
    if not case["gripper_flipped"]:
        contract = raw(contract, gripper=contract.robot.gripper.model_dump())
    commands = np.concatenate(
        [columns["joint_action"][-steps:], columns["gripper_action"].reshape(-1, 1)[-steps:]], axis=1
    )
    rows = Codec(contract).encode_actions(commands)
    np.testing.assert_allclose(rows, np.array(case["action"])[-steps:], atol=1e-6)


@pytest.mark.golden(
    "cosmos3/server_samples",
    where=lambda case: (
        case["server"] == "robolab" and case["cfg"]["action_space"] == "joint_pos" and case["cfg"]["use_state"]
    ),
)
def test_state_row_of_the_droid_server(case) -> None:
    """The server turns the gripper over before the model; the codec does it here."""
    observed = np.atleast_2d(case["obs"]["joint_position"])[-1]
    gripper = np.ravel(case["obs"]["gripper_position"])[-1]
    row = Codec(load_contract("cosmos3-nano-droid")).encode_state(np.append(observed, gripper))
    clean = case["plan"]["condition_frame_indexes_action"]
    np.testing.assert_allclose(row, np.array(case["action_raw"])[clean[-1]], atol=1e-6)


@pytest.mark.golden("cosmos_policy/postprocess")
def test_commands_and_proprio_of_cosmos_policy(case) -> None:
    contract = load_contract(f"cosmos-policy-{case['suite']}")

    def known(what: str, name: str) -> Normalization:
        numbers = {s: tuple(case["statistics"][f"{name}_{s}"]) for s in ("min", "max")}
        own = getattr(contract.model, f"{what}_normalization")
        return Normalization.model_validate(own.model_dump() | {"statistics": Statistics(**numbers).model_dump()})

    model = contract.model.model_copy(
        update={"action_normalization": known("action", "actions"), "state_normalization": known("state", "proprio")}
    )
    free = contract.robot.model_copy(update={"action_low": None, "action_high": None, "gripper": None})
    codec = Codec(Contract(robot=free, model=model))
    np.testing.assert_allclose(codec.decode_actions(case["normalized_actions"]), case["actions"], atol=1e-6)
    sent = np.array(case["proprio_sent_to_model_bf16"], dtype=np.float64)
    np.testing.assert_allclose(codec.encode_state(case["proprio"]), np.squeeze(sent), atol=1e-2)
