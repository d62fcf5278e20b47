"""What every environment is checked for. A new one's test is its constructor:

    for name, check in CHECKS.items():
        check(env)

The checks run in the order of ``CHECKS`` on one environment that has not been reset yet; the last one closes it. Each
raises AssertionError with the sentence of the promise that was broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.envs.base import RobotEnv
from cosmos_robot.errors import CosmosRobotError, InputError
from cosmos_robot.types import Image, Observation

STEPS = 5


def run(make: Callable[[], RobotEnv]) -> list[str]:
    """Make an environment and run every check on it; returns the names of the checks."""
    env = make()
    try:
        for check in CHECKS.values():
            check(env)
    finally:
        env.close()
    return list(CHECKS)


def some_actions(env: RobotEnv, count: int, seed: int = 0) -> NDArray[np.float64]:
    """(count, action_width) random actions within the robot's one range, or within -1..1 where it sets none: over the
    whole range of their joints arms move so hard that simulations break."""
    low = -1.0 if env.robot.action_low is None else env.robot.action_low
    high = 1.0 if env.robot.action_high is None else env.robot.action_high
    return np.random.default_rng(seed).uniform(low, high, (count, env.robot.action_width))


@contextmanager
def count_draws(env: RobotEnv) -> Iterator[list[str]]:
    """The names of the cameras that are drawn meanwhile, in a list that grows."""
    drawn: list[str] = []
    draw = env._draw

    def counting(camera: str) -> Image:
        drawn.append(camera)
        return draw(camera)

    with mock.patch.object(env, "_draw", counting):
        yield drawn


def check_step_before_reset(env: RobotEnv) -> None:
    """A step before the first reset is refused."""
    _refused(lambda: env.step(some_actions(env, 1)[0]), "step() before reset()")


def check_observation_matches_spec(env: RobotEnv) -> None:
    """Fields, widths, cameras, sizes, instruction and clock are those of the spec, after a reset and after a step."""
    assert env.action_space.shape == (env.robot.action_width,), "action_space has not the width of the spec"
    first, info = env.reset(seed=0)
    assert info["instruction"] == first.instruction, "reset's info and the observation disagree on the instruction"
    assert first.time == 0, f"the clock starts at {first.time}"
    _matches_spec(env, first)
    _matches_spec(env, env.step(some_actions(env, 1)[0])[0])


def check_pictures_are_lazy(env: RobotEnv) -> None:
    """Reset and steps draw nothing; a picture is drawn once, when first read."""
    with count_draws(env) as drawn:
        env.reset(seed=0)
        for action in some_actions(env, STEPS):
            observation = env.step(action)[0]
        assert not drawn, f"a reset and {STEPS} steps drew {drawn} though nobody looked"
        camera = env.robot.cameras[-1].name
        first = observation.images[camera]
        assert observation.images[camera] is first, "a second reading gave another picture"
        assert drawn == [camera], f"reading {camera!r} twice drew {drawn}"


def check_late_reading_is_refused(env: RobotEnv) -> None:
    """A picture first read after the next step or reset is refused; one that was read in time is kept."""
    read, unread = env.robot.cameras[0].name, env.robot.cameras[-1].name
    observation, _ = env.reset(seed=0)
    kept = observation.images[read]
    after_step = env.step(some_actions(env, 1)[0])[0]
    assert observation.images[read] is kept, "a picture that had been read was lost"
    if read != unread:
        _refused(lambda: observation.images[unread], "reading a picture after a step")
    env.reset(seed=0)
    _refused(lambda: after_step.images[read], "reading a picture after a reset")


def check_bad_actions_are_refused(env: RobotEnv) -> None:
    """NaN, infinity, a wrong width, a wrong number of axes and anything but real numbers are refused and move
    nothing."""
    env.reset(seed=0)
    good = some_actions(env, 1)[0]
    bad = {
        "NaN": np.where(np.arange(len(good)) == len(good) - 1, np.nan, good),
        "infinity": np.where(np.arange(len(good)) == 0, np.inf, good),
        "one value too many": np.append(good, 0.0),
        "one value too few": good[:-1],
        "two axes": good[None],
        "no axis": np.float64(0),
        "text": good.astype(str),
        "complex numbers": good + 0j,
        "truth values": good > 0,
        "objects": np.array([None] * len(good)),
    }
    for what, action in bad.items():
        _refused(lambda action=action: env.step(action), f"an action with {what}")
    assert env.control_steps == 0, "a refused action was counted as a control step"


def check_unknown_names_are_refused(env: RobotEnv) -> None:
    """A camera or a reset option that does not exist is refused."""
    _refused(lambda: env.render_camera("no such camera"), "an unknown camera")
    _refused(lambda: env.reset(seed=0, options={"no such option": 1}), "an unknown reset option")


def check_same_seed_same_states(env: RobotEnv) -> None:
    """The same seed and actions give the same states, bit by bit, and end in the same picture."""
    actions = some_actions(env, STEPS, seed=1)
    (first, seen), (second, seen_again) = _rollout(env, actions, seed=7), _rollout(env, actions, seed=7)
    for step, (a, b) in enumerate(zip(first, second, strict=True)):
        assert np.array_equal(a, b), f"same seed and actions, yet the states differ after step {step}: {a} and {b}"
    assert np.array_equal(seen, seen_again), "same seed and actions, yet the last pictures differ"


def check_step_results(env: RobotEnv) -> None:
    """The clock advances by one period per step; success, terminated and truncated are booleans, the score is a share;
    looking again changes nothing."""
    env.reset(seed=0)
    for step, action in enumerate(some_actions(env, STEPS), start=1):
        observation, reward, terminated, truncated, info = env.step(action)
        expected = step / env.robot.rate_hz
        assert abs(observation.time - expected) < 1e-9, f"time {observation.time} after {step} steps, not {expected}"
        assert env.control_steps == step, f"control_steps is {env.control_steps} after {step} steps"
        assert isinstance(reward, float), f"reward is {type(reward).__name__}, not float"
        flags = {"terminated": terminated, "truncated": truncated, "success": info["success"]}
        for name, flag in flags.items():
            assert isinstance(flag, bool), f"{name} is {type(flag).__name__}, not bool"
        assert not (terminated and truncated), "an episode both terminated and was truncated"
        score = env.score()
        assert isinstance(score, float) and 0 <= score <= 1, f"score is {score!r}, not a number from 0 to 1"
        assert score == 1 or not info["success"], f"score is {score} after a success"
    again = env.observe()
    assert (again.time, env.control_steps) == (observation.time, STEPS), "observe() moved the environment"
    assert np.array_equal(_joined(again), _joined(observation)), "observe() differs from what the last step returned"


def check_init_states(env: RobotEnv) -> None:
    """Initial states by index: the same index gives the same start, others differ, and there are no more than said."""
    if not env.init_state_count:
        _refused(lambda: env.reset(seed=0, options={"init_state": 0}), "an initial state where there are none")
        return
    last = env.init_state_count - 1
    first, again, other = (_start(env, index) for index in (last, last, 0))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)), "init state k differs from itself"
    if last:
        assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True)), "all init states are the same"
    for index in (last + 1, -1, 0.5, "0", None):
        _refused(lambda i=index: env.reset(seed=0, options={"init_state": i}), f"init state {index!r}")


def check_step_after_end(env: RobotEnv) -> None:
    """An episode ends, and a step after its end is refused until the next reset."""
    env.reset(seed=0)
    for action in some_actions(env, 2000, seed=2):
        _, _, terminated, truncated, info = env.step(action)
        assert terminated or not info["success"], "success did not end the episode"
        if terminated or truncated:
            break
    assert terminated or truncated, "no end after 2000 steps"
    _refused(lambda: env.step(action), "a step after the end")
    env.reset(seed=0)
    env.step(action)


def check_close(env: RobotEnv) -> None:
    """Closing twice is harmless; afterwards everything is refused."""
    observation = env.observe()
    env.close()
    env.close()
    camera = env.robot.cameras[0].name
    _refused(lambda: env.reset(seed=0), "reset() after close()")
    _refused(lambda: env.step(some_actions(env, 1)[0]), "step() after close()")
    _refused(lambda: env.render_camera(camera), "render_camera() after close()")
    _refused(lambda: observation.images[camera], "reading a picture after close()")


CHECKS: dict[str, Callable[[RobotEnv], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_step_before_reset,
        check_observation_matches_spec,
        check_pictures_are_lazy,
        check_late_reading_is_refused,
        check_bad_actions_are_refused,
        check_unknown_names_are_refused,
        check_same_seed_same_states,
        check_step_results,
        check_init_states,
        check_step_after_end,
        check_close,
    )
}


def _matches_spec(env: RobotEnv, observation: Observation) -> None:
    assert isinstance(observation, Observation), f"{type(observation).__name__} is not an Observation"
    assert observation.instruction.strip(), "the instruction is empty"
    assert observation.instruction == env.instruction, "the observation's instruction is not the environment's"
    widths = {name: len(value) for name, value in observation.state.items()}
    assert widths == {f.name: f.width for f in env.robot.state}, f"state fields are {widths}, not those of the spec"
    assert list(observation.images) == [c.name for c in env.robot.cameras], "cameras are not those of the spec"
    for camera in env.robot.cameras:
        for image in (observation.images[camera.name], env.render_camera(camera.name)):
            assert image.dtype == np.uint8, f"{camera.name} is {image.dtype}, not uint8"
            assert image.shape == (camera.height, camera.width, 3), f"{camera.name} has shape {image.shape}"
            assert image.max() > image.min(), f"{camera.name} shows a single colour"


def _rollout(env: RobotEnv, actions: NDArray[np.float64], seed: int) -> tuple[list[NDArray[np.float64]], Image]:
    observation, _ = env.reset(seed=seed)
    states = [_joined(observation)]
    for action in actions:
        observation = env.step(action)[0]
        states.append(_joined(observation))
    return states, observation.images[env.robot.cameras[0].name]


def _start(env: RobotEnv, index: int) -> tuple[NDArray, ...]:
    """State and pictures at initial state ``index``: objects show in pictures only, and not in all of them."""
    observation, _ = env.reset(seed=None, options={"init_state": index})
    return _joined(observation), *observation.images.values()


def _joined(observation: Observation) -> NDArray[np.float64]:
    return np.concatenate(list(observation.state.values()))


def _refused(call: Callable[[], object], what: str) -> None:
    try:
        call()
    except CosmosRobotError as error:
        assert isinstance(error, InputError | KeyError | ValueError), f"{what}: refused as {type(error).__name__}"
        assert str(error), f"{what}: refused without a reason"
        return
    raise AssertionError(f"{what} was not refused")
