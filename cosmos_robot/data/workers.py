"""Processes that demonstrate: each builds its own simulator, takes jobs one by one and stages what it recorded."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, Protocol

from cosmos_robot.contract import RobotSpec
from cosmos_robot.data.episodes import Episode, require_storable
from cosmos_robot.data.staging import Staging
from cosmos_robot.errors import CosmosRobotError, InputError, WorkerError

WORKER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "1", "MUJOCO_GL": "egl"}
"""Set for a worker where the caller's environment has no value: one thread each (numerics, software rendering)."""

Outcome = Literal["kept", "failed", "error", "crashed"]


@dataclass(frozen=True)
class Job:
    """One episode to demonstrate; subclass it to carry more, as long as it can be pickled.

    id: unique and stable, so that a resumed collection knows it. group: jobs of one group share a costly set-up (the
    task) and are done one after the other by one worker where possible. seed: what the scene is drawn from.
    """

    id: str
    group: str
    seed: int


class Demonstrator(Protocol):
    """What a worker process builds once and then asks for episodes."""

    def episode(self, job: Any) -> Episode | None:
        """Demonstrate ``job``; None where it did not succeed. Raise ``NotDemonstrated`` to say why it did not."""

    def close(self) -> None:
        """Free the simulator."""


class NotDemonstrated(CosmosRobotError):
    """Raised by a demonstrator whose attempt did not succeed; the message goes to the log. Not a defect."""


@dataclass(frozen=True)
class DemonstratorSpec:
    """How a worker builds its demonstrator: ``path`` is ``"module:attribute"``, called with ``kwargs``."""

    path: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.count(":") != 1:
            raise InputError(f"demonstrator: got {self.path!r}, expected 'module:attribute'")
        object.__setattr__(self, "kwargs", dict(self.kwargs))

    def make(self) -> Demonstrator:
        """Import and call. Raises whatever the import or the call raises."""
        module, attribute = self.path.split(":")
        return getattr(importlib.import_module(module), attribute)(**self.kwargs)


@dataclass(frozen=True)
class Result:
    """What became of one job. seconds: how long it took, from handing it out."""

    job: str
    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0


