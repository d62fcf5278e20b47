"""drive and replay, from the command line to the end of a simulated episode."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from cosmos_robot.backbone.cosmos3.untrained import save_untrained, untrained_contract
from cosmos_robot.cli import main
from cosmos_robot.contract import Contract
from cosmos_robot.data.layouts import open_recordings
from cosmos_robot.envs.fakes import FAKE_ROBOT, TASKS
from cosmos_robot.errors import CheckpointError, ContractError
from cosmos_robot.hardware.asking import Late
from cosmos_robot.hardware.clock import VirtualClock
from cosmos_robot.hardware.driving import Adapted, Answers, Replayed, fit
from cosmos_robot.hardware.gate import Gate, Limits
from cosmos_robot.hardware.loop import ControlLoop, LoopSettings
from cosmos_robot.hardware.robot import Robot, Sent
from cosmos_robot.serve.server import ServerSettings, ZmqServer
from cosmos_robot.serve.service import Models, Service
from cosmos_robot.types import ActionChunk, Observation

ROBOT = ["--robot", "sim:fake/1"]


@pytest.fixture(scope="module")
def contract() -> Contract:
    return untrained_contract(FAKE_ROBOT, "ck", chunk=8, execute=6)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, contract):
    folder = tmp_path_factory.mktemp("driven") / "ck"
    save_untrained(folder, contract, TASKS, num_hidden_layers=1)
    return str(folder)


class Steady:
    """Moves a tenth of the way to the right in every row, after the rows it was given."""

    def __init__(self, contract):
        self.contract, self.asked, self.often = contract, 0, threading.Event()

    def act(self, observations, seeds, committed=None):
        self.asked += 1
        if self.asked > 5:  # the warm-ups of server and client are over
            self.often.set()
        rows = np.tile([0.1, 0.0, -1.0], (self.contract.model.chunk, 1))
        return [ActionChunk(rows, self.contract.robot.rate_hz, o.time) for o in observations]


@pytest.fixture
def steady(contract) -> Steady:
    return Steady(contract)


@pytest.fixture
def address(steady):
    with Service(Models(steady)) as service, ZmqServer(service, ServerSettings(port=0)) as server:
        yield server.address


@pytest.mark.parametrize("strategy", ["sync", "rtc"])
def test_a_run_is_recorded_and_replayed(checkpoint, tmp_path, capsys, strategy):
    run, again = tmp_path / "run", tmp_path / "again"
    words = ["--policy", checkpoint, "--strategy", strategy, "--seconds", "1", "--record", str(run)]
    assert main(["drive", *ROBOT, *words, "--json", str(tmp_path / "report")]) == 0
    said = capsys.readouterr().out
    assert "virtual" in said and f"recorded: 20 rows in {run}" in said and "2 cm per step" in said
    report = json.loads((tmp_path / "report").read_text())
    assert (report["ticks"], report["missed_ticks"], report["ended"]) == (20, 0, "time is up")
    assert report["holds"]["no chunk yet"] == 1 and report["sent"] + sum(report["holds"].values()) == 20
    first = open_recordings(run)
    assert first.fps == 20 and first[0].instruction == TASKS[1]

    assert main(["replay", str(run), *ROBOT, "--record", str(again)]) == 0
    assert "holds" in capsys.readouterr().out
    second = open_recordings(again)
    np.testing.assert_array_equal(second[0].actions, first[0].actions)
    np.testing.assert_allclose(second[0].state, first[0].state, atol=1e-6)


def test_a_dry_run_sends_nothing(checkpoint, capsys, monkeypatch):
    from cosmos_robot.hardware.simulated import SimulatedRobot

    def send(self, values):
        raise AssertionError("sent")

    monkeypatch.setattr(SimulatedRobot, "send", send)
    assert main(["drive", *ROBOT, "--policy", checkpoint, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "nothing was sent" in said and sum(line[:4].strip().isdigit() for line in said.splitlines()) == 8


def test_a_served_policy_drives_on_the_machines_clock(address, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["--policy", address, "--seconds", "3", "--answer-timeout", "60", "--record", str(run)]
    assert main(["drive", *ROBOT, *words]) == 0
    said = capsys.readouterr().out
    assert "clock: the machine's" in said and f"served at {address}" in said
    moved = open_recordings(run)[0].actions
    assert {tuple(row) for row in moved.round(3)} == {(np.float32(0.1), 0.0, -1.0), (0.0, 0.0, -1.0)}


def test_nothing_is_sent_while_nobody_holds_the_switch(address, tmp_path, capsys):
    switch, report = tmp_path / "js0", tmp_path / "report"
    os.mkfifo(switch)
    words = ["--policy", address, "--seconds", "2", "--answer-timeout", "60", "--dead-man", str(switch)]
    assert main(["drive", *ROBOT, *words, "--json", str(report)]) == 1
    facts = json.loads(report.read_text())
    assert facts["sent"] == 0 and facts["ended"] == "time is up" and set(facts["holds"]) <= {"no chunk yet", "dead-man"}


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["--execute", "0"], "execute"),
        (["--execute", "-2"], "execute"),
        (["--seconds", "0"], "seconds"),
        (["--seconds", "nan"], "seconds"),
        (["--json", "."], "folder"),
        (["--host", "127.0.0.1"], "host"),
        (["--cameras", "front=0"], "of its own"),
        (["--dead-man", "/nowhere/js0"], "js0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_robot_is_connected(address, capsys, monkeypatch, words, complaint):
    from cosmos_robot.hardware.simulated import SimulatedRobot

    def connect(self):
        raise AssertionError("connected")

    monkeypatch.setattr(SimulatedRobot, "connect", connect)
    assert main(["drive", *ROBOT, "--policy", address, *words]) == 2
    assert complaint in capsys.readouterr().err


def test_nobody_there_is_told_before_the_robot_is_touched(capsys):
    assert main(["drive", *ROBOT, "--policy", "tcp://127.0.0.1:9", "--answer-timeout", "0.3"]) == 2
    assert "tcp://127.0.0.1:9" in capsys.readouterr().err


def test_a_robot_of_another_kind_is_refused(checkpoint, capsys):
    assert main(["drive", "--robot", "sim:pusht/push", "--policy", checkpoint]) == 2
    error = capsys.readouterr().err
    assert "cameras" in error or "pusht" in error


def test_a_robot_nobody_knows_is_refused(checkpoint, capsys):
    assert main(["drive", "--robot", "frnka-sim", "--policy", checkpoint]) == 2
    assert "franka-sim" in capsys.readouterr().err


def test_ctrl_c_stops_the_robot_and_reports(address, steady, tmp_path):
    command = [sys.executable, "-u", "-m", "cosmos_robot.cli", "drive", *ROBOT, "--policy", address]
    command += ["--record", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert steady.often.wait(300)
    process.send_signal(signal.SIGINT)
    said = process.stdout.read()
    assert process.wait(60) == 130
    assert "interrupted" in said and "jitter" in said
    assert len(open_recordings(tmp_path / "run")) == 1


def test_an_adapter_stands_between_where_it_can(contract):
    """A robot with its fields in another order and a gripper that closes the other way."""
    robot = FAKE_ROBOT.model_copy(
        update={
            "state": FAKE_ROBOT.state[::-1],
            "gripper": FAKE_ROBOT.gripper.model_copy(update={"open_value": 1.0, "closed_value": -1.0}),
        }
    )
    policy = Steady(contract)
    asker = Late(lambda seen, seed, rows: policy.act([seen], [seed])[0], lambda _: 0.0, 0.0, np.random.default_rng(0))
    source = Answers(policy, asker, "here", 1.0)
    adapted, told = fit(source, robot, "blend")
    assert isinstance(adapted, Adapted) and any(line.startswith("converted") for line in told)
    seen = Observation({}, {"grip": np.zeros(1), "position": np.zeros(2)}, "x")
    chunk = adapted.ask(seen, 1, None, 0.0).poll(0.1)
    np.testing.assert_array_equal(chunk.values[0], [0.1, 0.0, 1.0])
    with pytest.raises(ContractError, match="rtc"):
        fit(source, robot, "rtc")
    assert fit(source, FAKE_ROBOT, "rtc") == (asker, [])


def test_a_recording_that_is_not_this_robots_is_refused(arm):
    replayed = Replayed(np.zeros((3, 2)), 10, "x", "run")
    with pytest.raises(ContractError, match=r"2 numbers.*takes 3"):
        replayed.require_fit(arm)
    other = Replayed(np.zeros((3, 3)), 10, "x", "run")
    other.names = ("gripper", "joint[0]", "joint[1]")
    with pytest.raises(ContractError, match="takes them as"):
        other.require_fit(arm)


def test_a_replay_goes_on_at_the_row_that_the_gate_stopped(arm):
    """The dead-man's switch is let go of for a while: every row is sent once, in order."""
    sent, let_go = [], iter([True] * 4 + [False] * 3 + [True] * 100)
    replayed = Replayed(np.tile(np.arange(8)[:, None] / 10, (1, 3)), 10, "x", "run")
    report = replay(arm, replayed, sent, alive=lambda: next(let_go))
    assert replayed.complete and report.ended == "done" and report.holds["dead-man"] == 3
    np.testing.assert_allclose(np.array(sent)[:, 0], np.arange(8) / 10)


