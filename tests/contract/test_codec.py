"""Round trips through the codec of every contract that ships, and the conventions it alone owns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmos_robot.actions.codec import Codec
from cosmos_robot.actions.layouts import action_layout, state_layout
from cosmos_robot.actions.rotations import convert
from cosmos_robot.actions.statistics_files import choose_block, read_blocks
from cosmos_robot.contract import (
    Contract,
    FieldSpec,
    GripperSpec,
    ModelSpace,
    Normalization,
    RobotSpec,
    Statistics,
    contract_names,
    load_contract,
)
from cosmos_robot.errors import ContractError, InputError


def with_numbers(contract: Contract) -> Contract:
    """``contract`` with statistics where it ships without: wide ones, so that nothing is lost by a clamp."""
    changes = {}
    for side, width in (("state", contract.state_width), ("action", contract.action_width)):
        norm = getattr(contract.model, f"{side}_normalization")
        if not norm.usable:
            columns = {"min": (-40.0,) * width, "max": (40.0,) * width, "q01": (-40.0,) * width, "q99": (40.0,) * width}
            changes[f"{side}_normalization"] = Normalization.model_validate(
                norm.model_dump() | {"statistics": Statistics(**columns).model_dump()}
            )
    return contract.model_copy(update={"model": contract.model.model_copy(update=changes)})


def vectors(fields: tuple[FieldSpec, ...], gripper: GripperSpec | None, rows: int, seed: int) -> np.ndarray:
    """(rows, width) values that mean something: proper rotations, grippers within their ends."""
    random = np.random.default_rng(seed)
    parts = []
    for field in fields:
        if field.rotation:
            turns = random.normal(size=(rows, 4))
            turns /= np.linalg.norm(turns, axis=1, keepdims=True)
            if "per step" in field.unit:
                parts.append(random.uniform(-0.5, 0.5, (rows, 3)))
            else:
                parts.append(convert(turns, "quat_xyzw", field.rotation))
        elif gripper and field.name in gripper.fields:
            share = random.integers(0, 2, (rows, 1)) if gripper.kind == "binary" else random.random((rows, 1))
            parts.append(gripper.closed_value + share * (gripper.open_value - gripper.closed_value))
        else:
            parts.append(random.uniform(-0.9, 0.9, (rows, field.width)))
    return np.concatenate(parts, axis=1) if parts else np.zeros((rows, 0))


def comparable(robot: RobotSpec, actions: np.ndarray) -> np.ndarray:
    """Actions with orientations as matrices, as q and -q are one."""
    layout = action_layout(robot)
    parts = []
    for field in robot.action:
        part = actions[..., layout.columns(field.name)]
        parts.append(convert(part, field.rotation, "rot9d") if field.rotation else part)
    return np.concatenate(parts, axis=-1)


@pytest.mark.parametrize("name", contract_names())
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5))
def test_actions_survive_the_round_trip(name: str, seed: int, rows: int) -> None:
    contract = with_numbers(load_contract(name))
    codec = Codec(contract)
    actions = vectors(contract.robot.action, contract.robot.gripper, rows, seed)
    state = vectors(contract.robot.state, contract.robot.state_gripper, 1, seed)[0]
    encoded = codec.encode_actions(actions, state)
    assert encoded.shape == (rows, contract.action_width)
    decoded = codec.decode_actions(encoded, state)
    np.testing.assert_allclose(comparable(contract.robot, decoded), comparable(contract.robot, actions), atol=1e-6)


@pytest.mark.parametrize("name", contract_names())
def test_batches_are_what_single_chunks_are(name: str) -> None:
    contract = with_numbers(load_contract(name))
    codec = Codec(contract)
    actions = np.stack([vectors(contract.robot.action, contract.robot.gripper, 3, seed) for seed in (1, 2)])
    states = np.stack([vectors(contract.robot.state, contract.robot.state_gripper, 1, seed)[0] for seed in (1, 2)])
    together = codec.encode_actions(actions, states)
    for i in range(2):
        np.testing.assert_array_equal(together[i], codec.encode_actions(actions[i], states[i]))
    back = codec.decode_actions(together, states)
    for i in range(2):
        np.testing.assert_array_equal(back[i], codec.decode_actions(together[i], states[i]))


@pytest.mark.parametrize("name", contract_names())
def test_widths_are_named(name: str) -> None:
    contract = with_numbers(load_contract(name))
    codec = Codec(contract)
    width = contract.robot.action_width
    with pytest.raises(InputError, match=rf"expected {width} numbers .*\(4, {width + 1}\)"):
        codec.encode_actions(np.zeros((4, width + 1)))
    with pytest.raises(InputError, match=rf"expected {codec.action_width} numbers .*\(4, {codec.action_width + 1}\)"):
        codec.decode_actions(np.zeros((4, codec.action_width + 1)))
    with pytest.raises(InputError, match=rf"expected {contract.robot.state_width} numbers"):
        codec.encode_state(np.zeros(contract.robot.state_width + 1))


def test_relative_rows_need_a_state() -> None:
    codec = Codec(load_contract("cosmos3-base-bridge"))
    with pytest.raises(InputError, match="give its state"):
        codec.encode_actions(np.zeros((2, 7)))
    with pytest.raises(InputError, match="one state for each chunk"):
        codec.encode_actions(np.zeros((3, 2, 7)), np.zeros((2, 6)))


def test_relative_rows_of_a_robot_that_takes_changes_are_refused() -> None:
    contract = load_contract("cosmos3-base-bridge")
    robot = contract.robot.model_copy(update={"action_reference": "per_step"})
    with pytest.raises(ContractError, match="absolute commands"):
        Codec(contract.model_copy(update={"robot": robot}))


@pytest.mark.parametrize("name", [n for n in contract_names() if n.startswith("cosmos-policy")])
def test_without_statistics_nothing_is_encoded(name: str) -> None:
    contract = load_contract(name)
    codec = Codec(contract)
    for call in (
        lambda: codec.encode_state(np.zeros(contract.robot.state_width)),
        lambda: codec.encode_actions(np.zeros((2, contract.robot.action_width))),
        lambda: codec.decode_actions(np.zeros((2, contract.action_width))),
    ):
        with pytest.raises(ContractError, match=r"no statistics.*dataset_statistics\.json"):
            call()


def test_a_space_whose_fields_the_robot_lacks_is_refused() -> None:
    contract = load_contract("cosmos3-libero")
    fields = tuple(f.model_copy(update={"name": f"other_{f.name}"}) for f in contract.model.action_space.fields)
    model = contract.model.model_copy(update={"action_space": ModelSpace(fields=fields)})
    with pytest.raises(ContractError, match="has no 'other_position'"):
        Codec(contract.model_copy(update={"model": model}))


def test_a_space_that_does_not_say_what_is_open_is_refused() -> None:
    contract = load_contract("cosmos3-libero")
    space = contract.model.action_space.model_copy(update={"gripper": None})
    model = contract.model.model_copy(update={"action_space": space})
    with pytest.raises(ContractError, match="which value is open"):
        Codec(contract.model_copy(update={"model": model}))


def test_pc_01_the_contract_picks_the_axis_angle_form() -> None:
    """A quaternion with negative w: robosuite's form keeps its sign, the shortest turn does not."""
    quaternion = [0.9998, 0.0, 0.0, -0.02]
    for name, expected in (("rotvec_robosuite", 3.182), ("rotvec", -3.102)):
        codec = Codec(state_contract(name))
        assert codec.encode_state(quaternion)[0] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("model", ["quat_xyzw", "quat_wxyz", "rotvec_robosuite"])
