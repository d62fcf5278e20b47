"""What every environment promises.

A ``RobotEnv`` is a gymnasium environment whose observations are typed ``Observation`` values with lazy pictures. It
names its robot, its instruction and its own success; it never guesses a convention.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot.contract import RobotSpec
from cosmos_robot.envs.truth import GroundTruth
from cosmos_robot.errors import InputError, UnknownNameError
from cosmos_robot.types import Image, LazyImages, Observation


@dataclass(frozen=True, eq=False)
class StepRows:
    """What was there before each of k control steps: states (k, P) as ``RobotEnv.published_state``, and camera name to
    pictures (k, H, W, 3) uint8."""

    states: NDArray[np.float64]
    pictures: Mapping[str, NDArray[np.uint8]]


@dataclass(frozen=True)
class StepResult:
    """What came of running some actions: the last observation, summed reward, how it ended, steps really taken.

    score: how much of the task is done now, as ``RobotEnv.score``. frames: camera name to the pictures kept on the way,
    where a film was asked for, and rows: what was there before each step, where that was (``RemoteEnv.execute``).
    """

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    success: bool
    steps: int
    score: float = 0.0
    frames: Mapping[str, tuple[Image, ...]] = field(default_factory=dict)
    rows: StepRows | None = None


class RobotEnv(gymnasium.Env):
    """Base of all environments.

    Subclasses set ``robot`` and ``instruction`` and implement the four underscored methods. ``reset`` must be called
    before ``step``, and again after an episode has ended; a wrong call raises instead of being mended.
    """

    robot: RobotSpec
    instruction: str
    init_state_count: int = 0
    """How many official initial states there are, for ``reset(options={"init_state": i})``."""
    settle_steps: int = 0
    """Steps of no motion that a reset takes before its observation; not counted in the budget."""
    step_budget: int | None = None
    """Control steps until truncation, None for no end."""

    def __init__(self) -> None:
        self._moment = 0
        self._running = False
        self._closed = False
        self._succeeded = False
        self.control_steps = 0
        self._make_spaces()

    def _make_spaces(self) -> None:
        self.action_space = gymnasium.spaces.Box(*action_range(self.robot), dtype=np.float64)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "images": gymnasium.spaces.Dict(
                    {c.name: gymnasium.spaces.Box(0, 255, (c.height, c.width, 3), np.uint8) for c in self.robot.cameras}
                ),
                "state": gymnasium.spaces.Dict(
                    {f.name: gymnasium.spaces.Box(-np.inf, np.inf, (f.width,), np.float64) for f in self.robot.state}
                ),
            }
        )

    @abstractmethod
    def _reset(self, options: dict[str, Any]) -> None:
        """Put the world at the start of an episode; ``self.np_random`` is seeded."""

    @abstractmethod
    def _step(self, action: NDArray[np.float64]) -> tuple[float, bool, bool]:
        """Advance one control step: reward, success now, out of time."""

    @abstractmethod
    def _state(self) -> dict[str, NDArray[np.float64]]:
        """The state fields of ``robot``, in its units."""

    @abstractmethod
    def _draw(self, camera: str) -> Image:
        """Render one camera, now."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start an episode. Returns (Observation, info)."""
        self._require_open()
        if seed is not None and (not isinstance(seed, int | np.integer) or seed < 0):
            raise InputError(f"seed: expected a whole number from 0, got {seed!r}")
        super().reset(seed=None if seed is None else int(seed))
        self._moment += 1
        self.control_steps = 0
        self._succeeded = False
        self._reset(dict(options or {}))
        self._running = True
        return self.observe(), {"instruction": self.instruction}

    def step(self, action):
        """One control step with ``action`` (action_width,), finite, in the robot's units.

        Returns (Observation, reward, terminated, truncated, info) with ``info["success"]`` from the env's own check.
        """
        self._require_open()
        if not self._running:
            raise InputError("step() before reset(), or after the episode ended; call reset() first")
        action = self._check(action)
        self._moment += 1
        reward, success, out_of_time = self._step(action)
        self.control_steps += 1
        self._succeeded = success
        self._running = not (success or out_of_time)
        info = {"success": success, **self._info()}
        return self.observe(), reward, success, out_of_time and not success, info

    def run(self, rows: NDArray[np.float64], on_step: Callable[[RobotEnv], None] | None = None) -> StepResult:
        """``execute`` of rows (k, D) that were checked: step by step. An environment that imagines many steps at once
        may do it otherwise, as long as the end is the same."""
        total = 0.0
        for steps, action in enumerate(rows, start=1):
            observation, reward, terminated, truncated, info = self.step(action)
            total += float(reward)
            if on_step is not None:
                on_step(self)
            if terminated or truncated:
                break
        return StepResult(observation, total, terminated, truncated, bool(info["success"]), steps, self.score())

    def _info(self) -> dict[str, Any]:
        """What a step's info says beside ``success``: plain values."""
        return {}

    def score(self) -> float:
        """How much of the task is done now, 0 to 1, and 1 after a success. A task without parts has only these two."""
        return float(self._succeeded)

    def published_state(self) -> NDArray[np.float64]:
        """The state as published recordings of this simulator hold it (P,); the robot's own unless they differ."""
        state = self._state()
        return np.concatenate([state[part.name] for part in self.robot.state])

    def render_camera(self, name: str) -> Image:
        """Draw camera ``name`` now: uint8 (H, W, 3), oriented as the robot's spec says."""
        self._require_open()
        self.robot.camera(name)
        return self._draw(name)

    def ground_truth(self) -> GroundTruth | None:
        """What the simulator itself knows, since the last reset, for probes; None where it cannot be asked."""
        return None

    def close(self) -> None:
        """Free the simulator; calling it again does nothing."""
        self._closed = True

    @property
    def running(self) -> bool:
        """Whether an episode is on: there was a reset, and no end since."""
        return self._running

    def observe(self) -> Observation:
        """The present observation, without stepping."""
        self._require_open()
        moment = self._moment
        images = LazyImages(
            tuple(c.name for c in self.robot.cameras), self._draw, lambda: moment == self._moment and not self._closed
        )
        return Observation(images, self._state(), self.instruction, self.control_steps / self.robot.rate_hz)

    def _check(self, action: ArrayLike) -> NDArray[np.float64]:
        return check_rows([action], self.robot)[0]

    def _require_open(self) -> None:
        if self._closed:
            raise InputError("this environment is closed; make a new one")


