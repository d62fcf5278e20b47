"""RoboCasa: the 24 atomic kitchen tasks of Cosmos Policy's evaluation, as ``RobotEnv``.

A name is ``robocasa/TASK`` (``"robocasa/OpenDrawer"``). RoboCasa needs robosuite 1.5 and cannot share an environment
with LIBERO: install it in one of its own, with cosmos-robot, and name that interpreter (``RemoteEnv(python=...)``,
``collect --python``).
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import load_robot
from cosmos_robot.envs.base import RobotEnv, init_state, require_limits, require_options
from cosmos_robot.errors import ContractError, DependencyError, UnknownNameError
from cosmos_robot.types import Image

ROBOCASA_PANDA = load_robot("robocasa-panda")
USUAL_BUDGET: Final = 500
STEP_BUDGETS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "PnPCounterToCab": USUAL_BUDGET,
        "PnPCabToCounter": USUAL_BUDGET,
        "PnPCounterToSink": 700,
        "PnPSinkToCounter": USUAL_BUDGET,
        "PnPCounterToMicrowave": 600,
        "PnPMicrowaveToCounter": USUAL_BUDGET,
        "PnPCounterToStove": USUAL_BUDGET,
        "PnPStoveToCounter": USUAL_BUDGET,
        "OpenSingleDoor": USUAL_BUDGET,
        "CloseSingleDoor": USUAL_BUDGET,
        "OpenDoubleDoor": 1000,
        "CloseDoubleDoor": 700,
        "OpenDrawer": USUAL_BUDGET,
        "CloseDrawer": USUAL_BUDGET,
        "TurnOnStove": USUAL_BUDGET,
        "TurnOffStove": USUAL_BUDGET,
        "TurnOnSinkFaucet": USUAL_BUDGET,
        "TurnOffSinkFaucet": USUAL_BUDGET,
        "TurnSinkSpout": USUAL_BUDGET,
        "CoffeeSetupMug": 600,
        "CoffeeServeMug": 600,
        "CoffeePressButton": 300,
        "TurnOnMicrowave": USUAL_BUDGET,
        "TurnOffMicrowave": USUAL_BUDGET,
    }
)
"""Task to the control steps an episode may take (cosmos-policy: run_robocasa_eval.py), settle steps not counted."""
SETTLE_STEPS: Final = 10
SCENES: Final = ((1, 1), (2, 2), (4, 4), (6, 9), (7, 10))
"""Layout and style of the five kitchens of the published evaluation, ten episodes in each."""
INIT_STATES: Final = 50
PUBLISHED_SEED: Final = 195
OBJECT_SPLIT: Final = "B"
BASE_STILL: Final = (0.0, 0.0, 0.0, 0.0, -1.0)
"""What is added to the arm's seven numbers: the mobile base and its lift stand still."""
REMEDY: Final = (
    "RoboCasa needs an environment of its own (robosuite 1.5.1, mujoco 3.2.6, numpy below 2, the kitchen assets that "
    "RoboCasa downloads): install it there together with cosmos-robot, and name that environment's interpreter with "
    "--python, or RemoteEnv(python=...)"
)


class Kitchen(Protocol):
    """The edge to the simulator: one kitchen, built for one episode and at its beginning."""

    def step(self, action: NDArray[np.float64]) -> None:
        """One control step with all twelve numbers."""

    def success(self) -> bool:
        """The task's own check, now."""

    def instruction(self) -> str:
        """The episode's task in words, with its objects."""

    def state(self) -> dict[str, NDArray[np.float64]]:
        """The robot's fields."""

    def draw(self, camera: str, height: int, width: int) -> Image:
        """A picture, upright."""

    def close(self) -> None:
        """Free the simulator."""


Build = Callable[[str, tuple[int, int], int], Kitchen]
"""Task, layout with style, and seed to a kitchen."""


