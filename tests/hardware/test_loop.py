"""The whole loop against simulated robots, on a virtual clock."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.contract import FieldSpec, RobotSpec
from cosmos_robot.envs import make
from cosmos_robot.errors import InputError, RobotError
from cosmos_robot.hardware.asking import Late
from cosmos_robot.hardware.chunks import STRATEGIES, Scheduler
from cosmos_robot.hardware.clock import VirtualClock
from cosmos_robot.hardware.gate import Gate, Limits
from cosmos_robot.hardware.loop import ControlLoop, LoopSettings
from cosmos_robot.hardware.robot import Robot, Sent
from cosmos_robot.hardware.simulated import SimulatedRobot
from cosmos_robot.types import ActionChunk, Observation

ARM = RobotSpec(
    name="arm",
    cameras=(),
    state=(FieldSpec(name="joint", width=2, unit="rad"),),
    action=(FieldSpec(name="joint", width=2, unit="rad", kind="joint"),),
    action_reference="absolute",
    rate_hz=15,
)
SPEED = 0.5  # rad/s
LIMITS = Limits.of(
    ARM, max_step={"joint": 0.1}, max_rate={"joint": 1.0}, max_first={"joint": 0.1}, max_jump={"joint": 0.3}
)


class Arm(Robot):
    """Goes where it is told; can be made to fail."""

    def __init__(self, clock, fail_at=(), recovers=True):
        self.robot, self.limits = ARM, LIMITS
        self.clock, self.fail_at, self.recovers = clock, set(fail_at), recovers
        self.place, self.path, self.holds, self.stops, self.sends = np.zeros(2), [], 0, 0, 0

    def connect(self):
        pass

    def observe(self, instruction):
        return Observation({}, {"joint": self.place}, instruction, self.clock.now())

    def position(self):
        return self.place

    def send(self, values):
        self.sends += 1
        if self.sends in self.fail_at:
            raise RobotError("the arm let go")
        self.place = values
        self.path.append((self.clock.now(), values[0]))
        return Sent(values)

    def hold(self):
        self.holds += 1

    def stop(self):
        self.stops += 1

    def recover(self):
        if not self.recovers:
            raise RobotError("still gone")

    def close(self):
        pass


def onward(observation, seed, committed):
    """A steady turn from wherever the arm was seen."""
    steps = np.arange(1, 33)[:, None] * SPEED / ARM.rate_hz
    return ActionChunk(observation.state["joint"] + steps * [1.0, -1.0], ARM.rate_hz, observation.time)


def run(strategy="latest", latency=0.25, dropped=0.0, answer=onward, seconds=20.0, arm=None, **settings):
    clock = VirtualClock()
    arm = arm or Arm(clock)
    arm.clock = clock
    draw = latency if callable(latency) else lambda generator: latency
    asker = Late(answer, draw, dropped, np.random.default_rng(0))
    loop = ControlLoop(
        arm,
        asker,
        Scheduler(ARM, strategy, execute=16),
        Gate(LIMITS),
        clock,
        LoopSettings("turn", seconds=seconds, **settings),
    )
    return loop.run(), arm


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_steady_delay_moves_at_the_policys_speed(strategy):
    report, arm = run(strategy)
    assert report.ended == "time is up" and report.ticks == 300 and report.missed_ticks == 0
    steps = np.diff([x for _, x in arm.path])
    if strategy != "ensemble":  # its chunks each begin at a place the arm has left by then
        np.testing.assert_allclose(steps, SPEED / ARM.rate_hz, atol=1e-9)
    assert not report.interventions and arm.stops == 1
    if strategy != "sync":
        assert report.holds == {"no chunk yet": report.holds["no chunk yet"]} and report.holds.total() < 6


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_wild_latency_and_lost_answers_hold_and_resume(strategy):
    report, arm = run(strategy, latency=lambda g: g.uniform(0.1, 0.9), dropped=0.05, seconds=120, answer_timeout_s=1.0)
    assert report.ended == "time is up" and report.lost > 0
    assert set(report.interventions) <= {"stale: observation"}, report.words
    assert np.abs(np.diff([x for _, x in arm.path])).max() < 0.1
    assert report.sent > 600


def test_pc_48_a_chunk_with_a_bad_number_is_lost_and_the_arm_holds():
    def broken(observation, seed, committed):
        chunk = onward(observation, seed, committed)
        if seed % 3 == 1:
            values = np.array(chunk.values)
            values[5, 1] = np.nan
            return ActionChunk(values, ARM.rate_hz)
        return chunk

    class Raising(Late):
        def ask(self, observation, seed, committed, now):
            try:
                return super().ask(observation, seed, committed, now)
            except InputError as error:
                return _Failing(error)

    class _Failing:
        def __init__(self, error):
            self.error = error

        def poll(self, now):
            raise self.error

        def cancel(self):
            pass

    clock = VirtualClock()
    arm = Arm(clock)
    asker = Raising(broken, lambda g: 0.2, 0.0, np.random.default_rng(0))
    loop = ControlLoop(arm, asker, Scheduler(ARM, "latest", 16), Gate(LIMITS), clock, LoopSettings("turn", seconds=20))
    report = loop.run()
    assert report.lost > 0 and any("dimension 1 is nan" in w for w in report.words)
    assert np.isfinite([x for _, x in arm.path]).all() and report.sent > 200


def test_a_jump_in_the_answers_is_held_and_a_new_look_taken():
    def jumping(observation, seed, committed):
        chunk = onward(observation, seed, committed)
        return chunk if seed % 2 else ActionChunk(chunk.values + 1.0, ARM.rate_hz)

    report, arm = run(answer=jumping, seconds=30)
    assert report.holds["first action"] + report.holds["jump"] > 0
    assert np.abs(np.diff([x for _, x in arm.path])).max() < 0.1 and report.sent > 100


def test_the_dead_man_holds_the_arm():
    clock = VirtualClock()
    arm = Arm(clock)
    asker = Late(onward, lambda g: 0.1, 0.0, np.random.default_rng(0))
    loop = ControlLoop(
        arm,
        asker,
        Scheduler(ARM, "latest", 16),
        Gate(LIMITS),
        clock,
        LoopSettings("turn", seconds=10),
        alive=lambda: clock.now() < 5,
    )
    report = loop.run()
    assert report.holds["dead-man"] >= 70 and max(t for t, _ in arm.path) < 5.01


def test_a_robot_that_fails_is_recovered_and_begins_from_standstill():
    report, arm = run(arm=Arm(None, fail_at=(50, 120)))
    assert report.ended == "time is up" and report.faults == 2 and report.sent > 200
    assert np.abs(np.diff([x for _, x in arm.path])).max() < 0.1


def test_a_robot_that_stays_away_ends_the_run():
    report, arm = run(arm=Arm(None, fail_at=(50,), recovers=False))
    assert "cannot be recovered" in report.ended and arm.stops == 1
    report, arm = run(arm=Arm(None, fail_at=range(50, 400)))
    assert "failed 4 times: the arm let go" in report.ended and arm.stops == 1


def test_an_overrun_is_counted_and_the_time_line_kept():
    clock = VirtualClock()
    arm = Arm(clock)

    class Slow(Late):
        def ask(self, observation, seed, committed, now):
            if seed == 3:
                clock.sleep_until(clock.now() + 0.35)  # somebody blocked the loop for five periods
            return super().ask(observation, seed, committed, now)

    asker = Slow(onward, lambda g: 0.1, 0.0, np.random.default_rng(0))
    report = ControlLoop(
        arm, asker, Scheduler(ARM, "latest", 16), Gate(LIMITS), clock, LoopSettings("turn", seconds=10)
    ).run()
    assert report.missed_ticks == 4 and report.ticks + report.missed_ticks == 150
    assert any("overrun" in w for w in report.words)


def test_committed_rows_reach_the_policy():
    seen = []

    def noting(observation, seed, committed):
        seen.append(committed)
        chunk = onward(observation, seed, committed)
        if committed is not None:
            np.testing.assert_allclose(committed, chunk.values[: len(committed)], atol=1e-9)
        return chunk

    run("rtc", answer=noting)
    assert seen[0] is None and sum(c is not None for c in seen) > 10


@pytest.mark.parametrize("latency", [0.0, 0.3])
def test_an_environment_as_a_robot(latency):
    clock = VirtualClock()
    env = make("fake/0", step_budget=400)
    robot = SimulatedRobot(env, clock, seed=0)

    def to_target(observation, seed, committed):
        delta = np.clip((env._target - observation.state["position"]) / 0.02, -1, 1)
        rows = np.tile([*delta, 1.0], (4, 1))
        return ActionChunk(rows, env.robot.rate_hz)

    asker = Late(to_target, lambda g: latency, 0.0, np.random.default_rng(0))
    with robot:
        loop = ControlLoop(
            robot,
            asker,
            Scheduler(env.robot, "sync", 4),
            Gate(robot.limits),
            clock,
            LoopSettings("", seconds=15),
            done=lambda: robot.ended,
        )
        report = loop.run()
    assert robot.success and report.ended == "done"


@pytest.mark.parametrize("name", ["answer_timeout_s", "seconds"])
def test_bad_settings_are_refused(name):
    with pytest.raises(InputError, match=name):
        LoopSettings("turn", **{name: 0.0})