def init_state(env: RobotEnv, options: Mapping[str, Any]) -> int | None:
    """The initial state that reset's ``options`` ask for, None without the option; for environments that know no
    other option. Raises InputError if there is no such state, or on another option."""
    unknown = sorted(set(options) - {"init_state"})
    if unknown:
        raise InputError(f"reset options: unknown {unknown}; known: init_state")
    if "init_state" not in options:
        return None
    index, count = options["init_state"], env.init_state_count
    if not isinstance(index, int | np.integer) or isinstance(index, bool) or not 0 <= index < count:
        valid = f"a whole number from 0 to {count - 1}" if count else "none, since there are no initial states here"
        raise InputError(f"init_state: expected {valid}, got {index!r}")
    return int(index)


def action_range(robot: RobotSpec) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The lowest and highest command (action_width,): of each field, else of the robot, else without bound."""
    low = -np.inf if robot.action_low is None else robot.action_low
    high = np.inf if robot.action_high is None else robot.action_high
    return (
        np.array([v for f in robot.action for v in (f.low or (low,) * f.width)], np.float64),
        np.array([v for f in robot.action for v in (f.high or (high,) * f.width)], np.float64),
    )


def check_rows(values: ArrayLike, robot: RobotSpec) -> NDArray[np.float64]:
    """Actions (k, action_width) as float64, clipped to the robot's ``action_range``.

    Raises InputError unless they are real numbers, of that shape with k >= 1, and finite.
    """
    _require_numbers(values)
    try:
        rows = np.asarray(values)
    except ValueError as error:
        raise InputError(f"action: expected numbers in a rectangle, got {values!r}") from error
    if rows.dtype.kind not in "fiu":
        raise InputError(f"action: expected real numbers, got dtype {rows.dtype}")
    if rows.ndim != 2 or not len(rows) or rows.shape[1] != robot.action_width:
        raise InputError(f"action: expected rows of shape (k, {robot.action_width}) with k >= 1, got {rows.shape}")
    rows = rows.astype(np.float64)
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise InputError(f"action: row {row}, dimension {column} is not finite: {rows[row]}")
    return np.clip(rows, *action_range(robot))


def _require_numbers(values: ArrayLike) -> None:
    """Numpy would read True as 1 and a list with a text in it as texts: name what is no number before it does."""
    if not isinstance(values, list | tuple) and getattr(values, "dtype", None) != np.dtype(object):
        return
    for row, action in enumerate(values):
        if isinstance(action, np.ndarray) and action.dtype != object:
            continue
        for column, value in enumerate(np.ravel(np.array(action, dtype=object))):
            if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
                raise InputError(f"action: row {row}, dimension {column}: expected a real number, got {value!r}")


def require_options(kind: type[RobotEnv], options: Mapping[str, Any]) -> None:
    """Raise UnknownNameError, with the nearest, unless all ``options`` are keyword arguments of ``kind``."""
    known = [p.name for p in signature(kind).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise UnknownNameError("option of this environment", name, known)


def require_limits(settle_steps: int, step_budget: int) -> None:
    """Raise InputError unless these are whole numbers, not negative, and leave a step to take."""
    for name, value, least in (("settle_steps", settle_steps, 0), ("step_budget", step_budget, 1)):
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
            raise InputError(f"{name}: expected a whole number from {least}, got {value!r}")


def execute(env: RobotEnv, values: ArrayLike, on_step: Callable[[RobotEnv], None] | None = None) -> StepResult:
    """Run rows of ``values`` (k, D) in ``env`` until they are used up or the episode ends.

    All rows are checked before the first is run. ``on_step`` is called after each one.
    """
    return env.run(check_rows(values, env.robot), on_step)