class RobocasaEnv(RobotEnv):
    """One RoboCasa task. Every reset builds a kitchen anew, which takes most of a minute, as the published evaluation
    does; the instruction is that episode's.

    settle_steps: steps of no motion before the first observation; not counted in the budget.
    ``reset(options={"init_state": i})`` is episode i of the published evaluation with seed 195: its kitchen is number
    i // 10, its own seed 195 * i * 256. Without it, kitchen and seed are drawn, never one of these.
    build: how kitchens are made; the simulator's if not given.
    """

    robot = ROBOCASA_PANDA
    init_state_count = INIT_STATES

    def __init__(
        self,
        task: str,
        *,
        settle_steps: int = SETTLE_STEPS,
        step_budget: int | None = None,
        build: Build | None = None,
    ):
        super().__init__()
        self.task = task
        self.settle_steps = settle_steps
        self.step_budget = STEP_BUDGETS[task] if step_budget is None else step_budget
        require_limits(self.settle_steps, self.step_budget)
        self.instruction = task
        self._build = _simulator(task) if build is None else build
        self._kitchen: Kitchen | None = None

    def close(self) -> None:
        super().close()
        if self._kitchen is not None:
            self._kitchen.close()
            self._kitchen = None

    def _reset(self, options: dict[str, Any]) -> None:
        index = init_state(self, options)
        if index is None:
            scene = SCENES[int(self.np_random.integers(len(SCENES)))]
            seed = 2 * int(self.np_random.integers(2**30)) + 1  # the published ones are even
        else:
            scene, seed = SCENES[index // 10 % len(SCENES)], PUBLISHED_SEED * index * 256
        if self._kitchen is not None:
            self._kitchen.close()
        self._kitchen = self._build(self.task, scene, seed)
        self.instruction = self._kitchen.instruction()
        for _ in range(self.settle_steps):
            self._kitchen.step(np.zeros(self.robot.action_width + len(BASE_STILL)))

    def _step(self, action: NDArray[np.float64]) -> tuple[float, bool, bool]:
        self._kitchen.step(np.concatenate([action, BASE_STILL]))
        success = bool(self._kitchen.success())
        return float(success), success, self.control_steps + 1 >= self.step_budget

    def _state(self) -> dict[str, NDArray[np.float64]]:
        return self._kitchen.state()

    def _draw(self, camera: str) -> Image:
        spec = self.robot.camera(camera)
        return self._kitchen.draw(camera, spec.height, spec.width)


class _RobosuiteKitchen:
    """RoboCasa's own, through robosuite 1.5: no pictures but those that are asked for."""

    def __init__(self, env: Any):
        self._env = env
        env.reset()

    def step(self, action: NDArray[np.float64]) -> None:
        self._env.step(action)

    def success(self) -> bool:
        return bool(self._env._check_success())

    def instruction(self) -> str:
        return str(self._env.get_ep_meta()["lang"])

    def state(self) -> dict[str, NDArray[np.float64]]:
        seen = self._env._get_observations(force_update=True)
        fields = {"gripper_qpos": "gripper_qpos", "eef_position": "eef_pos", "eef_quat": "eef_quat"}
        return {ours: np.array(seen[f"robot0_{theirs}"], np.float64) for ours, theirs in fields.items()}

    def draw(self, camera: str, height: int, width: int) -> Image:
        rows = self._env.sim.render(camera_name=camera, width=width, height=height)
        return np.ascontiguousarray(rows[::-1])

    def close(self) -> None:
        self._env.close()


def _simulator(task: str) -> Build:
    """How RoboCasa's kitchens are built. Raises DependencyError where it is not installed or has no such task,
    ContractError where its arm is not controlled as the recordings were."""
    os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            import robocasa  # noqa: F401 (registers the tasks)
            import robosuite
            from robosuite.controllers import load_composite_controller_config
            from robosuite.environments.base import REGISTERED_ENVS
    except ImportError as error:
        raise DependencyError(f"RoboCasa is not installed here ({error}); {REMEDY}") from error
    if task not in REGISTERED_ENVS:
        raise DependencyError(
            f"the RoboCasa that is installed has no task {task!r}: the atomic tasks were renamed in RoboCasa365; "
            "install version 0.2, or github.com/moojink/robocasa-cosmos-policy"
        )
    controller = load_composite_controller_config(controller=None, robot="PandaOmron")
    require_controller(controller)

    def build(name: str, scene: tuple[int, int], seed: int) -> Kitchen:
        with contextlib.redirect_stdout(io.StringIO()):
            env = robosuite.make(
                env_name=name,
                robots="PandaOmron",
                controller_configs=controller,
                control_freq=int(ROBOCASA_PANDA.rate_hz),
                has_renderer=False,
                has_offscreen_renderer=True,
                use_camera_obs=False,
                use_object_obs=False,
                ignore_done=True,
                seed=seed,
                obj_instance_split=OBJECT_SPLIT,
                generative_textures=None,
                randomize_cameras=False,
                layout_and_style_ids=(scene,),
                translucent_robot=False,
            )
            width = ROBOCASA_PANDA.action_width + len(BASE_STILL)
            if env.action_dim != width:
                raise ContractError(f"{name}: the simulated robot takes {env.action_dim} numbers, expected {width}")
            return _RobosuiteKitchen(env)

    return build


def require_controller(config: Mapping[str, Any]) -> None:
    """Raise ContractError unless the right arm of a robosuite controller is OSC_POSE on changes of up to 5 cm and
    0.5 rad, as in Cosmos Policy's recordings."""
    parts = config.get("body_parts", {})
    arm = parts.get("right") or parts.get("arms", {}).get("right", {})
    reach = [0.05] * 3 + [0.5] * 3
    wanted = {"type": "OSC_POSE", "input_type": "delta", "output_max": reach, "output_min": [-r for r in reach]}
    for name, value in wanted.items():
        got = arm.get(name)
        if got != value:
            raise ContractError(f"RoboCasa's arm controller: {name} is {got}, the recordings were made with {value}")


class _RobocasaFamily:
    def make(self, name: str, **options: Any) -> RobocasaEnv:
        task = name.partition("/")[2]
        if task not in STEP_BUDGETS:
            raise UnknownNameError("RoboCasa task", task, STEP_BUDGETS)
        require_options(RobocasaEnv, options)
        return RobocasaEnv(task, **options)

    def names(self) -> list[str]:
        return [f"robocasa/{task}" for task in STEP_BUDGETS]


FAMILY = _RobocasaFamily()
