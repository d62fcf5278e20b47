"""Robots as data, for the parts of the control loop that need no robot."""

import pytest

from cosmos_robot.contract import FieldSpec, GripperSpec, RobotSpec


@pytest.fixture
def arm() -> RobotSpec:
    """Two joints and a binary gripper, absolute targets at 10 Hz."""
    return RobotSpec(
        name="arm",
        cameras=(),
        state=(),
        action=(
            FieldSpec(name="joint", width=2, unit="rad", kind="joint", low=(-2.0, -2.0), high=(2.0, 2.0)),
            FieldSpec(name="gripper", width=1, unit="1", kind="gripper", low=(0.0,), high=(1.0,)),
        ),
        action_reference="absolute",
        gripper=GripperSpec(field="gripper", open_value=0.0, closed_value=1.0, kind="binary"),
        rate_hz=10,
    )
