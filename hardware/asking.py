"""How the control loop asks a policy without waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import RobotSpec, require_fit
from cosmos_robot.serve.client import PolicyClient
from cosmos_robot.serve.service import Acting
from cosmos_robot.types import ActionChunk, Observation


class Pending(Protocol):
    """A question on its way."""

    def poll(self, now: float) -> ActionChunk | None:
        """The answer if it is there at ``now``, else None. Raises what the policy raised."""
        ...

    def cancel(self) -> None:
        """The answer is not wanted any more."""
        ...


class Asker(Protocol):
    """Where chunks come from: a policy in this process, a server, or either made late on purpose."""

    def ask(self, observation: Observation, seed: int, committed: NDArray[np.float64] | None, now: float) -> Pending:
        """Send a question and return at once. committed (k, D): the first rows of the answer, given."""
        ...

    def reset(self) -> None:
        """A new episode: whatever was remembered of the last one is forgotten, and open questions with it."""
        ...


class FuturePending:
    """A question whose answer is a future."""

    def __init__(self, future: Future[ActionChunk]):
        self._future = future

    def poll(self, now: float) -> ActionChunk | None:
        """The answer if it is there, else None."""
        return self._future.result() if self._future.done() else None

    def cancel(self) -> None:
        """Do not begin it, if it has not begun."""
        self._future.cancel()


class InProcess:
    """A policy on a thread of this process."""

    def __init__(self, policy: Acting):
        self._policy = policy
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy")

    def ask(self, observation: Observation, seed: int, committed: NDArray[np.float64] | None, now: float) -> Pending:
        """Queue the question behind those before it."""
        return FuturePending(self._thread.submit(self._act, observation, seed, committed))

    def reset(self) -> None:
        """Nothing to forget: policies remember nothing."""

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _act(self, observation: Observation, seed: int, committed: NDArray[np.float64] | None) -> ActionChunk:
        given = None if committed is None else [committed]
        (chunk,) = self._policy.act([observation], [seed], committed=given)
        return chunk


class Served:
    """A policy on a server. Raises ContractError naming each field in which the robot does not fit its checkpoint,
    WorkerError when nobody answers."""

    def __init__(self, client: PolicyClient, robot: RobotSpec):
        require_fit(client.contract, robot)
        self._client = client

    def ask(self, observation: Observation, seed: int, committed: NDArray[np.float64] | None, now: float) -> Pending:
        """Send a question; one that still waits there from before is not wanted any more."""
        return FuturePending(self._client.submit(observation, seed, committed, supersede=True))

    def reset(self) -> None:
        """Tell the server that a new episode begins."""
        self._client.reset()


class Late:
    """An asker made late and unreliable, to see what a network would do.

    latency_s: draws the delay of each answer, counted from the question; it is never there in the tick that asked.
    dropped: share of answers that never come. The policy is asked at once and in the thread of the loop, so that a run
    on a virtual clock is repeatable.
    """

    def __init__(
        self,
        answer: Callable[[Observation, int, NDArray[np.float64] | None], ActionChunk],
        latency_s: Callable[[np.random.Generator], float],
        dropped: float,
        generator: np.random.Generator,
    ):
        self._answer, self._latency_s, self._dropped, self._generator = answer, latency_s, dropped, generator

    def ask(self, observation: Observation, seed: int, committed: NDArray[np.float64] | None, now: float) -> Pending:
        """Answer now, deliver later or never."""
        due = now + self._latency_s(self._generator)
        if self._generator.random() < self._dropped:
            due = np.inf
        return _Delivery(self._answer(observation, seed, committed), now, due)

    def reset(self) -> None:
        """Nothing to forget."""


class _Delivery:
    def __init__(self, chunk: ActionChunk, asked: float, due: float):
        self._chunk, self._asked, self._due = chunk, asked, due

    def poll(self, now: float) -> ActionChunk | None:
        return self._chunk if now >= self._due and now > self._asked else None

    def cancel(self) -> None:
        self._due = np.inf
