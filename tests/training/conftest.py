import sys
from pathlib import Path

import pytest

from cosmos_robot.backbone.cosmos3.untrained import untrained_contract
from cosmos_robot.contract import Box, CameraSpec, Contract, FieldSpec, GripperSpec, RobotSpec
from cosmos_robot.training.cache import EpisodeList

sys.path.insert(0, str(Path(__file__).parent))

from dots import CHUNK, draw_episode


@pytest.fixture(scope="session")
def contract() -> Contract:
    robot = RobotSpec(
        name="dot",
        cameras=(CameraSpec(name="top", height=64, width=64), CameraSpec(name="wrist", height=64, width=64)),
        state=(FieldSpec(name="eef_position", width=3, unit="m"),),
        action=(FieldSpec(name="position", width=3, unit="1"), FieldSpec(name="gripper", width=1, unit="1")),
        action_reference="per_step",
        action_low=-1,
        action_high=1,
        gripper=GripperSpec(field="gripper", open_value=-1, closed_value=1, kind="binary"),
        rate_hz=20,
    )
    made = untrained_contract(robot, "dot", chunk=CHUNK, execute=2)
    top, wrist = made.model.canvas.placements
    small = wrist.model_copy(update={"to": Box(top=0, left=64, height=32, width=32)})
    canvas = made.model.canvas.model_copy(update={"width": 96, "placements": (top, small)})
    return Contract(robot=robot, model=made.model.model_copy(update={"canvas": canvas, "domain_id": 5}))


@pytest.fixture(scope="session")
def episodes() -> EpisodeList:
    return EpisodeList([draw_episode(seed) for seed in range(24)])
