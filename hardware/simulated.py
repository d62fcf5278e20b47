"""Any environment as a robot: the same loop, gate and scheduler, with a simulator at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.envs.base import RobotEnv
from cosmos_robot.errors import InputError, RobotError
from cosmos_robot.hardware.clock import Clock
from cosmos_robot.hardware.gate import UNLIMITED, Limits
from cosmos_robot.hardware.robot import Robot, Sent, at_rate, standing
from cosmos_robot.types import Observation


class SimulatedRobot(Robot):
    """An environment stepped once a control period, by a command or by holding still.

    For absolute commands, holding repeats the last one and begins where the robot is; the present place is read from
    ``position_fields``, state fields that line up with the action. For changes per step, holding is no change, the
    gripper as it was. After the episode has ended the robot stands: ``ended`` is true and commands do nothing.
    """

    def __init__(
        self,
        env: RobotEnv,
        clock: Clock,
        limits: Limits | None = None,
        position_fields: tuple[str, ...] | None = None,
        reset_options: dict[str, Any] | None = None,
        seed: int | None = None,
        rate_hz: float | None = None,
    ):
        """rate_hz: of commands; each is repeated for as many steps as the environment takes meanwhile. limits: default
        none but the spec's own ranges. Raises InputError for absolute commands without fields that line up, or for
        commands relative to a chunk's first pose, which have no meaning one by one."""
        self.robot = at_rate(env.robot, rate_hz)
        self._repeats = _repeats(env, self.robot.rate_hz)
        self.limits = limits or unlimited(env)
        self._env, self._clock, self._options, self._seed = env, clock, reset_options, seed
        self._fields = _aligned(env, position_fields)
        self._observation: Observation | None = None
        self._last: NDArray[np.float64] | None = None
        self.ended = self.success = False

    def connect(self) -> None:
        """Reset the environment."""
        self._observation, _ = self._env.reset(seed=self._seed, options=self._options)
        self._last = None
        self.ended = self.success = False

    def observe(self, instruction: str) -> Observation:
        """The observation after the last step, at the clock's time; an empty instruction means the env's own."""
        seen = self._seen()
        return Observation(seen.images, seen.state, instruction or seen.instruction, self._clock.now())

    def position(self) -> NDArray[np.float64]:
        """(D,) the present place from the state, or zeros for changes per step."""
        state = self._seen().state
        if self.robot.action_reference != "absolute":
            return np.zeros(self.robot.action_width)
        return np.concatenate([state[name] for name in self._fields])

    def send(self, values: NDArray[np.float64]) -> Sent:
        """Step the environment once."""
        notes = () if not self.ended else ("the episode has ended",)
        for _ in range(self._repeats):
            if self.ended:
                break
            self._observation, _, terminated, truncated, info = self._env.step(values)
            self._last = np.array(values)
            self.success = bool(info["success"])
            self.ended = terminated or truncated
        return Sent(np.array(values), notes)

    def hold(self) -> None:
        """Step the environment once, standing still."""
        self.send(self._still())

    def stop(self) -> None:
        """A simulator stands as soon as nobody steps it."""

    def recover(self) -> None:
        """Nothing breaks here but the simulator itself."""
        if self._observation is None:
            raise RobotError("the simulated robot was not connected; call connect() first")

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _seen(self) -> Observation:
        if self._observation is None:
            raise RobotError("the simulated robot was not connected; call connect() first")
        return self._observation

    def _still(self) -> NDArray[np.float64]:
        return standing(self.robot, self._last, self.position)


@contextlib.contextmanager
def handed_over(env: RobotEnv) -> Iterator[RobotEnv]:
    """``env`` while a robot is made of it, which closes it from then on; closed here if the robot refuses it."""
    try:
        yield env
    except BaseException:
        env.close()
        raise


def _repeats(env: RobotEnv, rate_hz: float) -> int:
    times = env.robot.rate_hz / rate_hz
    whole = round(times)
    if whole < 1 or abs(times - whole) > 1e-6 or (whole > 1 and env.robot.action_reference != "absolute"):
        raise InputError(
            f"{env.robot.name!r} steps at {env.robot.rate_hz} Hz and cannot be driven at {rate_hz} Hz; expected its "
            "own rate or, for absolute commands, a whole part of it"
        )
    return whole


def unlimited(env: RobotEnv) -> Limits:
    """No limits but the ranges in the environment's spec: nothing can be hurt in a simulator."""
    free = {f.name: UNLIMITED for f in env.robot.action}
    return Limits.of(env.robot, max_step=free, max_rate=free, max_first=free, max_jump=free)


def _aligned(env: RobotEnv, given: tuple[str, ...] | None) -> tuple[str, ...]:
    spec = env.robot
    if spec.action_reference == "per_chunk":
        raise InputError(f"{spec.name!r} takes changes from a chunk's first pose; a control loop sends row by row")
    if spec.action_reference != "absolute":
        return ()
    fields = given or tuple(f.name for f in spec.action)
    widths = {f.name: f.width for f in spec.state}
    wanted = [(f.name, f.width) for f in spec.action]
    if [widths.get(name) for name in fields] != [width for _, width in wanted]:
        raise InputError(
            f"position_fields: expected state fields as wide as the action's {wanted}, got {list(fields)} of {widths}"
        )
    return fields
