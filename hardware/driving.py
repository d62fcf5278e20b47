"""Where the chunks of ``drive`` and ``replay`` come from, made to fit the robot that is there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.adapter import Adapter
from cosmos_robot.contract import RobotSpec
from cosmos_robot.data.layouts import open_recordings
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.hardware.asking import Asker, InProcess, Late, Pending, Served
from cosmos_robot.hardware.chunks import Scheduler, Strategy
from cosmos_robot.hardware.gate import columns
from cosmos_robot.hardware.loop import Tick
from cosmos_robot.policies import load_policy
from cosmos_robot.policies.remote import SCHEME, TOKEN_VARIABLE
from cosmos_robot.serve.client import PolicyClient
from cosmos_robot.serve.service import Acting
from cosmos_robot.types import ActionChunk, Observation

LOADED_PATIENCE_S: Final = 600.0
"""For the first answer of a policy in this process, which may compile."""
STUCK_S: Final = 2.0
"""A replay that the gate has stopped for this long ends."""
LOOK_AGAIN_S: Final = 1.0
"""A replay looks at the robot this often, so that it never acts on an observation that the gate calls stale."""


@dataclass(frozen=True)
class Answers:
    """A policy and the way to it. where: in words. patience_s: for its first answer."""

    policy: Acting
    asker: Asker
    where: str
    patience_s: float


@contextlib.contextmanager
def answers(policy: str, device: str, timeout_s: float, virtual: bool) -> Iterator[Answers]:
    """The policy called ``policy``. On a virtual clock one in this process is asked in the loop's own thread and
    answers one tick later, whatever it takes; otherwise on a thread, or over the network."""
    if policy.startswith(SCHEME):
        with PolicyClient(policy, timeout_s, os.environ.get(TOKEN_VARIABLE, "")) as client:
            yield Answers(client, Served(client, client.contract.robot), f"served at {policy}", timeout_s)
        return
    loaded = load_policy(policy, device=device)
    if virtual:

        def answer(seen: Observation, seed: int, committed: NDArray[np.float64] | None) -> ActionChunk:
            chunk: ActionChunk
            (chunk,) = loaded.act([seen], [seed], None if committed is None else [committed])
            return chunk

        in_step = Late(answer, lambda _: 0.0, 0.0, np.random.default_rng(0))
        yield Answers(loaded, in_step, "in this process", LOADED_PATIENCE_S)
        return
    thread = InProcess(loaded)
    try:
        yield Answers(loaded, thread, "in this process", LOADED_PATIENCE_S)
    finally:
        thread.close()


def fit(source: Answers, robot: RobotSpec, strategy: Strategy) -> tuple[Asker, list[str]]:
    """An asker for ``robot`` itself, and what is converted or worth a warning, in words. Raises ContractError naming
    every difference that no code converts."""
    adapter = Adapter(source.policy.contract, robot)
    told = [f"warning: {d}" for d in adapter.warnings] + [f"converted: {d}" for d in adapter.converted]
    if not adapter.converted:
        return source.asker, told
    commands = [d.field for d in adapter.converted if d.field.startswith(("action", "gripper"))]
    if commands and strategy == "rtc":
        raise ContractError(
            f"strategy rtc gives a robot's own commands back to the policy, but {commands} are converted on the way "
            "to this robot; choose another strategy: blend, latest, ensemble or sync"
        )
    return Adapted(source.asker, adapter), told


class Adapted:
    """An asker whose policy knows another robot, which ``adapter`` makes of the one that is there."""

    def __init__(self, asker: Asker, adapter: Adapter):
        self._asker, self._adapter = asker, adapter

    def ask(self, observation: Observation, seed: int, committed: NDArray[np.float64] | None, now: float) -> Pending:
        """Ask about the observation as the policy's robot would report it."""
        return _Converted(self._asker.ask(self._adapter.observation(observation), seed, committed, now), self._adapter)

    def reset(self) -> None:
        """A new episode."""
        self._asker.reset()


