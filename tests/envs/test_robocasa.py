"""RoboCasa's environment over a kitchen that is none: the simulator has an environment of its own and is not here."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from cosmos_robot import envs
from cosmos_robot.envs import conformance
from cosmos_robot.envs.base import execute
from cosmos_robot.envs.robocasa import (
    BASE_STILL,
    INIT_STATES,
    SCENES,
    SETTLE_STEPS,
    STEP_BUDGETS,
    RobocasaEnv,
    require_controller,
)
from cosmos_robot.errors import ContractError, DependencyError, InputError, UnknownNameError


class ToyKitchen:
    """A point that the arm moves, seen in a picture; done once it has gone a metre to the right."""

    def __init__(self, task: str, scene: tuple[int, int], seed: int):
        self.task, self.scene, self.seed = task, scene, seed
        self.place = np.random.default_rng([seed, *scene]).uniform(-0.1, 0.1, 3)
        self.begin = self.place[0]
        self.actions: list[np.ndarray] = []
        self.closed = False

    def step(self, action):
        self.actions.append(np.array(action))
        self.place = self.place + 0.05 * np.asarray(action)[:3]

    def success(self):
        return self.place[0] > self.begin + 0.99

    def instruction(self):
        return f"{self.task} in kitchen {self.scene[0]}"

    def state(self):
        return {"gripper_qpos": np.zeros(2), "eef_position": self.place.copy(), "eef_quat": np.array([0.0, 0, 0, 1])}

    def draw(self, camera, height, width):
        image = np.full((height, width, 3), 90, np.uint8)
        row, column = (np.clip((self.place[:2] + 2) / 4, 0, 0.99) * (height, width)).astype(int)
        image[row - 3 : row + 3, column - 3 : column + 3] = (200, 20 * len(camera) % 256, self.scene[0])
        return image

    def close(self):
        assert not self.closed, "closed twice"
        self.closed = True


@pytest.fixture
def built() -> list[ToyKitchen]:
    return []


@pytest.fixture
def make(built):
    def build(*arguments) -> ToyKitchen:
        built.append(ToyKitchen(*arguments))
        return built[-1]

    return lambda task="OpenDrawer", **options: RobocasaEnv(task, build=build, **options)


def test_it_keeps_what_every_environment_promises(make, built) -> None:
    assert conformance.run(lambda: make(step_budget=60)) == list(conformance.CHECKS)
    assert all(kitchen.closed for kitchen in built)


def test_budgets_are_the_published_ones() -> None:
    assert len(STEP_BUDGETS) == 24
    assert {task: steps for task, steps in STEP_BUDGETS.items() if steps != 500} == {
        "OpenDoubleDoor": 1000, "CloseDoubleDoor": 700, "PnPCounterToSink": 700, "PnPCounterToMicrowave": 600,
        "CoffeeSetupMug": 600, "CoffeeServeMug": 600, "CoffeePressButton": 300,
    }  # fmt: skip
    assert envs.list_envs("robocasa") == [f"robocasa/{task}" for task in STEP_BUDGETS]


def test_every_episode_has_its_own_kitchen_and_settles_as_published(make, built) -> None:
    env = make()
    for index in (0, 9, 10, 49):
        observation, info = env.reset(seed=3, options={"init_state": index})
        kitchen = built[-1]
        assert (kitchen.scene, kitchen.seed) == (SCENES[index // 10], 195 * index * 256)
        assert observation.instruction == info["instruction"] == f"OpenDrawer in kitchen {kitchen.scene[0]}"
        assert len(kitchen.actions) == SETTLE_STEPS and not np.any(kitchen.actions)
    assert len(built) == 4 and [kitchen.closed for kitchen in built] == [True, True, True, False]


def test_the_arms_seven_numbers_go_on_as_twelve(make, built) -> None:
    env = make(settle_steps=0)
    env.reset(seed=1)
    env.step([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, -1])
    assert built[-1].actions[-1].tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, -1, *BASE_STILL]


def test_seeds_are_none_of_the_published_episodes(make, built) -> None:
    env = make(settle_steps=0)
    published = {195 * index * 256 for index in range(INIT_STATES)}
    for seed in range(30):
        env.reset(seed=seed)
    assert {kitchen.scene for kitchen in built} == set(SCENES)
    assert not published & {kitchen.seed for kitchen in built} and len({kitchen.seed for kitchen in built}) == 30


def test_success_is_the_tasks_own_check(make) -> None:
    env = make(step_budget=100)
    env.reset(seed=2)
    result = execute(env, np.tile([1.0, 0, 0, 0, 0, 0, -1], (40, 1)))
    assert result.success and result.terminated and result.steps == 20 and result.score == 1
    env.reset(seed=2)
    with pytest.raises(InputError, match="rows of shape"):
        env.step(np.zeros(12))


def test_without_the_simulator_the_remedy_is_told() -> None:
    if importlib.util.find_spec("robocasa"):
        pytest.skip("RoboCasa is installed here")
    with pytest.raises(DependencyError, match=r"environment of its own(.|\n)*python"):
        envs.make("robocasa/OpenDrawer")
    with pytest.raises(UnknownNameError, match="did you mean 'OpenDrawer'"):
        envs.make("robocasa/OpenDrawers")
    with pytest.raises(UnknownNameError, match="settle_steps"):
        envs.make("robocasa/OpenDrawer", settle_step=3)


def arm(**changes) -> dict:
    reach = [0.05] * 3 + [0.5] * 3
    part = {"type": "OSC_POSE", "input_type": "delta", "output_max": reach, "output_min": [-r for r in reach]}
    return {"type": "HYBRID_MOBILE_BASE", "body_parts": {"right": part | changes}}


def test_another_controller_than_the_recordings_is_refused() -> None:
    require_controller(arm())
    require_controller({"body_parts": {"arms": arm()["body_parts"]}})
    for change in ({"type": "JOINT_POSITION"}, {"input_type": "absolute"}, {"output_max": [0.05] * 6}):
        with pytest.raises(ContractError, match=next(iter(change))):
            require_controller(arm(**change))
