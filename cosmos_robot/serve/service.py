"""A policy behind a queue: many sessions, one model, no network.

Every protocol (our own over ZMQ, openpi's websocket, GR00T's) is a thin translation over one ``Service``. Questions
wait in one line per session and are taken in turn, so nobody starves; those that can be answered together go through
the model as one batch; those whose deadline has passed or that were cancelled never reach it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import Contract
from cosmos_robot.errors import CosmosRobotError, InputError
from cosmos_robot.serve.messages import ChunkReply, Failure, Imagine, Infer, Plan, Reply, VideoReply
from cosmos_robot.serve.statistics import Ledger
from cosmos_robot.types import ActionChunk, Observation

LOG = logging.getLogger(__name__)
Question = Infer | Plan | Imagine


class Acting(Protocol):
    """What answers ``Infer``: a policy."""

    @property
    def contract(self) -> Contract:
        """What it was trained for."""
        ...

    def act(self, observations: Any, seeds: Any, committed: Any = None) -> list[ActionChunk]:
        """One chunk for each observation."""
        ...


@dataclass(frozen=True)
class Models:
    """What a service can do. plan and imagine: None where there is no planner or world model."""

    policy: Acting
    plan: Callable[[Observation, int, float | None], ActionChunk] | None = None
    imagine: Callable[[Observation, NDArray[np.float64], int], NDArray[np.uint8]] | None = None

    @property
    def verbs(self) -> tuple[str, ...]:
        """What may be asked, the questions that need no model included."""
        asked = [("infer", True), ("plan", self.plan is not None), ("imagine", self.imagine is not None)]
        return tuple(verb for verb, there in asked if there) + ("hello", "reset", "cancel", "health", "stats")


@dataclass(frozen=True)
class ServiceSettings:
    """batch: most questions in one batch. waiting: most in the queue, and per session; more are refused as busy."""

    batch: int = 8
    waiting: int = 64
    waiting_per_session: int = 16

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"service: {name} must be a whole number from 1, got {value!r}")


@dataclass(eq=False)
class _Waiting:
    id: str
    question: Question
    reply: Future[Reply]
    came: float

    def late(self, now: float) -> bool:
        return self.question.deadline_s is not None and now - self.came > self.question.deadline_s


@dataclass
class Service:
    """A model, its queue, and the thread that runs it. Replies are futures that never raise; they end in a ``Failure``.

    clock: monotonic seconds. Use as a context manager, or call ``start`` and ``close``.
    """

    models: Models
    settings: ServiceSettings = field(default_factory=ServiceSettings)
    clock: Callable[[], float] = time.monotonic
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self._lines: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        self._running: set[_Waiting] = set()
        self._changed = threading.Condition()
        self._pictures: Mapping[str, NDArray[np.uint8]] = {}
        self._state = "new"
        self._began = self.clock()
        self._thread = threading.Thread(target=self._work, name="inference", daemon=True)

    @property
    def contract(self) -> Contract:
        """Of the policy that is served."""
        return self.models.policy.contract

    def start(self, warm_up: bool = True) -> None:
        """Run the model once on an empty scene, so that the first client does not pay for it, and begin to answer.

        Raises what the model raises: a service that cannot answer does not start.
        """
        self._state = "warming up"
        if warm_up:
            self.models.policy.act([empty_scene(self.contract)], [0])
        self._state = "ready"
        self._thread.start()

    def submit(self, question: Question, id: str = "") -> Future[Reply]:
        """Queue a question; the future ends with its reply, or a ``Failure``."""
        waiting = _Waiting(id, question, Future(), self.clock())
        refusal = self._refusal(question)
        if refusal:
            self._answer(waiting, refusal)
            return waiting.reply
        self._pictures = question.observation.images
        with self._changed:
            line = self._lines.setdefault(question.session, deque())
            dropped = list(line) if getattr(question, "supersede", False) else []
            if dropped:
                line.clear()
            total = sum(map(len, self._lines.values()))
            full = total >= self.settings.waiting or len(line) >= self.settings.waiting_per_session
            if not full:
                line.append(waiting)
                self._changed.notify()
        for older in dropped:
            self._answer(older, Failure("cancelled", "a newer question of the same session took its place"))
        if full:
            self._answer(waiting, Failure("busy", f"{total} questions are waiting; ask again later"))
        return waiting.reply

    def reset(self, session: str) -> None:
        """Forget the session's waiting questions, and the answers to those that run."""
        self._drop(lambda w: w.question.session == session, "the session was reset")

    def cancel(self, id: str, session: str | None = None) -> None:
        """Forget the question with this id; nothing happens if it has been answered."""
        self._drop(lambda w: w.id == id and session in (None, w.question.session), "cancelled by the client")

    def health(self) -> dict[str, Any]:
        """State, load and age; never waits for the model."""
        with self._changed:
            waiting = sum(map(len, self._lines.values()))
            return {
                "state": self._state,
                "model": self.contract.model.name,
                "waiting": waiting,
                "running": len(self._running),
                "sessions": len(self._lines),
                "up_s": self.clock() - self._began,
            }

    def stats(self) -> dict[str, Any]:
        """Counts, rates and latencies since the start; see ``Ledger.facts``."""
        return {**self.health(), **self.ledger.facts(self.clock())}

    def last_pictures(self) -> dict[str, NDArray[np.uint8]]:
        """Camera name to the picture of the newest question."""
        return dict(self._pictures)

    def close(self, patience_s: float = 10.0) -> None:
        """Answer what waits with a failure, let what runs finish (at most ``patience_s``), and end the thread."""
        with self._changed:
            already = self._state == "closed"
            self._state = "closed"
            self._changed.notify_all()
        if already:
            return
        self._drop(lambda w: w not in self._running, "the server is closing", code="closing")
        if self._thread.is_alive():
            self._thread.join(patience_s)

    def __enter__(self) -> Service:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refusal(self, question: Question) -> Failure | None:
        if self._state != "ready":
            return Failure("closing" if self._state == "closed" else "not_ready", f"the server is {self._state}")
        if question.verb not in self.models.verbs:
            return Failure("unsupported", f"this server has no {question.verb!r}; it has {self.models.verbs}")
        try:
            check_question(self.contract, question)
        except CosmosRobotError as error:
            return Failure.of(error)
        return None

    def _drop(self, which: Callable[[_Waiting], bool], why: str, code: Any = "cancelled") -> None:
        with self._changed:
            dropped = [w for w in self._running if which(w)]
            for session, line in self._lines.items():
                dropped += [w for w in line if which(w)]
                self._lines[session] = deque(w for w in line if not which(w))
        for waiting in dropped:
            self._answer(waiting, Failure(code, why))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._state == "closed" or any(self._lines.values()))
                if self._state == "closed":
                    return
                batch = self._next_batch()
                self._running = set(batch)
            try:
                self._run(batch)
            finally:
                with self._changed:
                    self._running = set()

    def _next_batch(self) -> list[_Waiting]:
        """Questions of all sessions in turn, as many of one kind as fit a batch; idle sessions are forgotten."""
        batch: list[_Waiting] = []
        self._lines = OrderedDict((session, line) for session, line in self._lines.items() if line)
        found = True
        while found and len(batch) < self.settings.batch:
            found = False
            for session in list(self._lines):
                line = self._lines[session]
                fits = bool(line) and (not batch or _kind(line[0]) == _kind(batch[0]))
                if fits and len(batch) < self.settings.batch:
                    batch.append(line.popleft())
                    self._lines.move_to_end(session)
                    found = isinstance(batch[0].question, Infer)
                    if not found:
                        return batch
        return batch

    def _run(self, batch: list[_Waiting]) -> None:
        now = self.clock()
        for waiting in [w for w in batch if w.late(now)]:
            self._answer(waiting, Failure("deadline", f"waited {now - waiting.came:.3f} s, longer than its deadline"))
        batch = [w for w in batch if not w.reply.done()]
        if not batch:
            return
        try:
            replies = self._ask(batch, now)
        except Exception as error:  # whatever a model raises becomes an answer and does not end the thread
            if len(batch) > 1:  # one bad question must not spoil the others' answers
                for waiting in batch:
                    self._run([waiting])
                return
            if not isinstance(error, InputError):
                LOG.exception("the model failed")
            replies = [Failure.of(error)]
        for waiting, reply in zip(batch, replies, strict=True):
            self._answer(waiting, reply)

    def _ask(self, batch: list[_Waiting], began: float) -> list[Reply]:
        first = batch[0].question
        if isinstance(first, Imagine):
            assert self.models.imagine is not None
            frames = self.models.imagine(first.observation, first.actions, first.seed)
            return [VideoReply(frames, self._seconds(batch[0], began, {}))]
        if isinstance(first, Plan):
            assert self.models.plan is not None
            chunks = [self.models.plan(first.observation, first.seed, first.deadline_s)]
        else:
            questions = [w.question for w in batch if isinstance(w.question, Infer)]
            committed = None if first.committed is None else [q.committed for q in questions]
            chunks = self.models.policy.act(
                [q.observation for q in questions], [q.seed for q in questions], committed=committed
            )
        return [
            ChunkReply(_sendable(chunk), self._seconds(waiting, began, chunk.info))
            for waiting, chunk in zip(batch, chunks, strict=True)
        ]

    def _seconds(self, waiting: _Waiting, began: float, info: Mapping[str, Any]) -> dict[str, float]:
        parts = info.get("seconds", {})
        now = self.clock()
        known = {name: float(parts[name]) for name in ("encode", "model", "decode") if name in parts}
        known.setdefault("model", now - began - sum(known.values()))
        return {"queue": began - waiting.came, **known, "total": now - waiting.came}

    def _answer(self, waiting: _Waiting, reply: Reply) -> None:
        try:
            waiting.reply.set_result(reply)
        except InvalidStateError:  # cancelled or answered by another thread: the first answer counts
            return
        seconds = reply.seconds if isinstance(reply, ChunkReply | VideoReply) else {}
        self.ledger.note(reply.code if isinstance(reply, Failure) else "ok", seconds, self.clock())


