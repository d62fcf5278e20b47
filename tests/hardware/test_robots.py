"""Robots by name, what they promise, and a drive through a slow network."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import numpy as np
import pytest

from cosmos_robot.bench.commands import _latency
from cosmos_robot.contract.library import load_robot
from cosmos_robot.envs.fakes import FakeEnv
from cosmos_robot.errors import InputError, RobotError, UnknownNameError
from cosmos_robot.hardware import conformance
from cosmos_robot.hardware.clock import before_others
from cosmos_robot.hardware.robots import Setup, make_robot, robot_kinds
from cosmos_robot.hardware.simulated import SimulatedRobot
from cosmos_robot.hardware.trial import Circle, Network
from cosmos_robot.types import Observation


def test_a_miss_is_told_with_the_nearest_names():
    with pytest.raises(UnknownNameError, match="franka-sim"):
        make_robot("franka-sin")
    with pytest.raises(UnknownNameError, match="fake"):
        make_robot("sim:fakes/0")
    assert {"franka", "franka-sim", "aloha", "aloha-sim"} < set(robot_kinds())


def test_a_host_is_asked_for_where_there_is_one():
    with pytest.raises(InputError, match="needs host"):
        make_robot("franka")
    with pytest.raises(InputError, match="takes no host"):
        make_robot("aloha-sim", Setup(host="127.0.0.1"))


@pytest.mark.parametrize("name", ["sim:fake/0", "aloha-sim"])
def test_simulated_robots_keep_their_promises(name):
    if name == "aloha-sim":
        pytest.importorskip("gym_aloha")
    assert conformance.run(lambda: make_robot(name)) == list(conformance.CHECKS)


def test_a_robot_that_breaks_a_promise_is_told_which():
    pytest.importorskip("gym_aloha")

    class Drifting(SimulatedRobot):
        drift = 0.0

        def hold(self):
            self.drift += 0.02

        def position(self):
            return super().position() + self.drift

    class Silent(SimulatedRobot):
        def send(self, values):
            return super().send(np.nan_to_num(values))

    whole = make_robot("sim:fake/0")
    with pytest.raises(AssertionError, match="NaN in dimension 0"):
        conformance.run(lambda: Silent(whole._env, whole._clock, seed=0))
    arms = make_robot("aloha-sim")
    with pytest.raises(AssertionError, match="while it was to hold"):
        conformance.run(lambda: Drifting(arms._env, arms._clock, arms.limits, arms._fields, seed=0))


def test_aloha_is_driven_at_half_its_rate_by_repeating_commands():
    pytest.importorskip("gym_aloha")
    robot = make_robot("aloha-sim", Setup(rate_hz=25))
    with robot:
        assert robot.robot.rate_hz == 25
        robot.send(robot.position())
        assert robot._env.control_steps == 2
    with pytest.raises(InputError, match="cannot be driven at 40"):
        make_robot("aloha-sim", Setup(rate_hz=40))
    with pytest.raises(InputError, match="cannot be driven"):
        make_robot("sim:fake/0", Setup(rate_hz=1))


def test_a_simulator_that_was_refused_is_let_go_of(monkeypatch):
    closed = []
    monkeypatch.setattr(FakeEnv, "close", lambda env: closed.append(env))
    with pytest.raises(InputError, match="cannot be driven"):
        make_robot("sim:fake/0", Setup(rate_hz=1))
    assert len(closed) == 1
    make_robot("sim:fake/0")
    assert len(closed) == 1


def test_the_trials_policy_goes_on_from_what_it_was_given():
    spec = load_robot("droid-franka-fr3")
    home = np.append(np.linspace(-1, 1, 7), 0.0)
    circle = Circle(spec, home, lag_s=0.0)
    state = {"joint_position": home[:7], "gripper_position": home[7:]}
    first = circle.chunk(Observation({}, state, "turn"), None).values
    committed = first[5:9]
    second = circle.chunk(Observation({}, state, "turn"), committed).values
    np.testing.assert_allclose(second[:4], committed)
    np.testing.assert_allclose(second[4:20, :7], first[9:25, :7], atol=1e-9)
    steps = np.linalg.norm(np.diff(second[:, :7], axis=0), axis=1)
    assert steps.max() < 2 * circle.step_rad and steps.min() > 0.5 * circle.step_rad
    with pytest.raises(InputError, match="not told joint positions"):
        Circle(load_robot("libero-panda"), np.zeros(7))._pairs()


def test_networks_are_described_in_milliseconds():
    assert _latency("250") == (0.25, 0.25) and _latency("100:900") == (0.1, 0.9)
    with pytest.raises(InputError, match="SHORTEST:LONGEST"):
        _latency("fast")
    with pytest.raises(InputError, match="latency"):
        Network((0.9, 0.1))
    with pytest.raises(InputError, match="drop"):
        Network(dropped=1.0)


def test_priority_is_given_back():
    import os

    before = os.sched_getscheduler(0)
    with before_others() as first:
        assert first == (os.sched_getscheduler(0) != before)
    assert os.sched_getscheduler(0) == before


def test_without_franky_the_extra_is_named():
    code = (
        "import sys; sys.modules['franky'] = None\n"
        "from cosmos_robot.errors import DependencyError\n"
        "from cosmos_robot.hardware.robots import Setup, make_robot\n"
        "try: make_robot('franka', Setup(host='127.0.0.1'))\n"
        "except DependencyError as error: assert 'cosmos-robot[franka]' in str(error), error\n"
        "else: raise SystemExit('not refused')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_robot_that_was_not_connected_says_so():
    with pytest.raises(RobotError, match="connect"):
        make_robot("sim:fake/0").observe("")


def test_a_simulation_reports_as_the_robot_of_the_policy_that_drives_it():
    pytest.importorskip("libero")
    for asked, expected in (
        ("libero-panda-quat", "libero-panda-quat"),
        ("pusht", "libero-panda"),
        (None, "libero-panda"),
    ):
        with contextlib.closing(make_robot("sim:libero_spatial/0", Setup(speaks=asked))) as robot:
            assert robot.robot.name == ("libero-panda-quat" if asked == "libero-panda-quat" else "libero-panda")
