"""Grippers and cameras on threads of their own, with drivers that block and break."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from waiting import PATIENCE_S, until

from cosmos_robot.contract import CameraSpec, RobotSpec
from cosmos_robot.errors import ContractError, RobotError
from cosmos_robot.hardware.asking import Late
from cosmos_robot.hardware.cameras import ThreadedCamera, fitted, pictures
from cosmos_robot.hardware.chunks import Scheduler
from cosmos_robot.hardware.clock import VirtualClock
from cosmos_robot.hardware.gate import UNLIMITED, Gate, Limits
from cosmos_robot.hardware.gripper import Gripper
from cosmos_robot.hardware.loop import ControlLoop, LoopSettings
from cosmos_robot.hardware.robot import Robot, Sent
from cosmos_robot.types import ActionChunk, Observation


class StickyHand:
    """Every motion blocks until ``free`` is set, and a reading takes a while."""

    def __init__(self):
        self.free, self.started, self.open = threading.Event(), threading.Event(), True

    def start(self, open):
        self.started.set()
        assert self.free.wait(PATIENCE_S)
        self.open = open

    def settled(self, wait_s):
        return True

    def openness(self):
        return float(self.open)

    def close(self):
        self.closed = True


@pytest.fixture
def hand():
    made = StickyHand()
    yield made
    made.free.set()


def test_pc_51_the_newest_command_wins_and_repeats_are_not_sent(hand):
    gripper = Gripper(lambda: hand)
    gripper.wait(PATIENCE_S)
    gripper.command(False)
    assert hand.started.wait(PATIENCE_S)  # now it blocks
    for i in range(50):
        gripper.command(i % 2 == 0)  # open first, closed last
    gripper.command(True)
    gripper.command(True)
    hand.free.set()
    until(lambda: hand.open and len(gripper.sent) == 2)
    for _ in range(20):
        gripper.command(True)
    gripper.close()
    assert [open for _, open in gripper.sent] == [False, True]


class GrippingArm(Robot):
    """One number for the arm, one for a gripper that may block."""

    def __init__(self, arm: RobotSpec, gripper: Gripper):
        self.robot, self.gripper, self.place, self.sends = arm, gripper, np.zeros(2), 0
        free = {"joint": UNLIMITED, "gripper": UNLIMITED}
        self.limits = Limits.of(arm, max_step=free, max_rate=free, max_first=free, max_jump=free)

    def connect(self):
        self.gripper.wait(PATIENCE_S)

    def observe(self, instruction):
        return Observation({}, {}, instruction)

    def position(self):
        return np.append(self.place, self.gripper.openness)

    def send(self, values):
        self.sends += 1
        self.place = values[:2]
        self.gripper.command(values[2] < 0.5)
        return Sent(values)

    def hold(self):
        pass

    def stop(self):
        pass

    def recover(self):
        pass

    def close(self):
        self.gripper.close()


def test_pc_51_a_blocking_gripper_does_not_touch_the_loop(arm, hand):
    """The hand is stuck in its first motion for the whole run; not one tick of the arm is late for it."""
    clock = VirtualClock()
    robot = GrippingArm(arm, Gripper(lambda: hand))

    def answer(observation, seed, committed):
        return ActionChunk([[0.0, 0.0, float(i % 3 == 0)] for i in range(20)], arm.rate_hz)

    asker = Late(answer, lambda g: 0.1, 0.0, np.random.default_rng(0))
    with robot:
        loop = ControlLoop(
            robot, asker, Scheduler(arm, "latest", 10), Gate(robot.limits), clock, LoopSettings("grip", seconds=60)
        )
        report = loop.run()
        assert hand.started.is_set() and not hand.free.is_set()
        assert report.missed_ticks == 0 and report.sent >= 598 and len(robot.gripper.sent) == 1
        hand.free.set()


def test_a_gripper_that_breaks_is_connected_anew_and_told_again():
    made = []

    class Breaking(StickyHand):
        def __init__(self):
            super().__init__()
            self.free.set()
            made.append(self)

        def start(self, open):
            if len(made) == 1:
                raise OSError("the cable is loose")
            super().start(open)

    gripper = Gripper(Breaking)
    gripper.wait(PATIENCE_S)
    gripper.command(False)
    until(lambda: len(made) == 2 and not made[1].open)
    gripper.close()
    assert made[0].closed and made[1].closed


def test_a_gripper_that_never_answers_says_why():
    def missing():
        raise OSError("no such device")

    gripper = Gripper(missing)
    until(lambda: "no such device" in gripper.fault)
    with pytest.raises(RobotError, match="no such device"):
        gripper.wait(0.5)
    with pytest.raises(RobotError, match="gripper"):
        assert gripper.openness
    gripper.close()


def test_cameras_give_the_newest_picture_with_its_time(arm):
    count, go = [0], threading.Semaphore(3)

    def read():
        assert go.acquire(timeout=PATIENCE_S)
        count[0] += 1
        return np.full((2, 3, 3), count[0], np.uint8)

    camera = ThreadedCamera("wrist", read)
    until(lambda: count[0] == 3)
    until(lambda: camera._newest is not None and camera.latest()[0][0, 0, 0] == 3)
    taken = camera.latest()[1]
    assert taken <= time.monotonic()
    assert pictures({"wrist": camera}, taken + 0.4)["wrist"][0, 0, 0] == 3
    with pytest.raises(RobotError, match=r"'wrist'.*2\.0 s old"):
        pictures({"wrist": camera}, taken + 2)
    spec = arm.model_copy(update={"cameras": (CameraSpec(name="wrist", height=2, width=3),)})
    assert fitted(spec, {}).cameras == () and fitted(spec, {"wrist": camera}) == spec
    with pytest.raises(ContractError, match="no camera 'head'"):
        fitted(spec, {"head": camera})
    go.release()
    camera.close()


def test_a_camera_without_pictures_says_why():
    def broken():
        raise OSError("no such device")

    camera = ThreadedCamera("wrist", broken)
    until(lambda: "no such device" in camera._fault)
    with pytest.raises(RobotError, match="no such device"):
        camera.latest()
    camera.close()