class _Converted:
    def __init__(self, pending: Pending, adapter: Adapter):
        self._pending, self._adapter = pending, adapter

    def poll(self, now: float) -> ActionChunk | None:
        chunk = self._pending.poll(now)
        return None if chunk is None else replace(chunk, values=self._adapter.actions(chunk.values))

    def cancel(self) -> None:
        self._pending.cancel()


class Replayed:
    """A recorded episode as a source of chunks, and a witness of how much of it has been sent.

    Asked again, it goes on at the row that is due. actions: (N, D). where: in words.
    """

    def __init__(self, actions: NDArray[np.float64], rate_hz: float, instruction: str, where: str):
        self.actions, self.rate_hz, self.instruction, self.where = actions, rate_hz, instruction, where
        self.names: tuple[str, ...] = ()
        self.reset()

    @classmethod
    def of(cls, dataset: str | Path, episode: int) -> Replayed:
        """Episode ``episode`` of a dataset. Raises CheckpointError as ``open_recordings``, InputError for an episode
        that is not there, has no rows or no rate, or holds numbers that are not finite."""
        found = open_recordings(dataset)
        if not 0 <= episode < len(found):
            raise InputError(f"episode {episode}: {dataset} has episodes 0 to {len(found) - 1}")
        recording = found[episode]
        if found.fps is None or not len(recording):
            raise InputError(f"{dataset}, {recording.where}: no rows, or nothing says how fast they were recorded")
        actions = np.array(recording.actions, dtype=np.float64)
        if not np.isfinite(actions).all():
            raise InputError(f"{dataset}, {recording.where}: actions that are not finite; see cosmos-robot data lint")
        made = cls(actions, found.fps, recording.instruction, f"{dataset}, {recording.where}")
        made.names = found.action_names
        return made

    def require_fit(self, robot: RobotSpec) -> None:
        """Raise ContractError where the recorded commands are not this robot's: another width, or names in another
        order."""
        wanted = columns(robot)
        if self.actions.shape[1] != len(wanted):
            raise ContractError(
                f"{self.where} holds commands of {self.actions.shape[1]} numbers, {robot.name!r} takes {len(wanted)}: "
                f"{', '.join(wanted)}"
            )
        if set(self.names) == set(wanted) and self.names != wanted:
            raise ContractError(f"{self.where} holds {self.names}, {robot.name!r} takes them as {wanted}")

    def scheduler(self, robot: RobotSpec) -> Scheduler:
        """What plays the rows on ``robot`` one after the other, and asks again every ``LOOK_AGAIN_S``."""
        return Scheduler(robot, "latest", max(1, round(LOOK_AGAIN_S * self.rate_hz)))

    @property
    def complete(self) -> bool:
        """Whether every row has been sent."""
        return self._next >= len(self.actions)

    @property
    def done(self) -> bool:
        """Whether there is nothing more to do: all is sent, or the gate has let nothing through for ``STUCK_S``."""
        return self.complete or self._refused > STUCK_S * self.rate_hz

    def ask(self, observation: Observation, seed: int, committed: NDArray[np.float64] | None, now: float) -> Pending:
        """The rest of the episode."""
        first = min(self._next, len(self.actions) - 1)
        return _Rest(self, first, ActionChunk(self.actions[first:], self.rate_hz, observation.time, "replay"))

    def taken_up(self, first: int) -> None:
        """From now on rows are counted from ``first``."""
        self._first = first

    def reset(self) -> None:
        """Begin at the first row."""
        self._first = self._next = self._refused = 0

    def tick(self, tick: Tick) -> None:
        """See how far the robot has come."""
        self._refused = 0 if tick.sent is not None else self._refused + 1
        if tick.sent is not None and tick.due is not None:
            self._next = self._first + tick.due.row + 1


class _Rest:
    def __init__(self, replayed: Replayed, first: int, chunk: ActionChunk):
        self._replayed, self._first, self._chunk = replayed, first, chunk

    def poll(self, now: float) -> ActionChunk | None:
        self._replayed.taken_up(self._first)
        return self._chunk

    def cancel(self) -> None:
        pass