def test_pc_01_a_sign_that_is_lost_is_not_invented(model: str) -> None:
    with pytest.raises(ContractError, match="does not keep the quaternion's sign"):
        Codec(state_contract(model, robot="rot6d"))


def state_contract(model_format: str, robot: str = "quat_xyzw") -> Contract:
    """LIBERO's contract of Cosmos Policy, its state one orientation, which the model reads in another format."""
    contract = load_contract("cosmos-policy-libero")

    def field(name: str) -> FieldSpec:
        width = {"quat_xyzw": 4, "quat_wxyz": 4, "rot6d": 6}.get(name, 3)
        return FieldSpec(name="turn", width=width, unit="1", kind="rotation", rotation=name)

    identity = Normalization(method="identity")
    spec = contract.robot.model_copy(update={"state": (field(robot),)})
    space = ModelSpace(fields=(field(model_format),))
    model = contract.model.model_copy(
        update={"state_space": space, "state_normalization": identity, "action_normalization": identity}
    )
    return Contract(robot=spec, model=model)


@pytest.mark.parametrize("name", ["cosmos3-nano-droid", "cosmos3-edge-droid"])
def test_pc_08_one_side_turns_the_gripper_over(name: str) -> None:
    """A model that repeats the state it is given sends the robot where it already is: fake model, whole loop."""
    contract = load_contract(name)
    codec = Codec(contract)
    for opening in (0.0, 0.25, 1.0):
        state = np.array([0.1, -0.4, 0.2, -2.0, 0.0, 1.6, 0.7, opening])
        row = codec.encode_state(state)
        assert row[-1] == pytest.approx(1 - opening), "1 is open to the model, closed to the robot"
        repeated = np.repeat(row[None], contract.model.chunk, axis=0)
        np.testing.assert_allclose(codec.decode_actions(repeated), np.repeat(state[None], contract.model.chunk, 0))