def test_a_long_replay_is_never_stale(arm):
    """Nine seconds of rows, three times as long as the gate acts on one observation: each is sent once, in order."""
    sent = []
    replayed = Replayed(np.tile(np.arange(90)[:, None] / 100, (1, 3)), 10, "x", "run")
    report = replay(arm, replayed, sent)
    assert replayed.complete and report.ended == "done" and not report.holds
    np.testing.assert_allclose(np.array(sent)[:, 0], np.arange(90) / 100)


def test_an_episode_that_is_not_there_is_refused(tmp_path, capsys):
    with pytest.raises(CheckpointError, match="nothing of that name"):
        Replayed.of(tmp_path / "none", 0)
    assert main(["replay", str(tmp_path / "none"), *ROBOT]) == 2


def test_a_replay_the_gate_stops_ends(arm):
    """The robot stands far from the first recorded row: nothing is sent, and the replay does not wait for ever."""
    replayed = Replayed(np.ones((5, 3)), 10, "x", "run")
    report = replay(arm, replayed, [])
    assert report.sent == 0 and report.ended == "done" and not replayed.complete and report.ticks < 50


def replay(arm, replayed, sent, **options):
    """Replay on a robot that goes where it is told at once; ``sent`` collects its commands."""
    each = lambda number: {"joint": number, "gripper": number}  # noqa: E731

    class Obedient(Robot):
        robot = arm
        limits = Limits.of(arm, max_step=each(1.0), max_rate=each(9.0), max_first=each(0.15), max_jump=each(0.5))

        def observe(self, instruction):
            return Observation({}, {}, instruction)

        def position(self):
            return sent[-1] if sent else np.zeros(3)

        def send(self, values):
            sent.append(values)
            return Sent(values)

        connect = hold = stop = recover = close = lambda self: None

    made = Obedient()
    loop = ControlLoop(
        made,
        replayed,
        replayed.scheduler(arm),
        Gate(made.limits),
        VirtualClock(),
        LoopSettings("x"),
        (replayed,),
        done=lambda: replayed.done,
        **options,
    )
    return loop.run()
