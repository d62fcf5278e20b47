"""What can go wrong between a policy and a robot: the robot holds, goes on when it can, and the reason is told."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cosmos_robot.contract.library import load_robot
from cosmos_robot.errors import ContractError
from cosmos_robot.hardware.asking import InProcess, Served
from cosmos_robot.hardware.chunks import Scheduler
from cosmos_robot.hardware.clock import MonotonicClock
from cosmos_robot.hardware.franka_model import HOME, joint_limits
from cosmos_robot.hardware.gate import Gate
from cosmos_robot.hardware.loop import ControlLoop, LoopSettings
from cosmos_robot.hardware.robot import Robot, Sent
from cosmos_robot.serve.client import PolicyClient
from cosmos_robot.types import ActionChunk, Observation

PICTURE = np.zeros((360, 640, 3), np.uint8)


class Franka(Robot):
    """DROID's arm as data: it is where it was told to be."""

    def __init__(self, name="droid-franka-fr3"):
        self.robot = load_robot(name)
        self.limits = joint_limits(self.robot)
        self.place, self.sent, self.stops = np.append(HOME, 0.0), [], 0

    def connect(self):
        pass

    def observe(self, instruction):
        state = {"joint_position": self.place[:7], "gripper_position": self.place[7:]}
        return Observation({c.name: PICTURE for c in self.robot.cameras}, state, instruction, time.monotonic())

    def position(self):
        return self.place

    def send(self, values):
        self.sent.append(values)
        self.place = values
        return Sent(values)

    def hold(self):
        pass

    def stop(self):
        self.stops += 1

    def recover(self):
        pass

    def close(self):
        pass


def loop(robot, asker, done, answer_timeout_s=60.0, **more):
    settings = LoopSettings("stay", answer_timeout_s=answer_timeout_s, seconds=240.0)
    scheduler = Scheduler(robot.robot, "latest", 16)
    return ControlLoop(robot, asker, scheduler, Gate(robot.limits), MonotonicClock(), settings, done=done, **more)


@pytest.fixture
def start():
    """Start the server on a port; everything that was started is killed at the end."""
    started = []

    def begin(port):
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server_process.py")), str(port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_server_killed_while_it_is_asked_holds_the_robot_until_it_is_back(start, port):
    server, robot, events, ticks = start(port), Franka(), {}, Counting()
    address = server.stdout.readline().strip()

    def meddle():
        if "killed" not in events and len(robot.sent) >= 5:
            server.kill()
            server.wait()
            events["killed"] = len(robot.sent)
        elif "killed" in events and "back" not in events and ticks.holds.total() > 20:
            start(port)
            events["back"] = len(robot.sent)
        return "back" in events and len(robot.sent) > events["back"] + 5

    with PolicyClient(address, timeout_s=60) as client:
        report = loop(robot, Served(client, robot.robot), meddle, answer_timeout_s=1.0, witnesses=(ticks,)).run()
    assert report.ended == "done" and report.lost > 0, report.words
    lost = next(i for i, word in enumerate(report.words) if "answer lost" in word)
    assert any("moving again" in word for word in report.words[lost:]), report.words
    assert robot.stops == 1


class Counting:
    """A witness that counts holds while the loop runs."""

    def __init__(self):
        self.holds = Counter()

    def tick(self, tick):
        if tick.sent is None:
            self.holds[tick.hold] += 1


def test_a_checkpoint_for_another_robot_is_refused_before_anything_moves(start, port):
    address = start(port).stdout.readline().strip()
    with PolicyClient(address, timeout_s=60) as client:
        with pytest.raises(ContractError, match="does not fit"):
            Served(client, load_robot("aloha"))
        faster = load_robot("droid-franka-fr3").model_copy(update={"rate_hz": 25.0})
        with pytest.raises(ContractError, match="rate_hz"):
            Served(client, faster)


class Answering:
    """A policy that answers with whatever it is made with, then with staying."""

    def __init__(self, first):
        self.first, self.asked = first, 0

    def act(self, observations, seeds, committed=None):
        self.asked += 1
        (seen,) = observations
        place = np.append(seen.state["joint_position"], seen.state["gripper_position"])
        return [ActionChunk(self.first(place) if self.asked <= 2 else np.tile(place, (32, 1)), 15.0, seen.time)]


@pytest.mark.parametrize("what", ["NaN", "empty"])
def test_pc_48_pc_41_a_chunk_that_is_no_chunk_is_lost_and_told(what):
    def broken(place):
        if what == "empty":
            return np.empty((0, 8))
        rows = np.tile(place, (32, 1))
        rows[5, 2] = np.nan
        return rows

    robot = Franka()
    asker = InProcess(Answering(broken))
    report = loop(robot, asker, lambda: len(robot.sent) > 3).run()
    asker.close()
    assert report.ended == "done" and report.lost == 2
    assert any(("dimension 2 is nan" if what == "NaN" else "shape") in w for w in report.words), report.words
    assert np.isfinite(robot.sent).all()


def test_pc_41_a_chunk_of_one_row_is_used_and_then_held():
    robot = Franka()
    asker = InProcess(Answering(lambda place: place[None]))
    report = loop(robot, asker, lambda: len(robot.sent) > 40).run()
    asker.close()
    assert report.ended == "done" and not report.lost


def test_a_chunk_of_another_width_is_lost_and_told():
    robot = Franka()
    asker = InProcess(Answering(lambda place: place[None, :7]))
    report = loop(robot, asker, lambda: len(robot.sent) > 3).run()
    asker.close()
    assert report.lost == 2 and any("width 7" in w for w in report.words)


def test_the_dead_man_lets_nothing_through():
    robot, ticks = Franka(), Counting()
    asker = InProcess(Answering(lambda place: np.tile(place, (32, 1))))
    done = lambda: sum(n for reason, n in ticks.holds.items() if "dead-man" in reason) > 5  # noqa: E731
    report = loop(robot, asker, done, witnesses=(ticks,), alive=lambda: False).run()
    asker.close()
    assert report.ended == "done" and not robot.sent and robot.stops == 1
