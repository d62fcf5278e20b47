"""The kit passes on the fake environments, here and in a process; and each of its checks can fail."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from cosmos_robot import envs
from cosmos_robot.envs import conformance
from cosmos_robot.envs.fakes import FakeEnv
from cosmos_robot.envs.gym import GymEnv
from cosmos_robot.envs.libero import LiberoEnv
from cosmos_robot.envs.remote import RemoteEnv
from cosmos_robot.errors import InputError, UnknownNameError
from cosmos_robot.types import Observation


@pytest.mark.parametrize("name", envs.list_envs("fake"))
def test_fake(name: str) -> None:
    conformance.run(lambda: envs.make(name))


def test_remote() -> None:
    conformance.run(lambda: RemoteEnv("fake/1"))


OTHERS = ("droid/place_red_block_in_tray", "droid/open_drawer", "aloha/transfer_cube", "aloha/insertion", "pusht/0")


@pytest.mark.parametrize("name", OTHERS)
def test_other_simulators(name: str) -> None:
    conformance.run(lambda: envs.make(name, step_budget=30))


@pytest.mark.parametrize("name", ["droid/pick_red_block", "aloha/insertion", "pusht/0"])
def test_other_simulators_in_a_process(name: str) -> None:
    conformance.run(lambda: RemoteEnv(name, options={"step_budget": 30}))


class NoReset(FakeEnv):
    def step(self, action):
        self._running = True
        return super().step(action)


class ExtraField(FakeEnv):
    def _state(self):
        return {**super()._state(), "secret": np.zeros(1)}


class Silent(FakeEnv):
    def reset(self, **kwargs):
        self.instruction = " "
        return super().reset(**kwargs)


class Eager(FakeEnv):
    def observe(self):
        observation = super().observe()
        observation.images["table"]
        return observation


class Late(FakeEnv):
    def observe(self):
        images = super().observe().images
        images._fresh = lambda: True
        return Observation(images, self._state(), self.instruction, self.control_steps / self.robot.rate_hz)


class Credulous(FakeEnv):
    def _check(self, action):
        return np.nan_to_num(np.asarray(action, dtype=np.float64))


class Careless(FakeEnv):
    def _reset(self, options):
        super()._reset({k: v for k, v in options.items() if k == "init_state"})


class Random(FakeEnv):
    def _reset(self, options):
        super()._reset(options)
        self._hand += np.random.default_rng().uniform(0, 1e-9, 2)


class Flickering(FakeEnv):
    def _draw(self, camera):
        return super()._draw(camera) // (1 + self.draws % 2)


class NumpyFlag(FakeEnv):
    def _step(self, action):
        reward, success, out_of_time = super()._step(action)
        return reward, np.bool_(success), out_of_time


class WrongClock(FakeEnv):
    def _step(self, action):
        self.control_steps += 1
        return super()._step(action)


class Boastful(FakeEnv):
    def score(self):
        return 2.0


class Unbounded(FakeEnv):
    init_state_count = 11

    def _reset(self, options):
        super()._reset({"init_state": 0} if options else {})


class Endless(FakeEnv):
    def _step(self, action):
        reward, _, _ = super()._step(action)
        return reward, False, False


class Undead(FakeEnv):
    def _require_open(self):
        pass


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (NoReset, "step_before_reset"),
        (ExtraField, "observation_matches_spec"),
        (Silent, "observation_matches_spec"),
        (Eager, "pictures_are_lazy"),
        (Late, "late_reading_is_refused"),
        (Credulous, "bad_actions_are_refused"),
        (Careless, "unknown_names_are_refused"),
        (Random, "same_seed_same_states"),
        (Flickering, "same_seed_same_states"),
        (NumpyFlag, "step_results"),
        (WrongClock, "step_results"),
        (Boastful, "step_results"),
        (Random, "init_states"),
        (Unbounded, "init_states"),
        (NoReset, "step_after_end"),
        (Endless, "step_after_end"),
        (Undead, "close"),
    ],
)
def test_each_check_can_fail(kind: type[FakeEnv], check: str) -> None:
    with pytest.raises(AssertionError):
        conformance.CHECKS[check](kind(0))


def test_every_check_has_been_seen_to_fail() -> None:
    seen = {case[1] for case in test_each_check_can_fail.pytestmark[0].args[1]}
    assert seen == set(conformance.CHECKS)


@pytest.mark.parametrize("cameras", [None, ("hand",), ()])
def test_gym_wrapper_passes_gymnasiums_own_check(cameras) -> None:
    _check_env(GymEnv(envs.make("fake/0"), cameras))


def test_gym_wrapper_of_libero_passes_gymnasiums_own_check(panda: LiberoEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panda, "close", lambda: None)  # others use it after us
    _check_env(GymEnv(panda, ("wrist",)))


@pytest.mark.parametrize("name", ["droid/pick_red_block", "aloha/transfer_cube", "pusht/0"])
def test_gym_wrapper_of_others_passes_gymnasiums_own_check(name: str) -> None:
    _check_env(GymEnv(envs.make(name), ()))


def _check_env(env: GymEnv) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Positions and some commands have no bound, and we register nothing with gymnasium.
        warnings.filterwarnings("ignore", message=".*(observation|action) space (min|max)imum value is -?infinity")
        warnings.filterwarnings("ignore", message=".*due to the environment not having a spec")
        # Robots take radians and pixels, and a wrapper that rescaled them would hide whose numbers they are.
        warnings.filterwarnings("ignore", message=".*recommend using a symmetric and normalized space")
        check_env(env)


def test_gym_wrapper_draws_its_cameras_only() -> None:
    inner = envs.make("fake/0")
    env = GymEnv(inner, cameras=("hand",))
    observation, info = env.reset(seed=0)
    assert set(observation["images"]) == {"hand"} and info["instruction"] == "Touch the near target"
    env.step(np.zeros(3))
    assert inner.draws == 2
    assert env.render().shape == (48, 64, 3)


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'fake"):
        envs.make("fake/7")
    with pytest.raises(UnknownNameError, match="did you mean 'libero"):
        envs.make("libro/0")


@pytest.mark.parametrize("task", [0, 1, 2])
def test_fake_tasks_can_be_solved_and_missed(task: int) -> None:
    env = envs.make(f"fake/{task}")
    env.reset(options={"init_state": 4})
    info = {"success": False}
    for _ in range(env.step_budget):
        move = np.clip((env._target - env._hand) / 0.02, -1, 1) * (task != 2)
        *_, terminated, truncated, info = env.step([*move, 1.0])
        if terminated or truncated:
            break
    assert info["success"] and terminated
    env.reset(options={"init_state": 4})
    for action in conformance.some_actions(env, env.step_budget):
        *_, truncated, info = env.step(action)
        if truncated:
            break
    assert truncated and not info["success"]


@pytest.mark.parametrize("seed", [-1, 0.5, "a"])
def test_a_seed_that_is_no_whole_number_is_refused(seed) -> None:
    with envs.make("fake/0") as env, pytest.raises(InputError, match="seed"):
        env.reset(seed=seed)


def test_a_picture_of_an_unknown_camera_names_the_nearest() -> None:
    with envs.make("fake/0") as env:
        observation, _ = env.reset(seed=0)
        with pytest.raises(UnknownNameError, match="did you mean 'table'"):
            observation.images["tabel"]
