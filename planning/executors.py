"""Where candidates are worked out: in this process, or by workers that may be late, fail or die.

An executor answers a task with one candidate for each of its seeds, whatever happens: what could not be had is there
with the reason, under its own seed. Nothing waits longer than the caller's time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from cosmos_robot.errors import DependencyError, InputError, UnknownNameError, WorkerError
from cosmos_robot.planning.evaluate import Evaluator
from cosmos_robot.planning.plan import Candidate, Task
from cosmos_robot.types import Observation

Clock = Callable[[], float]


class Executor(ABC):
    """Answers tasks."""

    @abstractmethod
    def run(self, task: Task, until: float | None, clock: Clock) -> list[Candidate]:
        """The candidates of ``task`` in its order. until: on ``clock``, when the answer has to be there; None is never.
        ``task.seconds_left`` is set here and need not be given."""

    def run_all(self, tasks: Sequence[Task], until: float | None, clock: Clock) -> list[list[Candidate]]:
        """``run`` for several decisions that are due at the same time."""
        return [self.run(task, until, clock) for task in tasks]

    def close(self) -> None:  # noqa: B027  nothing to end in process
        """End the workers, if any."""

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InProcess(Executor):
    """All candidates in one batch, or in batches of ``batch`` one after the other, so that the first are there when
    time runs out. A batch that would probably not be done in time, by how long the last one took, is not begun."""

    def __init__(self, evaluator: Evaluator, batch: int | None = None):
        self.evaluator = evaluator
        self._batch = batch

    def run(self, task: Task, until: float | None, clock: Clock) -> list[Candidate]:
        found: list[Candidate] = []
        longest = 0.0
        for piece in task.pieces(self._batch or len(task.seeds)):
            began = clock()
            left = None if until is None else until - began
            if left is not None and left <= longest:
                found += piece.lost("not begun: the deadline")
                continue
            known = (*task.known, *(c for c in found if c.chunk is not None))
            found += self.evaluator.evaluate(replace(piece, seconds_left=left, known=known))
            longest = max(longest, clock() - began)
        return found

    def run_all(self, tasks: Sequence[Task], until: float | None, clock: Clock) -> list[list[Candidate]]:
        """As ``run``; all candidates of all of them in one batch, unless batches are limited."""
        if self._batch is not None:
            return super().run_all(tasks, until, clock)
        left = None if until is None else until - clock()
        if left is not None and left <= 0:
            return [task.lost("not begun: the deadline") for task in tasks]
        return self.evaluator.evaluate_all([replace(task, seconds_left=left) for task in tasks])


class Worker(ABC):
    """Somebody who answers one task at a time, elsewhere."""

    name: str

    @abstractmethod
    def submit(self, task: Task) -> Future[list[Candidate]]:
        """Begin. The future ends with the candidates, or with WorkerError if the worker is lost."""

    def close(self) -> None:  # noqa: B027  not every worker has something to end
        """End it; nothing is awaited."""


class ThreadWorker(Worker):
    """An evaluator in a thread of this process, such as one with its models on a device of its own."""

    def __init__(self, evaluator: Evaluator, name: str = "thread"):
        self.name = name
        self._evaluator = evaluator
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, task: Task) -> Future[list[Candidate]]:
        return self._thread.submit(self._evaluator.evaluate, task)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class Spread(Executor):
    """Candidates over several workers: whoever is free takes the next ``batch`` of them.

    A worker that fails, dies or is late costs the candidates it held, and no others. One that is lost is tried again
    with the next task. One that is late is given nothing until it is done; what it then brings belongs to an older
    task and is dropped. patience_s bounds a run without a deadline.
    """

    def __init__(self, workers: Sequence[Worker], batch: int = 1, patience_s: float = 60.0):
        if not workers or batch < 1 or not patience_s > 0:
            raise InputError(
                f"spread: expected workers, batch >= 1 and patience_s > 0, got {workers, batch, patience_s}"
            )
        self.workers = tuple(workers)
        self._batch, self._patience_s = batch, patience_s
        self._busy: dict[Worker, Future[list[Candidate]]] = {}

    def run(self, task: Task, until: float | None, clock: Clock) -> list[Candidate]:
        end = min(math.inf if until is None else until, clock() + self._patience_s)
        answers: dict[int, Candidate] = {}
        waiting = deque(task.pieces(self._batch))
        held: dict[Future[list[Candidate]], tuple[Worker, Task]] = {}
        lost: set[Worker] = set()
        while waiting or held:
            self._hand_out(waiting, held, lost, answers, end - clock())
            running = [f for w, f in self._busy.items() if w not in lost]
            left = end - clock()
            if not running or left <= 0:
                break
            done, _ = wait(running, left, FIRST_COMPLETED)
            if not done:
                break
            self._collect(done, held, lost, answers)
        for piece in waiting:
            _note(answers, piece.lost("not begun: no worker was free in time"))
        for worker, piece in held.values():
            _note(answers, piece.lost(f"{worker.name} is late"))
        return [answers[i] for i in task.indices]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def _hand_out(
        self,
        waiting: deque[Task],
        held: dict[Future[list[Candidate]], tuple[Worker, Task]],
        lost: set[Worker],
        answers: dict[int, Candidate],
        left: float,
    ) -> None:
        for worker in self.workers:
            if not waiting or left <= 0:
                return
            if worker in self._busy or worker in lost:
                continue
            piece = replace(waiting.popleft(), seconds_left=None if left == math.inf else left)
            try:
                future = worker.submit(piece)
            except WorkerError as error:
                lost.add(worker)
                _note(answers, piece.lost(f"{worker.name} is lost: {error}"))
                continue
            self._busy[worker] = future
            held[future] = (worker, piece)

    def _collect(
        self,
        done: set[Future[list[Candidate]]],
        held: dict[Future[list[Candidate]], tuple[Worker, Task]],
        lost: set[Worker],
        answers: dict[int, Candidate],
    ) -> None:
        for worker in [w for w, f in self._busy.items() if f in done]:
            future = self._busy.pop(worker)
            if future not in held:
                continue  # an answer to an older task
            _, piece = held.pop(future)
            error = future.exception()
            if error is None:
                _note(answers, _fitting(future.result(), piece, worker))
            elif isinstance(error, WorkerError):
                lost.add(worker)
                _note(answers, piece.lost(f"{worker.name} is lost: {error}"))
            elif isinstance(error, Exception):
                _note(answers, piece.lost(f"{worker.name} failed: {type(error).__name__}: {error}"))
            else:
                raise error


def _note(answers: dict[int, Candidate], found: Sequence[Candidate]) -> None:
    answers.update((c.index, c) for c in found)


def _fitting(found: Sequence[Candidate], piece: Task, worker: Worker) -> list[Candidate]:
    """``found`` if it answers ``piece``: its request, indices and seeds; else the piece's candidates, as lost."""
    expected = [(piece.request, i, s) for i, s in zip(piece.indices, piece.seeds, strict=True)]
    if [(c.request, c.index, c.seed) for c in found] != expected:
        return piece.lost(f"{worker.name} answered something else")
    return list(found)


