"""A small robot and an untrained checkpoint for it, with its blind control beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosmos_robot.backbone.cosmos3.load import load_checkpoint, save_checkpoint
from cosmos_robot.backbone.cosmos3.untrained import save_untrained, untrained_contract
from cosmos_robot.contract import CameraSpec, Contract, FieldSpec, GripperSpec, RobotSpec

SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}


@pytest.fixture(scope="session")
def robot() -> RobotSpec:
    return RobotSpec(
        name="arm",
        cameras=(
            CameraSpec(name="front", height=80, width=96),
            CameraSpec(name="wrist", height=64, width=64),
            CameraSpec(name="ceiling", height=48, width=48),
        ),
        state=(FieldSpec(name="position", width=3, unit="m"), FieldSpec(name="fingers", width=2, unit="m")),
        action=(FieldSpec(name="delta", width=3, unit="1"), FieldSpec(name="gripper", width=1, unit="1")),
        action_reference="per_step",
        action_low=-1,
        action_high=1,
        gripper=GripperSpec(field="gripper", open_value=-1, closed_value=1, kind="binary"),
        rate_hz=20,
    )


@pytest.fixture(scope="session")
def contract(robot: RobotSpec) -> Contract:
    made = untrained_contract(robot, "small", chunk=6, execute=3)
    canvas = made.model.canvas
    two_cameras = canvas.model_copy(update={"width": 128, "placements": canvas.placements[:2]})
    return Contract(robot=robot, model=made.model.model_copy(update={"canvas": two_cameras}))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, contract: Contract) -> Path:
    """The checkpoint; ``<folder>-blind`` beside it shares its parts."""
    folder = tmp_path_factory.mktemp("checkpoints") / "small"
    save_untrained(folder, contract, ["pick up the red block", "put the bowl on the plate"], **SMALL)
    blind = contract.model_copy(update={"model": contract.model.model_copy(update={"sees": False})})
    sighted = load_checkpoint(folder)
    save_checkpoint(folder.parent / "small-blind", transformer=sighted.transformer, contract=blind, share_with="small")
    return folder
