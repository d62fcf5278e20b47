"""Many simulators, one policy: whoever waits for a decision is answered, in one batch, while the others simulate."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import require_fit
from cosmos_robot.envs import speaking
from cosmos_robot.envs.base import StepResult
from cosmos_robot.envs.remote import Film as FilmRequest
from cosmos_robot.envs.remote import RemoteEnv
from cosmos_robot.errors import InputError, RobotError, WorkerError
from cosmos_robot.eval.films import Film, side_by_side
from cosmos_robot.eval.protocol import Job, derive_seed
from cosmos_robot.eval.results import EpisodeError, EpisodeRecord
from cosmos_robot.types import ActionChunk, Observation

if TYPE_CHECKING:
    from cosmos_robot.policies.base import Policy

DEATHS_IN_A_ROW = 6
"""Workers that may die, one after the other and with no episode finished between, before the run is given up."""


class Listener:
    """Hears of every episode as it runs; does nothing unless told. An episode may start twice, if its worker died."""

    def on_start(self, job: Job) -> None:
        """An episode begins."""

    def on_decision(self, job: Job, step: int, observation: Observation, chunk: ActionChunk, seed: int) -> None:
        """The policy answered ``observation``, made after ``step`` control steps, with ``chunk``."""

    def on_executed(self, job: Job, rows: NDArray[np.float64], result: StepResult) -> None:
        """The environment has run the first ``result.steps`` of ``rows``."""

    def on_episode(self, job: Job, record: EpisodeRecord) -> None:
        """An episode has ended."""

    def on_error(self, job: Job, error: EpisodeError) -> None:
        """An episode was given up: its worker died twice."""


@dataclass(frozen=True)
class Filming:
    """Films of every episode, in ``folder``: the cameras side by side, every ``every``-th control step."""

    folder: Path
    cameras: tuple[str, ...]
    every: int = 2

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"video-every: expected at least 1 control step per frame, got {self.every}")
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"videos: {self.folder} is a file; name a folder")

    def path(self, job: Job) -> Path:
        return self.folder / f"{job.suite}_task{job.task:02d}_init{job.init:03d}.mp4"


@dataclass(frozen=True)
class RunSettings:
    """How to run, none of which changes an outcome.

    cameras: those drawn at every decision beside the policy's own, for whoever listens. rows: those drawn at every
    control step, for ``StepResult.rows``; none by default, since each costs a picture.
    open_seconds, reply_seconds: a worker silent for longer, while it builds an environment or otherwise, is taken for
    dead. variables, factory and python go to ``RemoteEnv``.
    """

    workers: int = 3
    filming: Filming | None = None
    cameras: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    open_seconds: float = 600.0
    reply_seconds: float = 600.0
    variables: Mapping[str, str] = field(default_factory=dict)
    factory: str = "cosmos_robot.envs:make"
    python: str | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"workers: expected at least 1, got {self.workers}")


class JobQueue:
    """Episodes by task: a worker keeps its task while there is work, then takes the one most in need of help."""

    def __init__(self, jobs: Iterable[Job]):
        self._by_task: dict[str, deque[Job]] = {}
        for job in jobs:
            self._by_task.setdefault(job.env_name, deque()).append(job)

    def take(self, current: str | None, held: Iterable[str]) -> Job | None:
        """The next job for a worker that has ``current`` open, others holding ``held``; None when all are given out."""
        open_tasks = {name: jobs for name, jobs in self._by_task.items() if jobs}
        if not open_tasks:
            return None
        held = set(held)
        name = max(open_tasks, key=lambda n: (n == current, n not in held, len(open_tasks[n])))
        return open_tasks[name].popleft()

    def put_back(self, job: Job) -> None:
        """Return a job to the head of its task."""
        self._by_task[job.env_name].appendleft(job)


@dataclass
class _Seat:
    """One worker and the episode in it. asked: what its worker is doing; None when it waits for us."""

    env: RemoteEnv | None = None
    job: Job | None = None
    asked: Literal["open", "reset", "execute"] | None = None
    deadline: float = 0.0
    began: float = 0.0
    observation: Observation | None = None
    steps: int = 0
    seeds: list[int] = field(default_factory=list)
    score: float = 0.0
    best: float = 0.0
    rows: NDArray[np.float64] | None = None
    film: Film | None = None


class Rules(Protocol):
    """What of ``EpisodeRules`` a runner asks for."""

    execute: int
    seed: int
    one_at_a_time: bool
    rate_hz: float

    @property
    def budget(self) -> int: ...

    @property
    def env_options(self) -> dict[str, Any]: ...


class Runner:
    """Runs episodes under one set of rules with one policy. Any error but a worker's death ends the run."""

    def __init__(self, policy: Policy, rules: Rules, settings: RunSettings, listeners: Sequence[Listener] = ()):
        chunk = policy.contract.model.chunk
        if rules.execute > chunk:
            raise InputError(f"execute={rules.execute} rows per decision, but the policy's chunk has {chunk}")
        self._policy, self._rules, self._settings = policy, rules, settings
        self._listeners = listeners
        self._cameras = tuple(dict.fromkeys((*policy.cameras, *settings.cameras)))

    def run(self, jobs: Sequence[Job]) -> list[EpisodeError]:
        """Run all ``jobs``; returns those whose worker died twice. Workers are closed whatever happens."""
        if self._settings.filming:
            self._settings.filming.folder.mkdir(parents=True, exist_ok=True)
        self._queue = JobQueue(jobs)
        fixed = [job for job in jobs if job.init_state is not None]
        self._last_init = {job.env_name: job.init for job in sorted(fixed, key=lambda job: job.init)}
        self._seats = [_Seat() for _ in range(min(self._settings.workers, len(jobs)))]
        self._repeated: set[Job] = set()
        self._errors: list[EpisodeError] = []
        self._deaths = 0
        try:
            for seat in self._seats:
                self._next_job(seat)
            while any(seat.asked for seat in self._seats):
                self._decide(self._collect())
        finally:
            for seat in self._seats:
                self._leave(seat)
        return self._errors

    def _collect(self) -> list[_Seat]:
        """Wait for answers and take them; returns the seats that now need a decision."""
        busy = {seat.env.connection: seat for seat in self._seats if seat.asked}
        patience = max(0.0, min(seat.deadline for seat in busy.values()) - time.monotonic())
        for connection in wait(list(busy), patience):
            self._answer(busy[connection])
        now = time.monotonic()
        for seat in busy.values():
            if seat.asked and seat.deadline < now and not seat.env.connection.poll():
                self._died(seat, WorkerError(f"no answer to {seat.asked!r} in {self._patience(seat.asked):g} s"))
        return [seat for seat in self._seats if seat.job and not seat.asked]

    def _answer(self, seat: _Seat) -> None:
        asked, seat.asked = seat.asked, None
        try:
            reply = seat.env.recv()
        except WorkerError as error:
            self._died(seat, error)
            return
        except RobotError as error:
            self._broke(seat, error)
            return
        if asked == "open":
            self._opened(seat)
            self._reset(seat)
        elif asked == "reset":
            self._started(seat, reply[0])
        else:
            self._executed(seat, reply)

    def _opened(self, seat: _Seat) -> None:
        """A seat has a new environment. Raises ContractError or InputError if it is not what the run needs."""
        require_fit(self._policy.contract, seat.env.robot)
        if seat.env.name in self._last_init:
            self._require_init_states(seat.env)

    def _broke(self, seat: _Seat, error: RobotError) -> None:
        """The simulation broke under the commands it was given; here that ends the run."""
        raise error

    def _require_init_states(self, env: RemoteEnv) -> None:
        last = self._last_init[env.name]
        if last >= env.init_state_count:
            raise InputError(
                f"{env.name} has {env.init_state_count} init states, numbered from 0; got {last}: "
                "ask for fewer episodes or a smaller offset"
            )

    def _decide(self, waiting: list[_Seat]) -> None:
        """Ask the policy for all who wait, in one batch, and send the rows on."""
        if self._rules.one_at_a_time and len(waiting) > 1:
            for seat in waiting:
                self._decide([seat])
            return
        if not waiting:
            return
        seeds = [derive_seed(self._rules.seed, seat.job, len(seat.seeds)) for seat in waiting]
        chunks = self._policy.act([seat.observation for seat in waiting], seeds)
        for seat, chunk, seed in zip(waiting, chunks, seeds, strict=True):
            seat.seeds.append(seed)
            for listener in self._listeners:
                listener.on_decision(seat.job, seat.steps, seat.observation, chunk, seed)
            left = self._rules.budget - seat.steps
            filming = self._settings.filming
            film = FilmRequest(filming.every, filming.cameras) if filming else None
            seat.rows = chunk.values[: min(self._rules.execute, left)]
            self._ask(seat, "execute", seat.rows, cameras=self._cameras, film=film, rows=self._settings.rows)

    def _started(self, seat: _Seat, observation: Observation) -> None:
        seat.observation, seat.steps, seat.seeds = observation, 0, []
        seat.score = seat.best = 0.0
        filming = self._settings.filming
        if filming:
            seat.film = Film(filming.path(seat.job), self._rules.rate_hz / filming.every)
            seat.film.add(side_by_side([observation.images[name] for name in filming.cameras]))
        for listener in self._listeners:
            listener.on_start(seat.job)

    def _executed(self, seat: _Seat, result: StepResult) -> None:
        seat.observation = result.observation
        seat.steps += result.steps
        seat.score, seat.best = result.score, max(seat.best, result.score)
        for listener in self._listeners:
            listener.on_executed(seat.job, seat.rows, result)
        if seat.film:
            for frames in zip(*(result.frames[name] for name in self._settings.filming.cameras), strict=True):
                seat.film.add(side_by_side(frames))
        if result.success:
            self._finish(seat, "success")
        elif seat.steps >= self._rules.budget:
            self._finish(seat, "budget")
        elif result.terminated or result.truncated:
            self._finish(seat, "env")

    def _finish(self, seat: _Seat, ended: Literal["success", "budget", "env"]) -> None:
        film = seat.film.close().name if seat.film else None
        seat.film = None
        record = EpisodeRecord(
            suite=seat.job.suite,
            task=seat.job.task,
            init=seat.job.init,
            instruction=seat.observation.instruction,
            success=ended == "success",
            ended=ended,
            steps=seat.steps,
            decisions=len(seat.seeds),
            reset_seed=seat.job.reset_seed(self._rules.seed),
            noise_seeds=tuple(seat.seeds),
            seconds=round(time.monotonic() - seat.began, 2),
            film=film,
            score=round(seat.score, 4),
            best_score=round(seat.best, 4),
        )
        for listener in self._listeners:
            listener.on_episode(seat.job, record)
        self._deaths = 0
        self._next_job(seat)

    def _next_job(self, seat: _Seat) -> None:
        """Give the seat its next episode, or send its worker home."""
        current = seat.env.name if seat.env else None
        seat.job = None
        held = [other.job.env_name for other in self._seats if other.job]
        seat.job = self._queue.take(current, held)
        if seat.job is None:
            self._leave(seat)
            return
        if seat.env is None:
            s = self._settings
            seat.env = RemoteEnv(variables=s.variables, factory=s.factory, python=s.python)
        if current == seat.job.env_name:
            self._reset(seat)
        else:
            name = seat.job.env_name
            self._ask(seat, "open", name, **self._rules.env_options, **speaking(name, self._policy.contract.robot.name))

    def _reset(self, seat: _Seat) -> None:
        seat.began = time.monotonic()
        filming = self._settings.filming
        self._ask(
            seat,
            "reset",
            seed=seat.job.reset_seed(self._rules.seed),
            options={} if seat.job.init_state is None else {"init_state": seat.job.init_state},
            cameras=tuple(dict.fromkeys(self._cameras + (filming.cameras if filming else ()))),
        )

    def _ask(self, seat: _Seat, method: Literal["open", "reset", "execute"], *args, **kwargs) -> None:
        seat.deadline = time.monotonic() + self._patience(method)
        try:
            seat.env.send(method, *args, **kwargs)
        except WorkerError as error:
            self._died(seat, error)
            return
        seat.asked = method

    def _patience(self, method: str) -> float:
        return self._settings.open_seconds if method == "open" else self._settings.reply_seconds

    def _died(self, seat: _Seat, error: WorkerError) -> None:
        """Repeat the episode once with a new worker; after a second death report it."""
        job = seat.job
        self._leave(seat)
        self._deaths += 1
        if self._deaths >= DEATHS_IN_A_ROW:
            raise WorkerError(f"{self._deaths} workers died in a row without finishing an episode; the last: {error}")
        if job in self._repeated:
            self._give_up(job, error)
        else:
            self._repeated.add(job)
            self._queue.put_back(job)
        self._next_job(seat)

    def _give_up(self, job: Job, error: Exception) -> None:
        failure = EpisodeError(suite=job.suite, task=job.task, init=job.init, message=str(error))
        self._errors.append(failure)
        for listener in self._listeners:
            listener.on_error(job, failure)

    def _leave(self, seat: _Seat) -> None:
        if seat.film:
            seat.film.discard()
        if seat.env:
            seat.env.close()
        seat.env, seat.job, seat.asked, seat.film = None, None, None, None