def test_pc_24_a_target_equal_to_the_pose_holds_still() -> None:
    """An absolute target where the robot is: a relative row of no motion, and back."""
    contract = load_contract("cosmos3-base-droid")
    codec = Codec(contract)
    state = np.array([0.4, 0.1, 0.3, 3.1, 0.05, -0.2, 0.5])
    still = np.repeat(state[None], 3, axis=0)
    rows = codec.encode_actions(still, state)
    np.testing.assert_allclose(rows[:, :9], np.tile([0, 0, 0, 1, 0, 0, 0, 1, 0], (3, 1)), atol=1e-9)
    np.testing.assert_allclose(comparable(contract.robot, codec.decode_actions(rows, state)),
                               comparable(contract.robot, still), atol=1e-9)  # fmt: skip


@pytest.mark.parametrize("width", [14, 15, 16])
def test_pc_25_the_width_is_the_contracts(width: int) -> None:
    """A robot of any width: nobody falls back to 7, and both widths are named."""
    contract = load_contract("tiny-libero")
    field = FieldSpec(name="joints", width=width, unit="rad", kind="joint")
    robot = RobotSpec(
        name="arms",
        cameras=contract.robot.cameras,
        state=(field,),
        action=(field,),
        action_reference="absolute",
        rate_hz=20,
    )
    identity = Normalization(method="identity")
    model = contract.model.model_copy(update={"state_normalization": identity, "action_normalization": identity})
    codec = Codec(Contract(robot=robot, model=model))
    assert codec.decode_actions(np.zeros((2, width))).shape == (2, width)
    for other in (7, width - 1, width + 1):
        with pytest.raises(InputError, match=rf"expected {width} numbers.*{other}"):
            codec.decode_actions(np.zeros((2, other)))


def test_pc_25_statistics_of_another_width_are_no_contract() -> None:
    contract = load_contract("tiny-libero")
    field = FieldSpec(name="joints", width=15, unit="rad", kind="joint")
    with pytest.raises(ValueError, match="7 dimensions, the model's action 15"):
        Contract(
            robot=contract.robot.model_copy(update={"action": (field,), "gripper": None}),
            model=contract.model,
        )


