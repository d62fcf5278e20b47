"""ALOHA's arms behind the interface: units, refusals, and what every robot promises."""

from __future__ import annotations

import time

import numpy as np
import pytest

from cosmos_robot.errors import DependencyError, RobotError
from cosmos_robot.hardware import conformance
from cosmos_robot.hardware.aloha import FINGERS, MOTOR, AlohaRobot, InterbotixArm
from cosmos_robot.hardware.gate import Gate

HOME = np.array([0.0, -0.96, 1.16, 0.0, -0.3, 0.0])


class FakeArm:
    """A ViperX that goes where it is told."""

    def __init__(self):
        self.joints, self.finger, self.age, self.motor, self.writes, self.recovered = (
            HOME.copy(),
            0.058,
            0.0,
            None,
            0,
            0,
        )

    def read(self):
        return self.joints.copy(), self.finger, time.monotonic() - self.age

    def write(self, joints, motor):
        self.joints, self.motor, self.writes = np.array(joints), motor, self.writes + 1

    def recover(self):
        self.recovered += 1
        self.age = 0.0

    def close(self):
        pass


@pytest.fixture
def arms():
    return FakeArm(), FakeArm()


@pytest.fixture
def robot(arms):
    made = AlohaRobot(*arms, rate_hz=25)
    with made:
        yield made


def test_the_promises_of_every_robot_hold():
    assert conformance.run(lambda: AlohaRobot(FakeArm(), FakeArm(), rate_hz=50)) == list(conformance.CHECKS)


def test_grippers_are_seen_by_fingers_and_told_by_motor(robot, arms):
    state = robot.observe("fold").state
    assert state["left_gripper"] == pytest.approx(1) and state["right_joints"] == pytest.approx(HOME)
    arms[1].finger = 0.01844
    assert robot.observe("fold").state["right_gripper"] == pytest.approx(0)
    command = robot.position()
    command[6], command[13] = 1.0, 0.0
    robot.send(command)
    assert arms[0].motor == pytest.approx(1.4910) and arms[1].motor == pytest.approx(-0.6213)
    assert MOTOR.openness(0.43485) == pytest.approx(0.5) and FINGERS.openness(0.03822) == pytest.approx(0.5)


@pytest.mark.parametrize("distance", [1.0, -1.0])
@pytest.mark.parametrize("joint", [0, 3, 9])
def test_pc_50_jumps_are_caught_in_both_directions(robot, arms, joint, distance):
    """By the gate, and again by the robot itself, before anything moves."""
    command = robot.position()
    command[joint] += distance
    gate = Gate(robot.limits)
    verdict = gate.check(command, robot.position(), 0.0, 1 / 25)
    assert verdict.values is None and "first action" in verdict.reason
    with pytest.raises(RobotError, match="first action"):
        robot.send(command)
    assert not arms[0].writes and not arms[1].writes


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [2, 6, 13])
def test_pc_48_what_is_not_finite_is_never_sent(robot, arms, place, value):
    command = robot.position()
    command[place] = value
    with pytest.raises(RobotError, match="finite"):
        robot.send(command)
    assert not arms[0].writes


def test_an_arm_that_falls_silent_or_reads_nonsense_is_a_fault_until_recovered(robot, arms):
    arms[1].age = 3.0
    with pytest.raises(RobotError, match=r"right arm.*3\.0 s old"):
        robot.position()
    robot.stop()
    robot.recover()
    assert arms[1].recovered == 1 and np.isfinite(robot.position()).all()
    arms[0].joints[2] = np.nan
    with pytest.raises(RobotError, match="left arm"):
        robot.observe("fold")


def test_stopping_keeps_the_grip(robot, arms):
    command = robot.position()
    command[[6, 13]] = 0.0
    robot.send(command)
    arms[0].joints = HOME + 0.02  # still on its way
    robot.stop()
    np.testing.assert_allclose(arms[0].joints, HOME + 0.02)
    assert arms[0].motor == pytest.approx(-0.6213)


def test_without_its_driver_it_names_what_is_missing():
    try:
        import interbotix_xs_modules  # noqa: F401
    except ImportError:
        with pytest.raises(DependencyError, match="interbotix_xs_modules"):
            InterbotixArm("puppet_left", init_node=True)
    else:
        pytest.skip("the driver is installed here")
