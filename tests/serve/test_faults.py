"""Client, server and control loop together, over real sockets, when something dies."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from cosmos_robot.backbone.cosmos3.untrained import untrained_contract
from cosmos_robot.envs.fakes import FAKE_ROBOT, FakeEnv
from cosmos_robot.hardware.asking import Served
from cosmos_robot.hardware.chunks import Scheduler
from cosmos_robot.hardware.clock import MonotonicClock
from cosmos_robot.hardware.gate import Gate
from cosmos_robot.hardware.loop import ControlLoop, LoopSettings
from cosmos_robot.hardware.simulated import SimulatedRobot
from cosmos_robot.serve.client import PolicyClient


@pytest.fixture
def serve(tmp_path):
    """Start the server of ``echo_server.py`` on a port; it hangs once there is a file ``hang``."""
    path, started = tmp_path / "contract.json", []
    path.write_text(untrained_contract(FAKE_ROBOT, "ck", chunk=8, execute=6).model_dump_json())

    def start(port: int, hang: str) -> tuple[subprocess.Popen, str]:
        script = Path(__file__).with_name("echo_server.py")
        command = [sys.executable, str(script), str(path), str(port), str(tmp_path / hang)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.wait()


class Watch:
    """What was sent, tick by tick, None for a hold; ``then`` is called once after ten commands."""

    def __init__(self, then):
        self.sent, self.then = [], then

    def tick(self, tick):
        self.sent.append(tick.sent)
        if self.moves == 10:
            self.then()

    @property
    def moves(self):
        return sum(s is not None for s in self.sent)


@pytest.mark.parametrize("strategy", ["sync", "rtc"])
def test_pc_33_a_server_killed_while_it_answers_makes_the_robot_hold_and_go_on(serve, free_port, tmp_path, strategy):
    """Nothing but holds and commands of real answers are sent; the restarted server is found by itself."""
    first, address = serve(free_port, "hang")
    moved_before = []

    def kill_and_restart():
        assert first.stdout.readline() == "hanging\n"
        first.kill()
        first.wait()
        serve(free_port, "never")
        moved_before.append(watch.moves)

    watch = Watch((tmp_path / "hang").touch)
    helper = threading.Thread(target=kill_and_restart, daemon=True)
    helper.start()
    clock = MonotonicClock()
    robot = SimulatedRobot(FakeEnv(1, step_budget=10**9), clock)
    with robot, PolicyClient(address, timeout_s=30) as client:
        loop = ControlLoop(
            robot,
            Served(client, robot.robot),
            Scheduler(robot.robot, strategy, 6),
            Gate(robot.limits),
            clock,
            LoopSettings("x", answer_timeout_s=2, seconds=600),
            (watch,),
            done=lambda: bool(moved_before) and watch.moves >= moved_before[0] + 10,
        )
        report = loop.run()
    helper.join(60)
    assert report.ended == "done" and report.faults == 0
    assert report.lost >= 1 and any("no answer within" in word for word in report.words)
    moves = np.array([s.values for s in watch.sent if s is not None])
    np.testing.assert_allclose(moves, np.tile([0.1, 0.0, -1.0], (len(moves), 1)), rtol=1e-9)
    held = "".join("x" if s is None else "." for s in watch.sent)
    assert re.search(r"\.x{5,}\.", held), "the robot held for a while, and went on"


def test_pc_37_two_clients_that_reset_between_their_questions(server, observation):
    wrong = []

    def episodes(start):
        with PolicyClient(server.address, timeout_s=60) as client:
            for seed in range(start, start + 15):
                client.reset()
                if client.act([observation], [seed])[0].values[0, 0] != seed:
                    wrong.append(seed)

    threads = [threading.Thread(target=episodes, args=(1000 * i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not wrong


def test_replies_say_where_the_time_went(client, policy, observation):
    policy.delay_s = 0.05
    (chunk,) = client.act([observation], [1])
    seconds = chunk.info["seconds"]
    assert set(seconds) >= {"queue", "model", "total", "wire"} and min(seconds.values()) >= 0
    assert seconds["model"] >= 0.05 and seconds["queue"] + seconds["model"] <= seconds["total"] + 1e-6


def test_committed_rows_arrive_as_they_were_sent(client, policy, observation, contract):
    seen = []
    act = policy.act
    policy.act = lambda observations, seeds, committed=None: (seen.append(committed), act(observations, seeds))[1]
    rows = np.linspace(0, 1, 2 * contract.robot.action_width).reshape(2, -1)
    client.act([observation, observation], [1, 2], [rows, rows])
    client.act([observation], [3])
    given = [each for batch in seen if batch is not None for each in batch]
    assert len(given) == 2 and all(np.array_equal(each, rows) for each in given) and seen[-1] is None
