"""LIBERO on the real simulator: names, physics, pictures, initial states, processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
from numpy.typing import ArrayLike

from cosmos_robot import envs
from cosmos_robot.contract import load_contract, require_fit
from cosmos_robot.envs import conformance, libero
from cosmos_robot.envs.base import execute
from cosmos_robot.envs.remote import RemoteEnv
from cosmos_robot.errors import RenderError, UnknownNameError

SHORT = {"step_budget": 12}
BOWL = "akita_black_bowl_1_main"


@pytest.fixture(scope="module")
def bowl() -> Iterator[libero.LiberoEnv]:
    """libero_spatial/0, the bowl between plate and ramekin, with nothing done after an initial state is written."""
    with envs.make("libero_spatial/0", settle_steps=0, step_budget=1000) as env:
        yield env


@pytest.fixture
def running(bowl: libero.LiberoEnv) -> libero.LiberoEnv:
    """The same, somewhere in an episode."""
    if not bowl._running:
        bowl.reset(options={"init_state": 0})
    return bowl


@pytest.fixture(scope="module")
def fresh() -> Iterator[libero.LiberoEnv]:
    """libero_object/0 for the conformance kit, which closes it."""
    with envs.make("libero_object/0", **SHORT) as env:
        yield env


def commands(env: libero.LiberoEnv, gripper: float, steps: int) -> np.ndarray:
    return np.tile([0.0, 0, 0, 0, 0, 0, gripper], (steps, 1))


def move_body(env: libero.LiberoEnv, body: str, position: ArrayLike) -> None:
    model = env.sim.model
    address = model.jnt_qposadr[model.body_jntadr[model.body_name2id(body)]]
    env.sim.data.qpos[address : address + 3] = position
    env.sim.forward()


# Names.


def test_all_suites_and_complete_variants_are_listed() -> None:
    sizes = {suite: len(tasks) for suite, tasks in libero.suites().items()}
    tens = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
    expected = {base + variant: 10 for base in tens for variant in ("", "_lan", "_object", "_swap", "_task")}
    assert sizes == expected | {"libero_90": 90}
    names = envs.list_envs("libero")
    assert len(names) == len(set(names)) == 290 and "libero_goal_task/9" in names


def test_every_task_has_official_initial_states() -> None:
    for suite in ("libero_object", "libero_object_swap", "libero_spatial"):
        for task in libero.suites()[suite]:
            states = task.init_states()
            assert states.ndim == 2 and len(states) == 50 and np.isfinite(states).all()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("libero_objet/3", "'libero_object'"),
        ("libero_object_swop/3", "'libero_object_swap'"),
        ("libero_object/10", r"task of libero_object \(0 to 9\) '10'"),
        ("libero_object/x", r"task of libero_object \(0 to 9\) 'x'"),
        ("libero_object", r"task of libero_object \(0 to 9\) ''"),
        ("libero_90_swap/0", "unknown LIBERO suite 'libero_90_swap'"),
    ],
)
def test_unknown_suite_or_task(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=near):
        envs.make(name)


# The promises of every environment.


@pytest.mark.parametrize("check", conformance.CHECKS)
def test_conformance(fresh: libero.LiberoEnv, check: str) -> None:
    conformance.CHECKS[check](fresh)


# Physics.


def test_settled_things_lie_still_and_zero_delta_holds(bowl: libero.LiberoEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock starts after settling. Without it, the arm would still be turning back to its nominal orientation."""
    monkeypatch.setattr(bowl, "settle_steps", libero.SETTLE_STEPS)
    start, _ = bowl.reset(options={"init_state": 1})
    assert start.time == 0 and bowl.control_steps == 0
    assert np.abs(bowl.sim.data.qvel[9:]).max() < 0.05, "objects"
    end = execute(bowl, commands(bowl, -1.0, 40)).observation
    assert np.abs(end.state["eef_position"] - start.state["eef_position"]).max() < 0.002
    assert np.abs(end.state["eef_rot6d"] - start.state["eef_rot6d"]).max() < 0.01


def test_gripper_opens_on_open_and_closes_on_close(running: libero.LiberoEnv) -> None:
    """Measured on the fingers, with the values that the spec calls open and closed."""
    gripper = running.robot.gripper
    assert gripper is not None

    def opening(value: float) -> float:
        left, right = execute(running, commands(running, value, 15)).observation.state["gripper_qpos"]
        return left - right

    assert opening(gripper.closed_value) < 0.01
    assert opening(gripper.open_value) > 0.07
    assert opening(gripper.closed_value) < 0.01


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_position_command_moves_along_its_axis(running: libero.LiberoEnv, axis: int) -> None:
    start = execute(running, commands(running, -1.0, 15)).observation.state["eef_position"]
    rows = commands(running, -1.0, 10)
    rows[:, axis] = 0.5
    moved = execute(running, rows).observation.state["eef_position"] - start
    assert moved[axis] > 0.03
    assert np.abs(np.delete(moved, axis)).max() < 0.3 * moved[axis]


def test_the_simulated_clock_runs_at_the_rate_of_the_spec(running: libero.LiberoEnv) -> None:
    before = running.sim.data.time
    execute(running, commands(running, -1.0, 10))
    assert running.sim.data.time - before == pytest.approx(10 / running.robot.rate_hz)


