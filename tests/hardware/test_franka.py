"""The Franka driver: real franky over its real protocol, against franky-sim in a process of its own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("franky")
pytest.importorskip("franky_sim")

import franky

from cosmos_robot.errors import InputError, RobotError
from cosmos_robot.hardware import conformance
from cosmos_robot.hardware import franka_model as model
from cosmos_robot.hardware.asking import Late
from cosmos_robot.hardware.chunks import Scheduler
from cosmos_robot.hardware.clock import MonotonicClock
from cosmos_robot.hardware.franka import FrankaCartesianRobot, FrankaOptions, FrankaRobot
from cosmos_robot.hardware.franka_sim import FrankaSimRobot, SimulatedArm, simulator_options
from cosmos_robot.hardware.gate import Gate
from cosmos_robot.hardware.loop import ControlLoop, LoopSettings
from cosmos_robot.hardware.trial import Circle, Network, run_trial

PERIOD = 1 / 15
PATIENCE_S = 240.0
"""For what takes a second, on a machine that does other things."""


@pytest.fixture(scope="module")
def arm():
    """One simulated arm for the tests that leave it alive."""
    made = SimulatedArm()
    yield made
    made.close()


@pytest.fixture
def robot(arm):
    made = FrankaRobot(arm.host, simulator_options())
    with made:
        yield made


def wait(robot, seconds):
    """Until the arm's own clock has gone on that far, which on a busy machine is slower than ours."""
    clock = lambda: robot._read().time.to_msec()  # noqa: E731
    due, end = clock() + 1000 * seconds, time.monotonic() + PATIENCE_S
    while clock() < due:
        assert time.monotonic() < end, "the arm's clock stands still"
        time.sleep(0.002)


def drive(robot, joints, ticks):
    """Go towards ``joints`` (7,) as fast as the gate lets it. Returns what the robot had to say."""
    gate, notes = Gate(robot.limits), []
    last = robot.position()
    for _ in range(ticks):
        step = np.clip(np.append(joints, 0.0) - last, -0.06, 0.06)
        verdict = gate.check(last + step, robot.position(), 0.0, PERIOD)
        assert verdict.values is not None, verdict.reason
        sent = robot.send(verdict.values)
        last, notes = sent.values, [*notes, *sent.notes]
        wait(robot, PERIOD)
    robot.hold()
    return notes


def arrived(robot):
    """The state once the arm is where it was led."""
    end = time.monotonic() + PATIENCE_S
    while np.abs((state := robot._read()).q - state.q_d).max() > 4e-3:
        assert time.monotonic() < end, f"it never arrives: {state.q - state.q_d}, in control {robot._in_control}"
        time.sleep(0.05)
    return state


def test_the_promises_of_every_robot_hold(arm):
    made = lambda: FrankaRobot(arm.host, simulator_options())  # noqa: E731
    assert conformance.run(made) == list(conformance.CHECKS)


def test_under_poses_of_the_tool_they_hold_too(arm):
    made = lambda: FrankaCartesianRobot(arm.host, simulator_options())  # noqa: E731
    assert conformance.run(made) == list(conformance.CHECKS)


def test_the_arm_follows_and_kinematics_agree_with_the_controllers(robot):
    for offset in (0.3, -0.2):
        before = robot.position()
        assert not drive(robot, model.HOME + offset * np.array([1, 0.5, -1, 0.5, 1, 1, -1]), 14)
        state = arrived(robot)
        np.testing.assert_allclose(model.tool_pose(state.q), state.O_T_EE.matrix, atol=6e-3)
        assert np.abs(state.q - before[:7]).max() > 0.05


def test_a_motion_that_ends_stays_in_control(robot):
    """Where motions had no waypoint to settle at, one in five broke off as it arrived."""
    start, generator = robot.position(), np.random.default_rng(0)
    for _ in range(20):
        place = start.copy()
        place[:7] += generator.uniform(-0.02, 0.02, 7)
        assert not robot.send(place).notes
        wait(robot, 0.25)
    robot.hold()
    assert robot._in_control and robot._link.robot.is_in_control


@pytest.fixture
def failing(robot, monkeypatch):
    """Give the planner motions that it fails on at once (code -100: beyond the speed limit): how many yet to come."""
    left, motion = [0], robot._motion

    def made(target, velocity):
        if not left[0]:
            return motion(target, velocity)
        left[0] -= 1
        beyond = franky.JointState(target, np.full(7, 100.0))
        return franky.JointWaypointMotion([franky.JointWaypoint(beyond)], return_when_finished=False)

    monkeypatch.setattr(robot, "_motion", made)
    return left


