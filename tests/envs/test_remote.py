"""An environment in a process of its own answers as it would here, and leaves nothing behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
import psutil
import pytest

from cosmos_robot import envs
from cosmos_robot.contract import RobotSpec
from cosmos_robot.envs.base import execute
from cosmos_robot.envs.conformance import some_actions
from cosmos_robot.envs.remote import Film, RemoteEnv
from cosmos_robot.errors import ContractError, InputError, RenderError, UnknownNameError, WorkerError

HERE = {"PYTHONPATH": str(Path(__file__).parent)}
ZERO = np.zeros(3)


@pytest.fixture(scope="module")
def shared() -> Iterator[RemoteEnv]:
    with RemoteEnv() as env:
        yield env


@pytest.fixture
def env(shared: RemoteEnv) -> RemoteEnv:
    shared.open("fake/0")
    return shared


@pytest.fixture
def troubled() -> Iterator[Callable[..., RemoteEnv]]:
    """Makes environments of ``troubled_env``, closed at the end."""
    made: list[RemoteEnv] = []

    def make(name: str, **variables: str) -> RemoteEnv:
        made.append(RemoteEnv(name, factory="troubled_env:make", variables=HERE | variables))
        return made[-1]

    yield make
    for remote in made:
        remote.close()


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether ``condition`` comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def alive(process_id: int) -> bool:
    return psutil.pid_exists(process_id) and psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE


def test_states_pictures_and_outcome_are_those_of_a_local_environment(env: RemoteEnv) -> None:
    here = envs.make("fake/0")
    (mine, _), (theirs, info) = (e.reset(seed=3) for e in (here, env))
    assert info == {"instruction": here.instruction}
    assert np.array_equal(mine.state["position"], theirs.state["position"])
    values = some_actions(env, 9)
    expected, got = execute(here, values), env.execute(values, cameras=("hand",))
    assert (expected.reward, expected.success, expected.steps) == (got.reward, got.success, got.steps)
    assert expected.observation.time == got.observation.time
    for name in ("table", "hand"):
        assert np.array_equal(expected.observation.images[name], got.observation.images[name])


def test_the_spec_arrives_whole(env: RemoteEnv) -> None:
    assert isinstance(env.robot, RobotSpec)
    assert env.robot == envs.make("fake/0").robot
    assert env.action_space == envs.make("fake/0").action_space


def test_only_the_named_cameras_are_drawn(troubled) -> None:
    env = troubled("telling")

    def draws() -> int:
        return json.loads(env.step(ZERO)[0].instruction)["draws"]

    env.reset(seed=0)
    env.execute(np.tile(ZERO, (5, 1)))
    assert draws() == 0
    env.step(ZERO, cameras=("hand",))[0].images["hand"]
    assert draws() == 1
    env.execute(np.tile(ZERO, (5, 1)), cameras=("hand", "table"))
    assert draws() == 3
    assert env.step(ZERO)[0].images["table"].any(), "drawn by reading it"
    assert draws() == 4


def test_a_picture_that_was_sent_outlives_its_moment(env: RemoteEnv) -> None:
    observation, _ = env.reset(seed=0, cameras=("table",))
    table = envs.make("fake/0").reset(seed=0)[0].images["table"]
    env.execute(some_actions(env, 4), cameras=("table", "hand"))
    assert np.array_equal(observation.images["table"], table)
    with pytest.raises(InputError, match="'hand' was first read after"):
        observation.images["hand"]


def test_no_picture_is_read_while_the_environment_moves(env: RemoteEnv) -> None:
    observation, _ = env.reset(seed=0)
    env.send("step", ZERO)
    with pytest.raises(InputError, match="moved on"):
        observation.images["table"]
    env.recv()


def test_observing_again_shows_the_same_moment(env: RemoteEnv) -> None:
    env.reset(seed=0)
    before = env.execute(some_actions(env, 4)).observation
    again = env.observe(cameras=("hand",))
    assert again.time == before.time and np.array_equal(again.state["position"], before.state["position"])
    assert np.array_equal(again.images["hand"], before.images["hand"]), "the earlier one is still fresh"


def test_a_film_is_spaced_evenly_over_many_calls(env: RemoteEnv) -> None:
    env.reset(seed=0)
    here = envs.make("fake/0")
    here.reset(seed=0)
    values = some_actions(env, 12)
    filmed = []
    for part in (values[:5], values[5:7], values[7:]):
        result = env.execute(part, film=Film(every=3, cameras=("hand",)), cameras=("hand",))
        filmed += result.frames["hand"]
    expected = []
    execute(here, values, lambda e: expected.append(e.render_camera("hand")) if e.control_steps % 3 == 0 else None)
    assert len(filmed) == len(expected) == 4
    assert all(np.array_equal(a, b) for a, b in zip(filmed, expected, strict=True))
    assert np.array_equal(result.observation.images["hand"], filmed[-1])


def test_rows_show_what_was_there_before_each_step(env: RemoteEnv) -> None:
    """Also beside a film, and where the episode ends before the commands do."""
    env.reset(seed=3)
    here = envs.make("fake/0")
    observation, _ = here.reset(seed=3)
    target = np.append((here._target - here._hand) / 0.15, 1.0)  # two centimetres per step, straight there
    result = env.execute(
        np.tile(target, (20, 1)), cameras=("table",), rows=("hand", "table"), film=Film(every=2, cameras=("hand",))
    )
    assert result.success and result.steps < 20 and result.score == env.score() == 1
    assert {name: len(frames) for name, frames in result.rows.pictures.items()} == dict.fromkeys(
        ("hand", "table"), result.steps
    )
    for row in range(result.steps):
        assert np.array_equal(result.rows.states[row], np.concatenate(list(observation.state.values())))
        for name, frames in result.rows.pictures.items():
            assert np.array_equal(frames[row], observation.images[name]), f"{name} before step {row}"
        observation, *_ = here.step(target)
    assert len(result.frames["hand"]) == result.steps // 2
    assert np.array_equal(result.observation.images["table"], observation.images["table"])
    env.reset(seed=3)
    assert env.execute([target]).rows is None and env.score() == 0


def test_pictures_belong_to_the_reader(env: RemoteEnv) -> None:
    first = env.reset(seed=0, cameras=("table",))[0].images["table"]
    before = first.copy()
    first_again = env.reset(seed=1, cameras=("table",))[0].images["table"]
    assert np.array_equal(first, before), "overwritten by the next answer"
    first_again[:] = 0
    assert env.render_camera("table").any()


def test_the_process_is_kept_when_another_environment_is_opened(env: RemoteEnv) -> None:
    process = env.process_id
    before, _ = env.reset(seed=0)
    env.open("fake/2", step_budget=7)
    assert (env.process_id, env.name, env.instruction) == (process, "fake/2", "Keep still")
    with pytest.raises(InputError, match="moved on"):
        before.images["table"]
    env.reset(seed=0)
    result = env.execute(some_actions(env, 20))
    assert (result.steps, result.truncated) == (7, True)


def test_errors_arrive_as_they_were_raised(env: RemoteEnv) -> None:
    with pytest.raises(UnknownNameError) as here:
        envs.make("fake/9")
    with pytest.raises(UnknownNameError) as there:
        env.open("fake/9")
    assert str(there.value) == str(here.value)
    with pytest.raises(InputError, match=r"step: no environment is open.*open\(name\)"):
        env.step(ZERO)
    env.open("fake/1")
    with pytest.raises(InputError, match="before reset"):
        env.step(ZERO)
    with pytest.raises(InputError, match="init_state: expected a whole number from 0 to 9, got 10"):
        env.reset(options={"init_state": 10})
    env.reset(seed=0)


def test_an_unexpected_error_is_reported_and_survived(troubled) -> None:
    env = troubled("failing")
    env.reset(seed=0)
    with pytest.raises(WorkerError, match=r"ZeroDivisionError.*the physics is broken[\s\S]*in _step"):
        env.step(ZERO)
    with pytest.raises(RenderError, match="no lamp for hand"):
        env.reset(seed=0, cameras=("hand",))
    with pytest.raises(WorkerError, match=r"KeyError"):
        env.open("no such kind")
    env.open("unsendable")
    env.reset(seed=0)
    with pytest.raises(InputError, match="object cannot be sent"):
        env.step(ZERO)
    with pytest.raises(InputError, match="set cannot be sent"):
        env.reset(options={"init_state": {1}})


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda e: e.recv(), InputError, "without a send"),
        (lambda e: e.send("rest"), UnknownNameError, "did you mean 'reset'"),
        (lambda e: e.step(ZERO, cameras=("tabel",)), ContractError, "no camera 'tabel'"),
        (lambda e: e.render_camera("tabel"), ContractError, "no camera 'tabel'"),
        (lambda e: e.execute([ZERO], film=Film(1, ("tabel",))), ContractError, "no camera 'tabel'"),
        (lambda e: e.execute([ZERO], film=Film(0, ("table",))), InputError, "at least 1"),
        (lambda e: e.execute([ZERO, [0, np.nan, 0]]), InputError, "row 1, dimension 1"),
        (lambda e: e.execute(np.zeros((0, 3))), InputError, "k >= 1"),
    ],
)
def test_wrong_calls_are_refused_and_leave_it_usable(env: RemoteEnv, call, error, words: str) -> None:
    env.reset(seed=0)
    with pytest.raises(error, match=words):
        call(env)
    assert env.step(ZERO)[0].time == pytest.approx(0.05)


def test_a_second_request_waits_for_the_first_answer(env: RemoteEnv) -> None:
    env.send("reset", seed=0)
    with pytest.raises(InputError, match="'reset' has not been read"):
        env.step(ZERO)
    env.recv()
    env.step(ZERO)


def test_many_at_once() -> None:
    remotes = [RemoteEnv() for _ in range(3)]
    try:
        for index, remote in enumerate(remotes):
            remote.send("open", f"fake/{index}")
        for remote in remotes:
            remote.recv()
            remote.send("reset", seed=5, cameras=("hand",))
        left = {remote.connection: remote for remote in remotes}
        steps = {}
        while left:
            for connection in wait(list(left)):
                remote = left.pop(connection)
                answer = remote.recv()
                if isinstance(answer, tuple):
                    remote.send("execute", some_actions(remote, 6))
                    left[connection] = remote
                else:
                    steps[remote.name] = answer.steps
        assert steps == {"fake/0": 6, "fake/1": 6, "fake/2": 6}
    finally:
        for remote in remotes:
            remote.close()


def test_variables_of_the_worker(troubled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    observation, _ = troubled("telling", LP_NUM_THREADS="2").reset(seed=0)
    variables = json.loads(observation.instruction)["variables"]
    assert (
        variables["MUJOCO_GL"] == "egl" and variables["OMP_NUM_THREADS"] == "1" and variables["LP_NUM_THREADS"] == "2"
    )
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    observation, _ = troubled("telling").reset(seed=0)
    assert json.loads(observation.instruction)["variables"]["MUJOCO_GL"] == "osmesa"


def test_a_dead_worker_is_named_with_its_exit_code_and_last_words(troubled) -> None:
    env = troubled("crashing")
    env.reset(seed=0)
    with pytest.raises(WorkerError, match=r"exit code 3 while asked to 'step'[\s\S]*last words of the simulator"):
        env.step(ZERO)
    with pytest.raises(WorkerError, match="exit code 3"):
        env.reset(seed=0)


def test_a_killed_worker_is_named_while_idle(troubled) -> None:
    env = troubled("telling")
    os.kill(env.process_id, signal.SIGKILL)
    with pytest.raises(WorkerError, match="exit code -9"):
        env.reset(seed=0)


def test_a_slow_answer_can_be_waited_for_in_parts(troubled) -> None:
    env = troubled("hanging")
    env.reset(seed=0)
    env.send("step", ZERO)
    with pytest.raises(WorkerError, match=r"no answer to 'step' within 0.1 s"):
        env.recv(timeout=0.1)
    with pytest.raises(WorkerError, match="no answer"):
        env.recv(timeout=0.1)
    process = env.process_id
    env.close()
    assert not alive(process)


def test_an_interpreter_that_cannot_serve_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho this python has no cosmos_robot >&2\nexit 7\n")
    script.chmod(0o755)
    with pytest.raises(WorkerError, match=r"exit code 7[\s\S]*this python has no cosmos_robot"):
        RemoteEnv("fake/0", python=str(script))
    with pytest.raises(WorkerError, match="cannot start an environment process"):
        RemoteEnv("fake/0", python=str(tmp_path / "absent"))


def test_another_interpreter_serves(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    with RemoteEnv("fake/1", python=str(script)) as env:
        assert env.reset(seed=0)[0].instruction == "Touch the far target"


def test_nothing_is_left_after_close_or_crash(troubled) -> None:
    RemoteEnv("fake/0").close()  # whatever the first one leaves behind for good, such as imports
    gc.collect()
    me = psutil.Process()
    before = (me.num_fds(), set(os.listdir("/dev/shm")), len(me.children()))
    for name in ("telling", "crashing"):
        env = troubled(name)
        env.reset(seed=0, cameras=("table", "hand"))
        if name == "crashing":
            with pytest.raises(WorkerError):
                env.step(ZERO)
        process = env.process_id
        env.close()
        env.close()
        assert not psutil.pid_exists(process)
        with pytest.raises(InputError, match="closed"):
            env.send("reset")
    assert (me.num_fds(), set(os.listdir("/dev/shm")), len(me.children())) == before


def test_a_forgotten_environment_ends_with_its_last_reference() -> None:
    env = RemoteEnv("fake/0")
    process = env.process_id
    del env
    gc.collect()
    assert not psutil.pid_exists(process)


@pytest.mark.parametrize("kind", ["telling", "hanging"])
def test_workers_die_with_their_parent_even_if_busy(kind: str) -> None:
    program = f"""
import os, signal
from cosmos_robot.envs.remote import RemoteEnv
env = RemoteEnv({kind!r}, factory="troubled_env:make", variables={HERE!r})
env.reset(seed=0, cameras=("table",))
env.send("step", [0, 0, 0])
print(env.process_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    worker = int(done.stdout)
    assert until(lambda: not alive(worker)), "the worker outlived its parent"


def test_ctrl_c_is_left_to_the_parent(env: RemoteEnv) -> None:
    os.kill(env.process_id, signal.SIGINT)
    env.reset(seed=0)
    assert env.step(ZERO)[0].time > 0
