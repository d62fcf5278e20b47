"""The numbers of the arm and its kinematics; nothing here needs franky. Poses are pinned to franky-sim's in
``test_franka.py``."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.contract.library import load_robot
from cosmos_robot.errors import InputError
from cosmos_robot.hardware import franka_model as model
from cosmos_robot.hardware.gate import Gate

FR3 = load_robot("droid-franka-fr3")


def test_the_arm_stretched_up_is_as_high_as_its_links():
    flange = model.tool_pose(np.zeros(7), np.eye(4))
    np.testing.assert_allclose(flange[:3, 3], [0.088, 0, 0.333 + 0.316 + 0.384 - 0.107], atol=1e-12)
    np.testing.assert_allclose(flange[:3, :3], np.diag([1, -1, -1]), atol=1e-12)  # looks down
    hand = model.tool_pose(np.zeros(7))
    np.testing.assert_allclose(hand[:3, 3], flange[:3, 3] - [0, 0, 0.1034], atol=1e-12)


def test_limits_are_the_smaller_of_both_arms():
    np.testing.assert_array_equal(model.JOINT_VELOCITY, [2.175] * 4 + [2.61] * 3)
    np.testing.assert_array_equal(model.JOINT_ACCELERATION, [10, 7.5, 10, 10, 10, 10, 10])
    np.testing.assert_array_equal(model.JOINT_JERK, [5000, 3750] + [5000] * 5)
    np.testing.assert_array_equal(FR3.action[0].low, model.FR3_LOW)
    np.testing.assert_array_equal(FR3.action[0].high, model.FR3_HIGH)


def test_speed_falls_to_zero_towards_the_end_of_a_joints_range():
    low, high = model.velocity_range(model.HOME)
    np.testing.assert_array_equal([-low[0], high[0]], model.JOINT_VELOCITY[[0, 0]])
    low, high = model.velocity_range(model.FR3_HIGH)
    np.testing.assert_allclose(high, 0, atol=0.15)
    assert (low[[0, 2]] < -2).all(), "back from the end is free"
    low, high = model.velocity_range(model.FR3_LOW)
    np.testing.assert_allclose(low, 0, atol=0.15)
    # joint 1 at 2.6 rad: -0.3 + sqrt(12 * (2.7501 - 2.6))
    near = model.HOME + [2.6, 0, 0, 0, 0, 0, 0]
    assert model.velocity_range(near)[1][0] == pytest.approx(-0.3 + np.sqrt(12 * 0.1501))
    assert model.velocity_range(-near)[0][0] == pytest.approx(0.3 - np.sqrt(12 * 0.1501))


def test_joint_limits_keep_their_distance_from_the_ends():
    limits = model.joint_limits(FR3)
    np.testing.assert_allclose(limits.low[:7], model.FR3_LOW + 0.1)
    np.testing.assert_allclose(limits.max_rate[:7], 0.5 * model.JOINT_VELOCITY)
    assert (limits.low[7], limits.high[7]) == (0, 1) and np.isinf(limits.max_step[7])
    with pytest.raises(InputError, match="speed"):
        model.joint_limits(FR3, speed=1.5)


def test_a_joint_command_that_leaves_the_workspace_is_held():
    home = np.append(model.HOME, 0.0)
    tool = model.tool_position(home)
    gate = Gate(model.joint_limits(FR3, workspace=(tool - 0.1, tool + 0.1)), model.tool_position)
    assert gate.check(home, home, 0.0, 1 / 15).values is not None
    narrow = Gate(model.joint_limits(FR3, workspace=(tool + 0.01, tool + 0.1)), model.tool_position)
    verdict = narrow.check(home, home, 0.0, 1 / 15)
    assert verdict.values is None and "workspace: tool x" in verdict.reason


@pytest.mark.parametrize("joints", [np.zeros(6), np.zeros((1, 7))])
def test_joints_of_another_shape_are_refused(joints):
    with pytest.raises(InputError, match="expected \\(7,\\)"):
        model.tool_pose(joints)