def test_where_the_planner_fails_the_arm_goes_on_from_where_it_stopped(robot, failing):
    start = robot.position()
    goal = start[:7] + 0.3 * np.array([1, 0, -1, 0, 1, 0, -1])
    assert not drive(robot, goal, 4)
    failing[0] = 1
    notes = drive(robot, goal, 10)
    planner = [n for n in notes if n.startswith("planner: failed")]
    assert len(planner) == 1 and "-100" in planner[0], notes
    drive(robot, goal, 4)
    assert robot._in_control and np.abs(arrived(robot).q - goal).max() < 0.02
    assert robot._failed == 0


def test_a_failure_that_shows_when_the_next_motion_is_begun_is_met_at_once(robot, failing, monkeypatch):
    here = robot.position()
    failing[0] = 1
    step = 0.02 * np.append(np.ones(7), 0.0)
    robot.send(here + step)
    while robot._link.robot.is_in_control:
        time.sleep(0.01)
    with monkeypatch.context() as unread:
        unread.setattr(robot, "_require_alive", lambda: None)
        sent = robot.send(here + 2 * step)
    assert len([n for n in sent.notes if n.startswith("planner: failed")]) == 1
    wait(robot, 0.3)
    assert robot._in_control and np.abs(arrived(robot).q - sent.values[:7]).max() < 0.02


def test_a_planner_that_keeps_failing_is_a_fault_and_recovered_from(robot, failing):
    here = robot.position()
    failing[0] = 100
    notes = []
    with pytest.raises(RobotError, match=r"failed on 4 motions in a row.*-100"):
        for sent in range(8):
            notes += robot.send(here + (sent % 2 + 1) * 0.01 * np.append(np.ones(7), 0.0)).notes
            while robot._link.robot.is_in_control:
                time.sleep(0.01)
    assert len([n for n in notes if n.startswith("planner: failed")]) == 3
    failing[0] = 0
    robot.recover()
    assert not robot.send(here).notes
    wait(robot, 0.3)
    assert robot._in_control


def test_the_planner_keeps_to_both_arms_limits(robot):
    franka = robot._link.robot
    np.testing.assert_allclose(franka.joint_acceleration_limit.get(), model.JOINT_ACCELERATION)
    np.testing.assert_allclose(franka.joint_jerk_limit.get(), model.JOINT_JERK)
    assert franka.translation_acceleration_limit.get() == model.TRANSLATION[1]
    assert franka.elbow_velocity_limit.get() == model.ELBOW[0]
    assert franka.relative_dynamics_factor.velocity == robot.options.speed


def test_what_may_not_be_sent_is_refused_by_the_driver_itself(robot):
    """PC-48 and PC-50 where no gate stands before it."""
    here = robot.position()
    for joint, value, why in ((0, 1.0, "first action"), (0, -1.0, "first action"), (3, np.nan, "finite")):
        with pytest.raises(RobotError, match=why):
            robot.send(here + np.eye(8)[joint] * value)
    with pytest.raises(RobotError, match="width"):
        robot.send(here[:7])
    with pytest.raises(RobotError, match="finite"):
        robot.send(np.append(here[:7], np.inf))
    assert not robot._in_control


def test_pc_51_the_hand_turns_with_hysteresis_and_repeats_nothing(robot):
    here = robot.position()
    values = [0.0, 0.0, 0.55, 0.7, 0.9, 0.45, 0.55]  # open, open, stays, closes, closed, stays, stays
    sent = []
    for value in values:
        sent.append(robot.send(np.append(here[:7], value)).values[7])
        time.sleep(PERIOD)
    assert sent == [0, 0, 0, 1, 1, 1, 1]
    end = time.monotonic() + PATIENCE_S
    while robot.position()[7] < 0.9:
        assert time.monotonic() < end, "it never closed"
        time.sleep(0.05)
    opened = [open for _, open in robot._gripper.sent]
    assert opened in ([True, False], [False]), "the first opening may be overtaken by the closing"


