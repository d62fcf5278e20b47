import sys
from pathlib import Path

import pytest

from cosmos_robot.contract import (
    Box,
    CameraSpec,
    CanvasSpec,
    Contract,
    FieldSpec,
    GripperSpec,
    ModelSpec,
    Normalization,
    Placement,
    PromptSpec,
    RobotSpec,
    SamplerSpec,
)
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
    canvas = CanvasSpec(
        height=64,
        width=96,
        placements=(
            Placement(camera="top", crop=Box(top=0, left=0, height=64, width=64),
                      to=Box(top=0, left=0, height=64, width=64)),
            Placement(camera="wrist", crop=Box(top=0, left=0, height=64, width=64),
                      to=Box(top=0, left=64, height=32, width=32)),
        ),
    )  # fmt: skip
    identity = Normalization(method="identity", scale_floor=0.1)
    model = ModelSpec(
        name="dot",
        backbone="cosmos3",
        domain_id=5,
        chunk=CHUNK,
        execute=2,
        state_row=True,
        canvas=canvas,
        state_normalization=identity,
        action_normalization=identity,
        prompt=PromptSpec(template="caption"),
        sampler=SamplerSpec(solver="euler", steps=5, shift=5.0),
    )
    return Contract(robot=robot, model=model)


@pytest.fixture(scope="session")
def episodes() -> EpisodeList:
    return EpisodeList([draw_episode(seed) for seed in range(24)])