class RayWorker(Worker):
    """An actor on a Ray cluster, with models of its own that ``make`` loads there.

    make: a function that can be pickled, to an ``Evaluator``. options: of the actor, such as ``num_gpus``. A dead one
    is started again by Ray, up to ``restarts`` times.
    """

    def __init__(self, make: Callable[[], Evaluator], name: str = "ray", restarts: int = 3, **options: Any):
        """Raises DependencyError without Ray; ``ray.init`` is the caller's."""
        self.name = name
        self._ray = _ray()
        actor = self._ray.remote(_Seat)
        self._seat = actor.options(max_restarts=restarts, max_task_retries=0, **options).remote(make)

    def submit(self, task: Task) -> Future[list[Candidate]]:
        answer: Future[list[Candidate]] = Future()
        asked = self._seat.evaluate.remote(_packed(task)).future()
        asked.add_done_callback(lambda done: self._pass_on(done, answer))
        return answer

    def close(self) -> None:
        self._ray.kill(self._seat)

    def _pass_on(self, done: Future[Any], answer: Future[list[Candidate]]) -> None:
        error = done.exception()
        if error is None:
            answer.set_result(done.result())
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            answer.set_exception(error.cause)
        else:
            answer.set_exception(WorkerError(str(error).strip().split("\n")[-1]))


class RayExecutor(Spread):
    """``Spread`` over ``count`` Ray actors. Raises as ``RayWorker``."""

    def __init__(
        self,
        make: Callable[[], Evaluator],
        count: int,
        batch: int = 1,
        patience_s: float = 60.0,
        **options: Any,
    ):
        workers = [RayWorker(make, f"ray worker {i}", **options) for i in range(count)]
        super().__init__(workers, batch, patience_s)


EXECUTORS = ("in-process", "threads", "ray")


def made(name: str, evaluator: Evaluator, make: Callable[[], Evaluator]) -> Executor:
    """An executor by name: ``in-process``, ``threads:COUNT`` or ``ray:COUNT`` (2 where no count is given).

    evaluator: models of this process, which threads share. make: makes them again in each Ray actor; a function that
    can be pickled. A Ray cluster is joined where RAY_ADDRESS names one, and started on this machine otherwise. Raises
    UnknownNameError, InputError for the count, and DependencyError without Ray.
    """
    kind, _, count = name.partition(":")
    if kind not in EXECUTORS:
        raise UnknownNameError("executor", kind, EXECUTORS)
    if count and (kind == "in-process" or not count.isdecimal() or int(count) < 1):
        raise InputError(f"executor: expected in-process, threads:COUNT or ray:COUNT, got {name!r}")
    batch, workers = evaluator.settings.batch, int(count or 2)
    if kind == "in-process":
        return InProcess(evaluator, batch)
    share = batch or -(-evaluator.settings.n // workers)
    if kind == "threads":
        return Spread([ThreadWorker(evaluator, f"thread {i}") for i in range(workers)], share)
    ray = _ray()
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    return RayExecutor(make, workers, share)


class _Seat:
    """The actor: models, made where it runs. Futures are not sent back; they hold what only their model understands."""

    def __init__(self, make: Callable[[], Evaluator]):
        self._evaluator = make()

    def evaluate(self, packed: dict[str, Any]) -> list[Candidate]:
        found = self._evaluator.evaluate(_unpacked(packed))
        return [replace(c, futures=()) for c in found]


def _packed(task: Task) -> dict[str, Any]:
    """``task`` as what pickle takes: pictures drawn, mappings plain."""
    seen = task.observation
    plain = {"images": dict(seen.images), "state": dict(seen.state)}
    rest = {name: getattr(seen, name) for name in ("instruction", "time", "history")}
    known = tuple(replace(c, futures=()) for c in task.known)
    return {"task": {**vars(task), "observation": None, "known": known}, "observation": plain | rest}


def _unpacked(packed: dict[str, Any]) -> Task:
    return Task(**packed["task"] | {"observation": Observation(**packed["observation"])})


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise DependencyError(
            "planning over several machines needs ray: pip install 'cosmos-robot[ray]', or use InProcess"
        ) from error
    return ray