def test_commands_slow_down_near_the_end_of_a_joints_range(robot):
    before = model.HOME + [2.6, 0, 0, 0, 0, 0, 0]
    target, notes = robot._slowed(before + [0.07, 0.07, 0, 0, 0, 0, 0], before)
    assert target[0] == pytest.approx(2.6 + PERIOD * (-0.3 + np.sqrt(12 * 0.1501)))
    assert target[1] == pytest.approx(before[1] + 0.07) and notes == ("joint 1: slowed near the end of its range",)


def test_a_second_client_is_told_and_gets_in_when_the_first_has_gone(robot):
    second = FrankaRobot(robot.host, FrankaOptions(realtime="ignore", connect_timeout_s=0.5))
    with pytest.raises(RobotError, match="another program"):
        second.connect()
    robot.close()
    second._link.connect(60.0)  # the attempt that hung is the one that succeeds
    assert second._link.robot.state is not None
    second.close()


def test_nobody_there(arm):
    nobody = FrankaRobot("127.255.0.1", FrankaOptions(realtime="ignore", connect_timeout_s=3.0))
    with pytest.raises(RobotError, match=r"refused.*FCI active"):
        nobody.connect()
    nobody.close()
    with pytest.raises(InputError, match="force"):
        FrankaOptions(force=0.0)


def looping(robot, seconds, until=lambda report: False, **settings):
    circle = Circle(robot.robot, robot.position())
    asker = Late(lambda o, seed, c: circle.chunk(o, c), lambda g: 0.1, 0.0, np.random.default_rng(0))
    return ControlLoop(
        robot,
        asker,
        Scheduler(robot.robot, "rtc", 16),
        Gate(robot.limits),
        MonotonicClock(),
        LoopSettings("turn", seconds=seconds, **settings),
        done=until,
    )


def test_a_controller_that_freezes_is_connected_anew_and_the_arm_goes_on():
    with FrankaSimRobot() as robot:
        process, moments = robot.simulator.process, {}

        def meddle():
            """Freeze it once the arm moves; thaw it once the driver has let go of the dead connection."""
            if "frozen" not in moments and robot._last is not None:
                os.kill(process.pid, signal.SIGSTOP)
                moments["frozen"] = True
            return moments.get("recovered", 0) > 5

        recover, send = robot.recover, robot.send

        def recovering():
            moments["fault"] = True
            os.kill(process.pid, signal.SIGCONT)
            recover()

        def sending(values):
            sent = send(values)
            if "fault" in moments:
                moments["recovered"] = moments.get("recovered", 0) + 1
            return sent

        robot.recover, robot.send = recovering, sending
        report = looping(robot, 120, meddle).run()
    assert report.ended == "done" and report.faults >= 1, report.words
    assert any("robot fault: arm" in w for w in report.words), report.words


def test_a_controller_that_dies_ends_the_run_with_the_reason():
    options = FrankaOptions(realtime="ignore", connect_timeout_s=120, recover_timeout_s=1.0)
    with FrankaSimRobot(options) as robot:
        killed = []

        def meddle():
            if not killed and robot._last is not None:
                robot.simulator.process.kill()
                killed.append(True)
            return False

        report = looping(robot, 120, meddle).run()
        assert "cannot be recovered" in report.ended and robot.host in report.ended, report.words
        robot.stop()


def test_a_controller_that_comes_back_is_found_again():
    with FrankaSimRobot() as robot:
        robot.send(robot.position())
        robot.simulator.close()
        with pytest.raises(RobotError):
            for _ in range(400):
                robot.position()
                time.sleep(PERIOD)
        robot.simulator = SimulatedArm(robot.host)
        robot.options = simulator_options()
        robot.recover()
        robot.send(robot.position())
        robot.hold()


def test_the_simulator_ends_with_whoever_started_it(tmp_path):
    import subprocess
    import sys

    code = (
        "import os\n"
        "from cosmos_robot.hardware.franka_sim import SimulatedArm\n"
        "print(SimulatedArm().process.pid, flush=True)\n"
        "os._exit(1)"
    )
    pid = int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True).stdout)
    end = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < end, "it is still there"
        time.sleep(0.1)


def test_a_drive_through_a_slow_network():
    """What ``bench loop`` measures, in short; times of this machine are not judged here."""
    figures = run_trial(FrankaSimRobot(), Network((0.2, 0.4), dropped=0.1), 8)
    assert figures["aborts"] == 0 and figures["sent"] > 0 and figures["path"]["travelled_rad"] > 0
    told = figures["path"]["fastest_told_share"]
    assert told <= 1 + 1e-6 and figures["path"]["nearest_to_a_limit_rad"] > 0