def test_success_is_the_simulators_own(bowl: libero.LiberoEnv) -> None:
    """The bowl set down on the plate by hand: no success before, success and the end of the episode after."""
    bowl.reset(options={"init_state": 0})
    assert not bowl.step(commands(bowl, -1.0, 1)[0])[4]["success"]
    move_body(bowl, BOWL, np.array(bowl.sim.data.get_body_xpos("plate_1_main")) + [0, 0, 0.03])
    result = execute(bowl, commands(bowl, -1.0, 40))
    assert result.success and result.terminated and not result.truncated
    assert bowl.check_success()


# Pictures.


@pytest.mark.parametrize(
    ("camera", "sim_camera", "distance"), [("agentview", "agentview", 0.5), ("wrist", "robot0_eye_in_hand", 0.25)]
)
def test_pictures_are_upright_and_not_mirrored(
    running: libero.LiberoEnv, camera: str, sim_camera: str, distance: float
) -> None:
    """Where the bowl vanishes from the picture is where a pinhole camera with its own up on top sees it."""
    model, data = running.sim.model, running.sim.data
    eye = model.camera_name2id(sim_camera)
    axes, origin = data.cam_xmat[eye].reshape(3, 3), np.array(data.cam_xpos[eye])
    # Off both centre lines of the picture, so that turning or mirroring it would show.
    x, y, z = np.array([0.14, 0.2, -1.0]) * distance
    move_body(running, BOWL, origin + axes @ [x, y, z])
    height, width = running.robot.camera(camera).height, running.robot.camera(camera).width
    focal = height / 2 / np.tan(np.radians(model.cam_fovy[eye]) / 2)
    row, column = height / 2 - focal * y / -z, width / 2 + focal * x / -z
    seen = running.render_camera(camera).astype(int)
    move_body(running, BOWL, [0, 0, -5])
    rows, columns = np.nonzero(np.abs(seen - running.render_camera(camera)).sum(-1) > 60)
    assert len(rows) > 50
    assert abs(np.median(rows) - row) < 30 and abs(np.median(columns) - column) < 30


# Initial states.


def test_it_speaks_as_the_robot_of_published_cosmos_policy_checkpoints() -> None:
    """Position in the world and not from the arm's base, hand as a quaternion; the evaluator asks for it by name."""
    contract = load_contract("cosmos-policy-libero")
    assert envs.speaking("libero_spatial/0", contract.robot.name) == {"robot": "libero-panda-quat"}
    assert envs.speaking("pusht/0", contract.robot.name) == {} == envs.speaking("nothing/0", contract.robot.name)
    with envs.make("libero_spatial/0", robot=contract.robot.name) as env:
        require_fit(contract, env.robot)
        seen, _ = env.reset(seed=0, options={"init_state": 0})
        assert set(seen.state) == {"gripper_qpos", "eef_position", "eef_quat"}
        for ours, theirs in (("eef_position", "eef_pos"), ("eef_quat", "eef_quat"), ("gripper_qpos", "gripper_qpos")):
            observable = env.sim_env.env._observables[f"robot0_{theirs}"]
            np.testing.assert_allclose(seen.state[ours], observable._sensor({}), atol=1e-12)
        np.testing.assert_array_equal(np.concatenate(list(seen.state.values())), env.published_state())
    with pytest.raises(UnknownNameError, match="libero-panda"):
        envs.make("libero_spatial/0", robot="libero-pnda")


def test_initial_state_is_restored_exactly(bowl: libero.LiberoEnv) -> None:
    bowl.reset(seed=1, options={"init_state": 49})
    state = np.array(bowl.sim_env.get_sim_state())
    assert np.array_equal(state[1:], bowl.task.init_states()[49][1:]), "joint positions and velocities"


def test_other_seeds_place_objects_elsewhere(bowl: libero.LiberoEnv) -> None:
    places = []
    for seed in (1, 2):
        bowl.reset(seed=seed)
        places.append(np.array(bowl.sim.data.get_body_xpos(BOWL)))
    assert not np.array_equal(*places)


# Processes, and machines that cannot draw.


@pytest.mark.parametrize(
    "variables",
    [
        {"MUJOCO_GL": "egl", "__EGL_VENDOR_LIBRARY_FILENAMES": "none.json"},
        {"MUJOCO_GL": "osmess"},
    ],
)
def test_missing_gl_says_what_to_install(variables: dict[str, str]) -> None:
    with pytest.raises(RenderError, match=r"apt-get install libegl1 libgl1-mesa-dri libosmesa6"):
        RemoteEnv("libero_object/0", variables=variables)


def test_two_processes_at_once_and_nothing_left() -> None:
    me = psutil.Process()
    before = {child.pid for child in me.children(recursive=True)}, set(os.listdir("/dev/shm"))
    names = ("libero_object/0", "libero_object_lan/0")
    remotes = [RemoteEnv() for _ in names]
    try:
        for remote, name in zip(remotes, names, strict=True):
            remote.send("open", name, **SHORT)
        for remote in remotes:
            remote.recv()
            remote.send("reset", options={"init_state": 3}, cameras=("wrist",))
        (plain, _), (reworded, _) = (remote.recv() for remote in remotes)
        assert plain.instruction != reworded.instruction
        assert plain.images["wrist"].shape == (256, 256, 3)
        for remote in remotes:
            remote.send("execute", commands(remote, -1.0, 3))
        assert [remote.recv().steps for remote in remotes] == [3, 3]
    finally:
        for remote in remotes:
            remote.close()
    assert ({child.pid for child in me.children(recursive=True)}, set(os.listdir("/dev/shm"))) == before
