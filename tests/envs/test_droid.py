"""The DROID table: its robot, its tasks, and that they can be done."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from cosmos_robot import envs
from cosmos_robot.contract import load_contract
from cosmos_robot.envs.base import execute
from cosmos_robot.envs.droid import HOME, SPEED, DroidEnv
from cosmos_robot.envs.droid_expert import Kinematics, make_expert
from cosmos_robot.envs.droid_scene import SUBSTEPS, TRAY_HALF, block_name
from cosmos_robot.envs.droid_tasks import INIT_STATES, TASKS
from cosmos_robot.errors import InputError, UnknownNameError


@pytest.fixture(scope="module")
def table():
    with envs.make("droid/place_red_block_in_tray") as env:
        yield env


def stay(env: DroidEnv, gripper: float = 0.0) -> np.ndarray:
    return np.append(env.observe().state["joint_position"], gripper)


def solved(env: DroidEnv, index: int) -> bool:
    env.reset(options={"init_state": index})
    expert, info = make_expert(env), {"success": False}
    while env.running:
        info = env.step(expert.act())[-1]
    return info["success"]


def test_the_robot_is_the_one_that_released_policies_were_trained_on() -> None:
    spec = load_contract("cosmos3-nano-droid").robot
    with envs.make("droid/pick_red_block") as env:
        assert (env.robot.state, env.robot.action, env.robot.rate_hz) == (spec.state, spec.action, spec.rate_hz)
        names = [camera.name for camera in env.robot.cameras]
    assert names == ["wrist_image_left", "exterior_image_1_left", "exterior_image_2_left"]


def test_an_episode_begins_at_home_with_an_open_gripper(table: DroidEnv) -> None:
    state = table.reset(seed=3)[0].state
    assert np.allclose(state["joint_position"], [0, -np.pi / 5, 0, -4 * np.pi / 5, 0, 3 * np.pi / 5, 0])
    assert state["gripper_position"] == 0


def test_fingers_open_sideways_at_home(table: DroidEnv) -> None:
    table.reset(seed=0)
    left, right = (table.data.geom(f"gripper_{side}_fingerpad_collision").xpos for side in ("left", "right"))
    assert np.abs(left - right)[[0, 2]].max() < 0.001 < 0.08 < np.abs(left - right)[1] < 0.09


def test_a_far_target_is_approached_no_faster_than_a_panda_moves(table: DroidEnv) -> None:
    table.reset(seed=0)
    path = [table.observe().state["joint_position"]]
    for _ in range(6):
        path.append(table.step([1.5, *HOME[1:], 0])[0].state["joint_position"])
    speed = np.diff(np.array(path)[:, 0]) * table.robot.rate_hz
    assert speed.max() < 1.05 * SPEED[0] and speed.max() > 0.8 * SPEED[0]


def test_targets_beyond_the_limits_stop_at_them(table: DroidEnv) -> None:
    table.reset(seed=0)
    result = execute(table, np.tile([*HOME[:6], 9.0, 0], (30, 1)))
    assert result.observation.state["joint_position"][6] == pytest.approx(2.8973, abs=0.01)


def test_a_control_step_is_a_fifteenth_of_a_second(table: DroidEnv) -> None:
    table.reset(seed=0)
    execute(table, np.tile(stay(table), (15, 1)))
    assert table.data.time == pytest.approx(1.0) and table.model.opt.timestep * SUBSTEPS == pytest.approx(1 / 15)


def test_a_block_holds_the_gripper_open(table: DroidEnv) -> None:
    """What is between the fingers shows in gripper_position, as on the robot."""
    table.reset(options={"init_state": 0})
    expert = make_expert(table)
    while expert.phase.name != "CARRY":
        state = table.step(expert.act())[0].state
    assert 0.2 < state["gripper_position"][0] < 0.6


@pytest.mark.parametrize(
    "name",
    [
        "pick_blue_block",
        "place_red_block_in_tray",
        "stack_red_on_green",
        "push_green_block_to_mark",
        "open_drawer",
        "close_drawer",
    ],
)
def test_tasks_can_be_done(name: str) -> None:
    with envs.make(f"droid/{name}") as env:
        assert [solved(env, index) for index in (7, 8, 9)] == [True] * 3


@pytest.mark.parametrize("name", TASKS)
def test_no_task_is_done_at_the_start_or_by_waiting(name: str) -> None:
    with envs.make(f"droid/{name}", step_budget=10) as env:
        for index in (0, INIT_STATES - 1):
            env.reset(options={"init_state": index})
            result = execute(env, np.tile(stay(env), (10, 1)))
            assert result.truncated and not result.success


def test_a_block_in_the_hand_is_not_yet_in_the_tray(table: DroidEnv) -> None:
    table.reset(options={"init_state": 1})
    expert = make_expert(table)
    while expert.phase.name != "OPEN":
        *_, info = table.step(expert.act())
        assert not info["success"]


def put(env: DroidEnv, body: str, place: np.ndarray) -> bool:
    """Whether the task is done with a body at rest at ``place``."""
    env.data.joint(body).qpos[:3] = place
    env.data.joint(body).qvel[:] = 0
    return env.step(stay(env))[-1]["success"]


def test_another_block_in_the_tray_does_not_count(table: DroidEnv) -> None:
    table.reset(options={"init_state": 2})
    inside = table.place_of("tray") + [0, 0, 0.04]
    assert not put(table, block_name("green"), inside)
    assert not put(table, block_name("red"), inside + [TRAY_HALF + 0.05, 0, 0])
    assert not put(table, block_name("red"), inside + [0, 0, 0.2])


def test_things_do_not_begin_in_each_other() -> None:
    for task in TASKS.values():
        for index in range(INIT_STATES):
            blocks = [at for name, at in task.init_places(index).items() if name.endswith("block")]
            apart = [np.linalg.norm(a[:2] - b[:2]) for i, a in enumerate(blocks) for b in blocks[:i]]
            assert min(apart, default=1.0) > 0.1


def test_inverse_kinematics_reaches_where_it_is_told(table: DroidEnv) -> None:
    kinematics = Kinematics(table)
    joints = kinematics.solve(HOME, np.array([0.5, -0.1, 0.2]), 0.3)
    place, matrix = kinematics.at(joints)
    assert np.allclose(place, [0.5, -0.1, 0.2], atol=2e-3)
    assert matrix[2, 2] == pytest.approx(-1, abs=1e-3)


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'pick_red_block'"):
        envs.make("droid/pick_red_blok")
    with pytest.raises(UnknownNameError, match="step_budget"):
        envs.make("droid/pick_red_block", step_budgets=3)
    with pytest.raises(InputError, match="step_budget"):
        envs.make("droid/pick_red_block", step_budget=0)


def test_pictures_do_not_depend_on_who_imported_mujoco_first() -> None:
    program = (
        "import mujoco; from cosmos_robot import envs; e = envs.make('droid/pick_red_block'); e.reset(seed=0); "
        "assert e.render_camera('wrist_image_left').std() > 10; e.close()"
    )
    variables = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_renderer_is_started_unless_somebody_looks(table: DroidEnv) -> None:
    with envs.make("droid/pick_red_block") as env:
        env.reset(seed=0)
        env.step(stay(env))
        assert env._pictures is None