class WorkerPool:
    """``workers`` spawned processes on ``jobs``; iterate ``results()`` once, then close.

    A process that dies, hangs for ``job_seconds`` or whose demonstrator raises costs the job it was on. It is replaced,
    until one place has lost ``max_restarts`` + 1 processes without an episode between.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        demonstrator: DemonstratorSpec,
        robot: RobotSpec,
        staging: Path,
        workers: int,
        max_restarts: int = 3,
        job_seconds: float = 900.0,
    ):
        self._setup = (demonstrator, robot, staging)
        self._queue = _Queue(jobs)
        self._max_restarts = max_restarts
        self._job_seconds = job_seconds
        self._places = [_Place(number) for number in range(min(workers, len(jobs)))]
        self._last_words = ""

    def results(self) -> Iterator[Result]:
        """Results as they come, in any order. Raises WorkerError when no demonstrator can be built or kept alive."""
        for place in self._places:
            self._start(place)
        while active := [place for place in self._places if place.process]:
            ready = wait([place.connection for place in active], timeout=1.0)
            for place in active:
                if place.connection in ready:
                    yield from self._receive(place)
                elif place.job is not None and time.monotonic() - place.since > self._job_seconds:
                    place.process.kill()
        if len(self._queue):
            times = self._max_restarts + 1
            raise WorkerError(f"every worker was lost {times} times in a row; its last words:\n{self._last_words}")

    def close(self) -> None:
        """Stop all processes now; episodes they were on are lost."""
        for place in self._places:
            if place.process:
                place.process.terminate()
        for place in self._places:
            place.stop()

    def _start(self, place: _Place) -> None:
        context = multiprocessing.get_context("spawn")
        place.connection, theirs = context.Pipe()
        name = f"demonstrator-{place.number}"
        place.process = context.Process(target=_work, args=(theirs, *self._setup), name=name, daemon=True)
        with _environment(WORKER_ENVIRONMENT):
            place.process.start()
        theirs.close()

    def _receive(self, place: _Place) -> Iterator[Result]:
        outcome, reason = self._read(place)
        if outcome == "unbuilt":
            raise WorkerError(f"no demonstrator could be built from {self._setup[0].path}:\n{reason}")
        if place.job is not None:
            saved = outcome == "crashed" and place.job.id in Staging(self._setup[2])  # died after its file was complete
            seconds = time.monotonic() - place.since
            yield Result(place.job.id, "kept" if saved else outcome, "" if saved else reason, seconds)
            place.job = None
        if outcome in ("crashed", "error"):
            self._replace(place, reason)
        else:
            place.losses = place.losses if outcome == "ready" else 0
            self._give(place)

    def _read(self, place: _Place) -> tuple[str, str]:
        try:
            return place.connection.recv()
        except (EOFError, OSError):
            place.stop()
            late = place.job is not None and time.monotonic() - place.since > self._job_seconds
            why = f"no result within {self._job_seconds:.0f} s" if late else f"exit code {place.exitcode}"
            return "crashed", f"the process ended: {why}"

    def _give(self, place: _Place) -> None:
        place.job, place.group = self._queue.take(place.group, {p.group for p in self._places if p.process})
        place.since = time.monotonic()
        try:
            place.connection.send(place.job)
        except OSError:
            return  # it has just died; reading from it tells so
        if place.job is None:
            place.stop()

    def _replace(self, place: _Place, reason: str) -> None:
        place.stop()
        place.losses += 1
        self._last_words = reason
        if place.losses <= self._max_restarts and len(self._queue):
            self._start(place)


class _Place:
    """One seat of the pool: the process on it now and what it does."""

    def __init__(self, number: int):
        self.number = number
        self.process: Any = None
        self.connection: Any = None
        self.job: Job | None = None
        self.group: str | None = None
        self.since = 0.0
        self.losses = 0
        self.exitcode: int | None = None

    def stop(self) -> None:
        if self.process:
            self.connection.close()
            self.process.join(10)
            if self.process.exitcode is None:
                self.process.kill()
                self.process.join()
            self.exitcode = self.process.exitcode
            self.process = None


class _Queue:
    """Jobs by group, so that a worker stays with its group and two share one only when nothing else is left."""

    def __init__(self, jobs: Sequence[Job]):
        self._groups: dict[str, deque[Job]] = {}
        for job in jobs:
            self._groups.setdefault(job.group, deque()).append(job)

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def take(self, group: str | None, busy: set[str | None]) -> tuple[Job | None, str | None]:
        """The next job for a worker that is set up for ``group``, while others are on ``busy``; None when done."""
        if not self._groups.get(group):
            left = {name: len(jobs) for name, jobs in self._groups.items() if jobs}
            if not left:
                return None, None
            free = {name: count for name, count in left.items() if name not in busy}
            group = max(free or left, key=left.__getitem__)
        return self._groups[group].popleft(), group


def _work(connection: Connection, spec: DemonstratorSpec, robot: RobotSpec, folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    staging = Staging(folder)
    try:
        demonstrator = spec.make()
    except Exception:  # noqa: BLE001 - whatever it is, the parent raises it
        connection.send(("unbuilt", traceback.format_exc()))
        return
    try:
        connection.send(("ready", ""))
        while (job := connection.recv()) is not None:
            connection.send(_demonstrate(demonstrator, job, robot, staging))
    except (EOFError, BrokenPipeError):
        pass  # the parent is gone
    finally:
        demonstrator.close()


def _demonstrate(demonstrator: Demonstrator, job: Job, robot: RobotSpec, staging: Staging) -> tuple[Outcome, str]:
    try:
        episode = demonstrator.episode(job)
        if episode is None:
            return "failed", "the demonstrator returned no episode"
        require_storable(episode, robot)
        staging.save(job.id, episode)
    except NotDemonstrated as reason:
        return "failed", str(reason)
    except Exception:  # noqa: BLE001 - whatever it is, the parent logs it
        return "error", traceback.format_exc()
    return "kept", ""


@contextmanager
def _environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Set what is unset while a process is spawned: libraries read these when they are first imported there."""
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
