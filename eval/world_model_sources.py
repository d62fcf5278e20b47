"""Where the episodes of a world-model evaluation come from: a dataset, or a simulator that is driven now.

A source says what its episodes are called and makes one at a time; it can be pickled, so that every worker has its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from cosmos_robot import envs
from cosmos_robot.contract import Contract, require_fit
from cosmos_robot.envs.base import RobotEnv, action_range
from cosmos_robot.envs.world_model import gripper_columns
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.eval.world_model_seeds import seed_of
from cosmos_robot.eval.world_model_windows import Rows, Run, Seen, frame_stride, state_fields
from cosmos_robot.types import ActionChunk

if TYPE_CHECKING:
    from cosmos_robot.data.bridge import RecordedEpisodes

DRIVERS = ("expert", "random")
"""Who may drive, beside a policy. expert: the scripted demonstrator of LIBERO, with noise on its commands. random:
motions that change slowly, the gripper now open, now closed."""
NOISE = 0.2
"""Standard deviation of the noise on the expert's commands, so that not every window shows the same motion."""
SIDECAR = "meta/cosmos_robot.json"


class Source(Protocol):
    """Episodes by number.

    remedy: what to do where no episode holds a whole window.
    """

    remedy: str

    def fingerprint(self, contract: Contract) -> str | None:
        """What changes with the content of recorded episodes; None where they are made now. Raises ContractError for
        recordings that are not of the contract's robot."""

    def names(self) -> list[str]:
        """What the episodes are called; the same every time."""

    def run(self, number: int, contract: Contract) -> Run:
        """Episode ``number``, with a picture wherever a frame of a prediction may be."""

    def close(self) -> None:
        """Free what is held open."""


@dataclass
class Recorded:
    """The first ``episodes`` episodes of a dataset, from episode ``first``; or those called ``numbers``."""

    path: Path
    episodes: int
    first: int = 0
    numbers: tuple[int, ...] = ()
    remedy: ClassVar[str] = (
        "perhaps pictures are missing at the frames of a prediction: ask for fewer --chunks, or record longer episodes "
        "with a picture at each of these frames"
    )

    def __post_init__(self) -> None:
        self._opened: RecordedEpisodes | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def fingerprint(self, contract: Contract) -> str:
        from cosmos_robot.data.store import EpisodeStore

        if (self.path / SIDECAR).is_file():
            return EpisodeStore(self.path).fingerprint
        return self._bridge(contract).fingerprint

    def _bridge(self, contract: Contract) -> RecordedEpisodes:
        if self._opened is None or self._opened.contract != contract:
            self._opened = _bridge(self.path, contract)
        return self._opened

    def names(self) -> list[str]:
        return [self._name(place) for place in self._places()]

    def run(self, number: int, contract: Contract) -> Run:
        place = self._places()[number]
        if (self.path / SIDECAR).is_file():
            return _stored(self.path, place, contract, self._name(place))
        return _recorded(self._bridge(contract), place, self._name(place))

    def _name(self, place: int) -> str:
        return f"{Path(self.path).name} episode {place}"

    def _places(self) -> Sequence[int]:
        """The episodes' own numbers in the dataset."""
        from cosmos_robot.data.layouts import open_recordings

        held = len(open_recordings(self.path))
        absent = [number for number in self.numbers if not 0 <= number < held]
        if absent or len(set(self.numbers)) < len(self.numbers):
            raise InputError(
                f"{self.path} holds {held} episodes; expected --numbers from 0 to {held - 1}, each once, got "
                f"{' '.join(map(str, self.numbers))}"
            )
        if self.first >= held:
            raise InputError(f"{self.path} holds {held} episodes; --first-episode {self.first} is beyond them")
        return self.numbers or range(self.first, min(held, self.first + self.episodes))

    def close(self) -> None:
        """Nothing is held open between two episodes."""


@dataclass
class Live:
    """Episodes that a driver runs now: of every environment of ``tasks`` the first ``episodes`` initial states.

    driver: see ``DRIVERS``, or a policy by name. steps: at which an episode ends if the environment does not end it.
    """

    tasks: tuple[str, ...]
    episodes: int
    driver: str = "expert"
    first: int = 0
    steps: int = 200
    seed: int = 0
    remedy: ClassVar[str] = "ask for fewer --chunks or more --steps"

    def __post_init__(self) -> None:
        self._env: RobotEnv | None = None
        self._made = ""
        self._policy: Any = None

    def fingerprint(self, contract: Contract) -> None:
        """Nothing is recorded."""

    def names(self) -> list[str]:
        inits = range(self.first, self.first + self.episodes)
        return [f"{task} init {init}" for init in inits for task in self.tasks]

    def run(self, number: int, contract: Contract) -> Run:
        init, task = self.first + number // len(self.tasks), self.tasks[number % len(self.tasks)]
        env = self._made_for(task, contract)
        options = {"init_state": init} if env.init_state_count else {}
        seed = seed_of(self.seed, task, init)
        env.reset(seed=seed, options=options)
        rng = np.random.default_rng(seed)
        driver = _driver(self.driver, env, contract, rng, self._loaded)
        return drive_episode(env, driver, contract, self.names()[number], self.steps)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_env": None, "_made": "", "_policy": None}

    def _made_for(self, task: str, contract: Contract) -> RobotEnv:
        if self._env is None or self._made != task:
            self.close()
            # One step more than is taken: an episode that ends could not be gone back into.
            robot = envs.speaking(task, contract.robot.name)
            self._env, self._made = envs.make(task, step_budget=self.steps + 1, **robot), task
            require_fit(contract, self._env.robot)
        return self._env

    def _loaded(self, name: str, contract: Contract) -> Any:
        from cosmos_robot.policies import FAKES, load_policy

        if self._policy is None:
            self._policy = load_policy(name, contract=contract) if name in FAKES else load_policy(name)
        return self._policy