def test_states_are_named_layouts() -> None:
    layout = state_layout(load_contract("tiny-libero").robot)
    assert layout.columns("gripper_qpos") == slice(9, 11)
    with pytest.raises(ContractError, match="no field 'grip'"):
        layout.columns("grip")


def test_hysteresis_needs_to_know_what_was() -> None:
    contract = load_contract("tiny-libero")
    gripper = contract.robot.gripper.model_copy(update={"hysteresis": 0.4})
    codec = Codec(contract.model_copy(update={"robot": contract.robot.model_copy(update={"gripper": gripper})}))
    undecided = np.zeros((2, 7))
    with pytest.raises(InputError, match="was_open"):
        codec.decode_actions(undecided)
    flat = codec.encode_actions(np.zeros((2, 7)))
    assert (codec.decode_actions(flat, was_open=True)[:, 6] == -1).all()
    assert (codec.decode_actions(flat, was_open=False)[:, 6] == 1).all()


def test_published_statistics_make_a_contract_usable(tmp_path: Path) -> None:
    numbers = {
        f"{name}_{s}": [v] * n for name, n in (("actions", 7), ("proprio", 9)) for s, v in (("min", -2), ("max", 4))
    }
    path = tmp_path / "libero_dataset_statistics.json"
    path.write_text(json.dumps(numbers))
    blocks = read_blocks(path)
    contract = load_contract("cosmos-policy-libero").with_statistics(action=blocks["actions"], state=blocks["proprio"])
    codec = Codec(contract)
    np.testing.assert_allclose(codec.encode_actions(np.full((1, 7), 1.0)), np.zeros((1, 7)))
    np.testing.assert_allclose(codec.encode_state(np.full(9, -2.0)), np.full(9, -1.0))
    with pytest.raises(ContractError, match="9 dimensions, the model's action 7"):
        load_contract("cosmos-policy-libero").with_statistics(action=blocks["proprio"])


@pytest.mark.parametrize(
    "content",
    [
        {"one_dataset": {"action": {"min": [0], "max": [1]}}, "another": {"action": {"min": [0], "max": [2]}}},
        {"actions_min": [0], "actions_max": [1], "proprio_min": [0], "proprio_max": [1]},
    ],
)
def test_pc_21_an_ambiguous_file_lists_its_options(content: dict, tmp_path: Path) -> None:
    path = tmp_path / "statistics.json"
    path.write_text(json.dumps(content))
    blocks = read_blocks(path)
    with pytest.raises(InputError) as caught:
        choose_block(blocks, method="minmax")
    assert len(blocks) == 2 and all(name in str(caught.value) for name in blocks)


def test_pc_21_the_method_is_the_contracts_not_the_files(tmp_path: Path) -> None:
    """A file with several methods' numbers: the contract's method picks; one that it lacks is refused by name."""
    path = tmp_path / "statistics.json"
    path.write_text(json.dumps({"min": [0.0] * 7, "max": [1.0] * 7, "q01": [0.25] * 7, "q99": [0.75] * 7}))
    given = read_blocks(path)[""]
    rows = {}
    for method in ("minmax", "quantile"):
        contract = load_contract("cosmos-policy-libero")
        norm = contract.model.action_normalization.model_copy(update={"method": method})
        model = contract.model.model_copy(update={"action_normalization": norm})
        rows[method] = Codec(contract.model_copy(update={"model": model}).with_statistics(action=given)).encode_actions(
            np.full((1, 7), 0.75)
        )
    assert rows["minmax"][0, 0] == pytest.approx(0.5) and rows["quantile"][0, 0] == pytest.approx(1.0)
    with pytest.raises(ContractError, match="meanstd"):
        contract = load_contract("cosmos-policy-libero")
        norm = contract.model.action_normalization.model_copy(update={"method": "meanstd"})
        model = contract.model.model_copy(update={"action_normalization": norm})
        contract.model_copy(update={"model": model}).with_statistics(action=given)