def take_short_turns() -> None:
    """For a process that serves: let Python's threads take turns every half a millisecond instead of every five, so
    that an answer is not kept waiting by the reading of another question. Changes the whole process."""
    sys.setswitchinterval(0.0005)


def _kind(waiting: _Waiting) -> tuple[str, int]:
    committed = getattr(waiting.question, "committed", None)
    return waiting.question.verb, 0 if committed is None else len(committed)


def _sendable(chunk: ActionChunk) -> ActionChunk:
    """Without what only this process understands; times are in the reply already."""
    kept = {
        k: v for k, v in chunk.info.items() if isinstance(v, bool | int | float | str | list | dict) and k != "seconds"
    }
    return replace(chunk, info=kept)


def check_question(contract: Contract, question: Question) -> None:
    """Raise InputError naming what ``question`` lacks to be answered: a camera, a state field, a width, a size."""
    from cosmos_robot.actions.codec import state_vector
    from cosmos_robot.images.checks import checked_pictures

    observation = question.observation
    checked_pictures(contract, observation.images)
    if contract.model.state_row:
        state_vector(contract.robot, observation.state)
    rows = getattr(question, "actions", getattr(question, "committed", None))
    if rows is not None and rows.shape[1] != contract.robot.action_width:
        raise InputError(f"rows of width {rows.shape[1]}, expected {contract.robot.action_width}")
    if isinstance(question, Infer) and rows is not None and len(rows) >= contract.model.chunk:
        raise InputError(f"{len(rows)} committed rows leave nothing of a chunk of {contract.model.chunk}")


def empty_scene(contract: Contract) -> Observation:
    """Grey pictures, zeros, and two words: an observation of the right shape, to warm a model up."""
    robot = contract.robot
    images = {c.name: np.full((c.height, c.width, 3), 128, np.uint8) for c in robot.cameras}
    state: dict[str, NDArray[np.float64]] = {f.name: np.zeros(f.width) for f in robot.state}
    for f in robot.state:
        if f.rotation in ("rot6d", "quat_xyzw", "quat_wxyz", "matrix", "rot9d"):
            state[f.name] = _no_turn(f.rotation)
    return Observation(images, state, "warm up")


def _no_turn(name: Any) -> NDArray[np.float64]:
    from cosmos_robot.actions.rotations import convert

    return np.asarray(convert(np.zeros(3), "rotvec", name), dtype=np.float64).ravel()