def _stored(path: Path, index: int, contract: Contract, name: str) -> Run:
    """An episode of a dataset that this package wrote: demonstrations with a row every ``stride`` steps, each with the
    commands sent after it, or a policy's decisions and what was run of each."""
    from cosmos_robot.data.episodes import executed_commands
    from cosmos_robot.data.rollouts import rollout_of
    from cosmos_robot.data.store import EpisodeStore

    store = EpisodeStore(path)
    require_fit(contract, store.robot)
    _require_stride(path, store.stride, contract)
    if store.infos[index].source == "dagger":
        raise InputError(
            f"{name}: its commands are labels that nobody ran (source 'dagger'), so its pictures did not come of them; "
            "choose other episodes with --numbers"
        )
    rollout = store.infos[index].source == "rollout"
    if store.chunk < store.stride and not rollout:
        raise InputError(
            f"{name}: its rows hold {store.chunk} commands but are {store.stride} steps apart, so the others are not "
            f"known; record chunks of at least {store.stride}"
        )
    episode = store.episode(index)
    if rollout:
        held = rollout_of(episode)
        steps, commands = held.steps.tolist(), held.commands
    else:
        stride, last = store.stride, len(episode) - 1
        steps = [i * stride for i in range(len(episode))]
        sent = executed_commands(episode, stride, name)
        commands = np.concatenate([*sent[:last, :stride], sent[last][episode.valid[last]]])
    pictures = {step: {name: frames[i] for name, frames in episode.images.items()} for i, step in enumerate(steps)}
    states = {step: state_fields(store.robot, episode.state[i]) for i, step in enumerate(steps)}
    seen = Seen(pictures, states)
    return Run(name, episode.instruction, commands.astype(np.float64), seen, store.infos[index].success)


def _recorded(episodes: RecordedEpisodes, index: int, name: str) -> Run:
    """An episode of somebody else's dataset, a row for every command, checked as for training."""
    episode, (state, commands) = episodes.episode(index), episodes.numbers(index)
    steps = range(0, len(commands), episodes.data.stride)
    pictures = {step: {name: frames[i] for name, frames in episode.images.items()} for i, step in enumerate(steps)}
    states = {step: state_fields(episodes.contract.robot, row) for step, row in enumerate(state)}
    seen, success = Seen(pictures, states), episodes.recordings[index].success
    return Run(name, episode.instruction, commands.astype(np.float64), seen, success)


def _bridge(path: Path, contract: Contract) -> RecordedEpisodes:
    """Somebody else's recordings as episodes of the contract's robot, with a picture at each frame of a prediction;
    failures, too, so that every episode keeps its own number."""
    from cosmos_robot.data.bridge import DataSpec, RecordedEpisodes

    stride = _common(frame_stride(contract), contract.model.chunk)
    try:
        return RecordedEpisodes(DataSpec(path=path, stride=stride, failures="keep"), contract)
    except ContractError as error:
        raise ContractError(
            f"{error}\nThis command reads no description of columns: bring the dataset to the contract's names first, "
            "with write_dataset over RecordedEpisodes and a DataSpec that says which columns are which"
        ) from error


def _require_stride(path: Path, stride: int, contract: Contract) -> None:
    wanted = frame_stride(contract)
    if wanted % stride:
        raise InputError(
            f"{path} has pictures every {stride} steps, {contract.model.name!r} predicts one every {wanted}; evaluate "
            "in the simulator with --env, or record with a stride that divides it"
        )


def _common(a: int, b: int) -> int:
    return int(np.gcd(a, b))


class _Driver(Protocol):
    def act(self) -> NDArray[np.float64]: ...


def _driver(name: str, env: RobotEnv, contract: Contract, rng: np.random.Generator, load: Any) -> _Driver:
    if name == "random":
        return Wandering(env, rng)
    if name == "expert":
        return _expert(env, rng)
    return _PolicyDriver(load(name, contract), env, rng)


