"""Rollouts: a policy drives many simulators, and what it did and what came of it is kept, failures included.

Episodes wait, as they end, in ``<out>.staging/``; a run that is killed goes on with those that are missing. Pictures
are drawn when a decision is made and when the episode ends, and at no other step.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from cosmos_robot import envs
from cosmos_robot.actions.codec import state_vector
from cosmos_robot.contract import Contract, RobotSpec
from cosmos_robot.data.collect import publish, require_same, staging_folder
from cosmos_robot.data.episodes import EpisodeInfo, require_storable
from cosmos_robot.data.lerobot_writing import require_absent
from cosmos_robot.data.rollouts import Rollout, rows_per_second
from cosmos_robot.data.staging import Staging
from cosmos_robot.envs.base import StepResult, StepRows, check_rows
from cosmos_robot.errors import InputError, Interrupted, RobotError, UnknownNameError, WorkerError
from cosmos_robot.eval.entrants import Entrant
from cosmos_robot.eval.exploration import NoisyPolicy
from cosmos_robot.eval.progress import RunProgress
from cosmos_robot.eval.protocol import Job, current_versions
from cosmos_robot.eval.results import EpisodeError, EpisodeRecord
from cosmos_robot.eval.runner import Listener, Runner, RunSettings
from cosmos_robot.ownership import owned
from cosmos_robot.types import ActionChunk, Observation

STARTS = "cosmos_robot.envs.training_starts:make"
"""How simulators are made: so that they never begin in an official initial state."""
NO_LIMIT = 10**9


@dataclass(frozen=True)
class RolloutJob(Job):
    """One episode to collect: the environment ``name`` from the beginning that seed ``init`` draws."""

    name: str = ""

    @property
    def env_name(self) -> str:
        return self.name

    @property
    def label(self) -> str:
        return f"{self.name} seed {self.init}"

    @property
    def init_state(self) -> None:
        return None

    def reset_seed(self, seed: int) -> int:
        return self.init

    @property
    def id(self) -> str:
        """Its name in the staging folder."""
        return f"{self.name}-{self.init}"


@dataclass(frozen=True)
class RolloutRules:
    """What holds for every episode.

    execute: rows run per decision. seed: from which the seed of every decision is derived; beginnings have their own.
    max_steps: control steps after which an episode ends; the environment's own budget if None. noise: as for
    ``NoisyPolicy``, 0 for none. one_at_a_time: as for ``EpisodeRules``. rate_hz: of the robot.
    """

    execute: int
    rate_hz: float
    seed: int = 0
    max_steps: int | None = None
    noise: float = 0.0
    one_at_a_time: bool = False

    def __post_init__(self) -> None:
        for name, value, least in (("execute", self.execute, 1), ("seed", self.seed, 0)):
            if value < least:
                raise InputError(f"{name}: expected at least {least}, got {value}")
        if self.max_steps is not None and self.max_steps < 1:
            raise InputError(f"max_steps: expected at least 1 control step, got {self.max_steps}")

    @property
    def budget(self) -> int:
        return NO_LIMIT if self.max_steps is None else self.max_steps

    @property
    def env_options(self) -> dict[str, Any]:
        return {} if self.max_steps is None else {"step_budget": self.max_steps}


def rollout_jobs(names: Sequence[str], episodes: int, first_seed: int) -> list[RolloutJob]:
    """``episodes`` of each environment, beginning where the seeds from ``first_seed`` on have it.

    Raises UnknownNameError with the nearest names, InputError for no environment, no episode or a negative seed.
    """
    if not names:
        raise InputError("collect: name at least one environment, for instance libero_object/0")
    if episodes < 1 or first_seed < 0 or first_seed + episodes > 2**32:
        raise InputError(f"collect: expected episodes >= 1 and first_seed >= 0, got {episodes} and {first_seed}")
    seeds = range(first_seed, first_seed + episodes)
    return [RolloutJob(*_place(name), seed, name) for name in dict.fromkeys(names) for seed in seeds]


def _place(name: str) -> tuple[str, int]:
    """The suite of an environment, and its number there."""
    known = envs.known(name)
    if name not in known:
        raise UnknownNameError("environment", name, known)
    suite = name.rsplit("/", 1)[0]
    return suite, [other for other in known if other.rsplit("/", 1)[0] == suite].index(name)


@dataclass
class _Course:
    """An episode under way: what was seen at each decision, what was executed after it, how it stands."""

    seen: list[tuple[dict[str, NDArray[np.uint8]], NDArray[np.float64]]] = field(default_factory=list)
    rows: list[NDArray[np.float64]] = field(default_factory=list)
    last: StepResult | None = None


class Recorder(Listener):
    """Makes a ``Rollout`` of every episode that ends, and hands it to ``save``."""

    def __init__(self, robot: RobotSpec, policy: str, execute: int, save: Callable[[RolloutJob, Rollout], None]):
        self._robot, self._policy, self._execute, self._save = robot, policy, execute, save
        self._courses: dict[Job, _Course] = {}

    def on_start(self, job: Job) -> None:
        self._courses[job] = _Course()

    def on_decision(self, job: Job, step: int, observation: Observation, chunk: ActionChunk, seed: int) -> None:
        self._courses[job].seen.append(self._look(observation))

    def on_executed(self, job: Job, rows: NDArray[np.float64], result: StepResult) -> None:
        course = self._courses[job]
        course.rows.append(check_rows(rows, self._robot)[: result.steps])
        course.last = result

    def on_episode(self, job: Job, record: EpisodeRecord) -> None:
        self._save(job, self._rollout(job, record, self._courses.pop(job)))

    def on_error(self, job: Job, error: EpisodeError) -> None:
        self._courses.pop(job, None)

    def _look(self, observation: Observation) -> tuple[dict[str, NDArray[np.uint8]], NDArray[np.float64]]:
        images = {camera.name: observation.images[camera.name] for camera in self._robot.cameras}
        return images, state_vector(self._robot, observation.state)

    def _rollout(self, job: Job, record: EpisodeRecord, course: _Course) -> Rollout:
        pictures, states = zip(*course.seen, self._look(course.last.observation), strict=True)
        filled = [rows[np.minimum(np.arange(self._execute), len(rows) - 1)] for rows in course.rows]
        valid = [np.arange(self._execute) < len(rows) for rows in course.rows]
        return Rollout(
            instruction=record.instruction,
            images={name: np.stack([p[name] for p in pictures]) for name in pictures[0]},
            state=np.stack(states),
            actions=np.stack(filled),
            valid=np.stack(valid),
            success=record.success,
            score=course.last.score,
            suite=job.suite,
            task=job.task,
            seed=record.reset_seed,
            policy=self._policy,
            noise_seeds=record.noise_seeds,
        )


class StepWriter(Listener):
    """Keeps every control step of every episode, as JPEG, and writes it to ``folder`` when it ends, as Cosmos Policy's
    own files."""

    def __init__(self, robot: RobotSpec, policy: str, folder: Path):
        self._robot, self._policy, self._folder = robot, policy, folder
        self._steps: dict[Job, list[tuple[NDArray[np.float64], StepResult, dict[str, list[bytes]]]]] = {}

    def path(self, job: RolloutJob) -> Path:
        return self._folder / f"{job.id.replace('/', '-')}.hdf5"

    def on_start(self, job: Job) -> None:
        self._steps[job] = []

    def on_executed(self, job: Job, rows: NDArray[np.float64], result: StepResult) -> None:
        from cosmos_robot.data.hdf5_writing import as_jpeg

        packed = {name: [as_jpeg(picture) for picture in seen] for name, seen in result.rows.pictures.items()}
        result = replace(result, rows=StepRows(result.rows.states, {}))  # the pictures are kept packed
        self._steps[job].append((check_rows(rows, self._robot)[: result.steps], result, packed))

    def on_episode(self, job: Job, record: EpisodeRecord) -> None:
        from cosmos_robot.data.hdf5_writing import StepRecord, write_hdf5

        commands, results, packed = zip(*self._steps.pop(job), strict=True)
        steps = StepRecord(
            instruction=record.instruction,
            pictures={name: [file for part in packed for file in part[name]] for name in packed[0]},
            states=np.concatenate([result.rows.states for result in results]),
            actions=np.concatenate(commands),
            success=record.success,
            score=results[-1].score,
            seed=record.reset_seed,
            policy=self._policy,
        )
        write_hdf5(steps, self.path(job), self._robot)

    def on_error(self, job: Job, error: EpisodeError) -> None:
        self._steps.pop(job, None)


class RolloutRunner(Runner):
    """A runner for which a simulation that breaks costs its episode and no more."""

    def _opened(self, seat) -> None:
        super()._opened(seat)
        if seat.env.step_budget is None and self._rules.budget == NO_LIMIT:
            raise InputError(f"{seat.env.name} has no step budget of its own; give one with --max-steps")

    def _broke(self, seat, error: RobotError) -> None:
        self._give_up(seat.job, error)
        self._next_job(seat)


@dataclass(frozen=True)
class Collected:
    """What a collection of rollouts holds: one info per episode, and those that were lost with the reason."""

    out: Path
    infos: tuple[EpisodeInfo, ...]
    lost: tuple[EpisodeError, ...]


def collect_rollouts(
    entrant: Entrant,
    jobs: Sequence[RolloutJob],
    rules: RolloutRules,
    out: Path,
    *,
    hdf5: Path | None = None,
    workers: int = 3,
    factory: str = STARTS,
    variables: dict[str, str] | None = None,
    python: str | None = None,
    console: Console | None = None,
) -> Collected:
    """Run ``jobs`` and write the rollouts as a LeRobot v3 dataset to ``out``, a contact sheet to ``<out>.png``.

    hdf5: folder for the episodes as Cosmos Policy's files too, which show every control step and cost its pictures.
    workers: simulator processes; the policy answers in this one. factory, variables, python: as for ``RemoteEnv``.
    Raises CheckpointError at once if ``out`` is there already, InputError if its staging folder belongs to another
    collection, Interrupted on Ctrl-C and WorkerError where workers cannot be kept alive; the same call then goes on.
    """
    require_absent(out)
    contract, console = entrant.policy.contract, console or Console(stderr=True)
    policy = NoisyPolicy(entrant.policy, rules.noise) if rules.noise else entrant.policy
    folder, about = staging_folder(out), _origin(entrant, rules, contract)
    with owned(folder, f"collecting into {folder}"):
        require_same(folder, {"driver": about, "hdf5": str(hdf5), "robot": contract.robot.model_dump(mode="json")})
        staging = Staging(folder)
        staging.clean()
        cameras = tuple(camera.name for camera in contract.robot.cameras)
        rows = cameras if hdf5 else ()
        process = {"factory": factory, "variables": variables or {}, "python": python}
        settings = RunSettings(workers, cameras=cameras, rows=rows, **process)
        # Its file first, then the staged episode: what is staged is whole.
        listeners: list[Listener] = [StepWriter(contract.robot, entrant.label, hdf5)] if hdf5 else []

        def save(job: RolloutJob, rollout: Rollout) -> None:
            episode = rollout.episode()
            require_storable(episode, contract.robot)
            staging.save(job.id, episode)

        listeners.append(Recorder(contract.robot, entrant.label, rules.execute, save))
        lost = _run(policy, rules, settings, jobs, staging, listeners, console)
        kept = [job.id for job in jobs if job.id in staging]
        if not kept:
            raise WorkerError(f"not one of {len(jobs)} episodes could be run; the first: {lost[0].message}")
        infos = tuple(staging.info(key) for key in kept)
        notes = {**about, "versions": current_versions().model_dump(), "lost": [e.model_dump() for e in lost]}
        publish(
            out,
            kept,
            contract.robot,
            stride=rules.execute,
            fps=rows_per_second(contract.robot, rules.execute),
            notes=notes,
            progress=console.is_terminal,
        )
    shutil.rmtree(folder)
    return Collected(out, infos, tuple(lost))


def _run(
    policy,
    rules: RolloutRules,
    settings: RunSettings,
    jobs: Sequence[RolloutJob],
    staging: Staging,
    listeners: Sequence[Listener],
    console: Console,
) -> list[EpisodeError]:
    """Run what is left of ``jobs``; returns the episodes that were lost."""
    done = [staging.info(job.id) for job in jobs if job.id in staging]
    todo = [job for job in jobs if job.id not in staging]
    if done:
        console.print(f"{len(done)} of {len(jobs)} episodes taken from {staging.folder}", soft_wrap=True)
    try:
        with RunProgress("rollouts", len(jobs), done, console) as progress:
            return RolloutRunner(policy, rules, settings, [*listeners, progress]).run(todo)
    except KeyboardInterrupt as stop:
        raise Interrupted(f"stopped; {_safe(jobs, staging)}") from stop
    except WorkerError as error:
        raise WorkerError(f"{error}\n{_safe(jobs, staging)}") from error


def _safe(jobs: Sequence[RolloutJob], staging: Staging) -> str:
    kept = sum(job.id in staging for job in jobs)
    return f"{kept} of {len(jobs)} episodes are safe in {staging.folder}; run the same command again to go on"


def _origin(entrant: Entrant, rules: RolloutRules, contract: Contract) -> dict[str, Any]:
    """What makes rollouts of one kind: an interrupted collection goes on only under the same."""
    return {
        "policy": entrant.policy_name,
        "checkpoint": entrant.checkpoint,
        "checkpoint_sha256": entrant.checkpoint_sha256,
        "contract": contract.model.name,
        "plan": entrant.plan,
        "execute": rules.execute,
        "max_steps": rules.max_steps,
        "noise": rules.noise,
        "seed": rules.seed,
    }