class Wandering:
    """Motions that turn slowly, over the whole command range, the gripper changing about every second."""

    def __init__(self, env: RobotEnv, rng: np.random.Generator):
        low, high = action_range(env.robot)
        if not (np.isfinite(low).all() and np.isfinite(high).all()) or env.robot.action_reference == "absolute":
            raise InputError(
                f"driver 'random' needs a robot that is commanded by steps within a range, {env.robot.name!r} is not; "
                "name a policy with --driver"
            )
        self._rng, self._middle, self._half = rng, (low + high) / 2, (high - low) / 2
        self._robot, self._now = env.robot, rng.normal(0, 0.6, len(low))
        self._change = 1 / env.robot.rate_hz

    def act(self) -> NDArray[np.float64]:
        self._now = 0.9 * self._now + np.sqrt(1 - 0.81) * self._rng.normal(0, 0.6, len(self._now))
        row = self._middle + self._half * np.clip(self._now, -1, 1)
        gripper = self._robot.gripper
        if gripper:
            if not hasattr(self, "_grip") or self._rng.random() < self._change:
                self._grip = self._rng.choice([gripper.open_value, gripper.closed_value])
            row[gripper_columns(self._robot)] = self._grip
        return row


def _expert(env: RobotEnv, rng: np.random.Generator) -> _Driver:
    from cosmos_robot.envs.experts import PickPlaceExpert
    from cosmos_robot.envs.libero import LiberoEnv
    from cosmos_robot.envs.libero_demos import plan_of
    from cosmos_robot.envs.libero_scene import LiberoScene

    if not isinstance(env, LiberoEnv):
        raise InputError(
            f"driver 'expert' is LIBERO's; {type(env).__name__} has none. Drive with --driver random, or name a policy"
        )
    scene = LiberoScene(env)
    return _Noisy(PickPlaceExpert(scene, plan_of(scene)), rng)


class _Noisy:
    """An expert whose hand trembles; the noise stays for a few steps, as in the recorded demonstrations."""

    def __init__(self, expert: _Driver, rng: np.random.Generator):
        self._expert, self._rng, self._noise = expert, rng, np.zeros(6)

    def act(self) -> NDArray[np.float64]:
        clean = self._expert.act()
        fresh = self._rng.normal(0, NOISE, 6) * [1, 1, 1, 0.3, 0.3, 0.3]
        self._noise = 0.7 * self._noise + np.sqrt(1 - 0.49) * fresh
        return np.clip(clean + np.append(self._noise, 0), -1, 1)


class _PolicyDriver:
    """A policy, asked again after as many rows as its contract says."""

    def __init__(self, policy: Any, env: RobotEnv, rng: np.random.Generator):
        require_fit(policy.contract, env.robot)
        self._policy, self._env, self._rng, self._rows = policy, env, rng, []

    def act(self) -> NDArray[np.float64]:
        if not self._rows:
            chunk: ActionChunk = self._policy.act([self._env.observe()], [int(self._rng.integers(2**32))])[0]
            self._rows = list(chunk.values[: self._policy.contract.model.execute])
        return np.clip(self._rows.pop(0), *action_range(self._env.robot))


def drive_episode(env: RobotEnv, driver: _Driver, contract: Contract, name: str, most: int) -> Run:
    """One episode to its end, or to ``most`` steps."""
    stride = _common(frame_stride(contract), contract.model.chunk)
    cameras = sorted({place.camera for place in contract.model.canvas.placements})
    moments, pictures, states, commands = {}, {}, {}, []
    can_return = hasattr(env, "snapshot") and hasattr(env, "restore")
    success = ended = False
    observation = env.observe()
    while True:
        step = len(commands)
        if step % stride == 0:
            pictures[step] = {camera: observation.images[camera].copy() for camera in cameras}
            states[step] = observation.state
            if can_return:
                moments[step] = env.snapshot()
        if ended or step >= most:
            break
        row = driver.act()
        observation, _, terminated, truncated, info = env.step(row)
        commands.append(row)
        success, ended = bool(info["success"]), terminated or truncated

    def replay(start: int, rows: Rows) -> Seen:
        env.restore(moments[start])
        return _watch(env, rows, cameras, stride)

    seen, rows = Seen(pictures, states), np.array(commands).reshape(-1, env.robot.action_width)
    return Run(name, env.instruction, rows, seen, success, replay if can_return else None)


def _watch(env: RobotEnv, rows: Rows, cameras: Sequence[str], stride: int) -> Seen:
    """What is seen while ``rows`` are run from here; if the episode ends on the way, its last moment stays."""
    low, high = action_range(env.robot)
    pictures: dict[int, Mapping[str, Any]] = {}
    states: dict[int, Mapping[str, NDArray[np.float64]]] = {}
    observation = env.observe()
    for step in range(len(rows) + 1):
        if step % stride == 0:
            pictures[step] = {camera: observation.images[camera].copy() for camera in cameras}
            states[step] = observation.state
        if step < len(rows) and env.running:
            observation = env.step(np.clip(rows[step], low, high))[0]
    return Seen(pictures, states)
