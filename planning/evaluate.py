"""Making and scoring candidates in batches: one call to propose all, one to imagine all futures, one to score them;
those of several decisions together."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.errors import ContractError, CosmosRobotError, InputError
from cosmos_robot.planning.plan import (
    Candidate,
    PlannerSettings,
    Task,
    future_seed,
    proposal_seed,
    value_seeds,
)
from cosmos_robot.planning.values import aggregate
from cosmos_robot.policies.base import Policy, ValueModel, WorldModel
from cosmos_robot.types import ActionChunk, Observation, VideoPrediction

Onward = Callable[[Observation, VideoPrediction], Observation]
"""From a moment and an imagined future to the imagined moment at its end: its pictures and the *predicted* state. What
stood in the first observation must not be put over it, which the public code does at depth 2 and more."""

FAULTS = (CosmosRobotError, RuntimeError, ValueError, ArithmeticError)
"""What a model raises for an input that it cannot do; the candidate that brought it about is lost, no other."""

Timer = Callable[[], bool]


@dataclass(frozen=True, eq=False)
class _Slot:
    """A candidate to be: the one of ``task`` at ``place``."""

    task: Task
    place: int

    @property
    def seed(self) -> int:
        return self.task.seeds[self.place]

    def candidate(self, **known: Any) -> Candidate:
        return Candidate(self.task.request, self.task.indices[self.place], self.seed, **known)


@dataclass(frozen=True, eq=False)
class _Branch:
    """One future of one candidate, as far as it has been imagined. owner: place of the candidate among all."""

    owner: int
    seed: int
    number: int
    observation: Observation
    chunk: ActionChunk
    future: VideoPrediction | None = None


class Evaluator:
    """The models of a search. ``evaluate`` keeps nothing from call to call."""

    def __init__(
        self,
        policy: Policy,
        world: WorldModel | Sequence[WorldModel] | None,
        value: ValueModel | Sequence[ValueModel],
        settings: PlannerSettings,
        *,
        onward: Onward | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """world: may be None where the value reads no future. Several of either are the members of an ensemble: future
        i of a candidate is of world model i, value j of a future of value model j, as far as there are. onward: needed
        for depth above 1. Raises ContractError where the models do not fit each other or the settings."""
        self.policy = policy
        self.worlds = _members(world)
        self.values = _members(value)
        self.settings, self.onward, self.clock = settings, onward, clock
        for member in self.values:
            if member.reads != settings.reads:
                raise ContractError(f"planner: the value model reads {member.reads!r}, not {settings.reads!r}")
        if settings.reads != "q_value" and not self.worlds:
            raise ContractError(f"planner: values of {settings.reads!r} need a world model; pass one or use 'q_value'")
        if settings.depth > 1 and onward is None:
            raise ContractError(f"planner: depth={settings.depth} needs ``onward``, the moment at the end of a future")
        for other in (*self.worlds, *self.values):
            if other.contract.robot != policy.contract.robot:
                raise ContractError(f"planner: {type(other).__name__} is for another robot than the policy")

    @property
    def cameras(self) -> tuple[str, ...]:
        """Cameras that any of the models reads."""
        models = (self.policy, *self.worlds, *self.values)
        return tuple(dict.fromkeys(name for model in models for name in model.cameras))

    def evaluate(self, task: Task) -> list[Candidate]:
        """Every candidate of ``task`` by index, scored as far as time allows."""
        return self.evaluate_all([task])[0]

    def evaluate_all(self, tasks: Sequence[Task]) -> list[list[Candidate]]:
        """``evaluate`` for several decisions, whose candidates share the calls; the shortest time is for all."""
        began = self.clock()
        out_of_time = self._timer(tasks, began)
        if out_of_time():
            return [task.lost("not begun: out of time") for task in tasks]
        slots = [_Slot(task, place) for task in tasks for place in range(len(task.seeds))]
        found = self._propose(slots)
        fresh = [i for i, c in enumerate(found) if c.chunk is not None and c.duplicate_of is None]
        if out_of_time():
            found = [replace(c, rejected=c.rejected or "proposed, not scored: out of time") for c in found]
        elif fresh:
            found = self._scored(slots, found, fresh, out_of_time)
        share = (self.clock() - began) / len(found)
        found, out = [replace(c, seconds=share) for c in found], []
        for task in tasks:
            out.append(_with_duplicates(found[: len(task.seeds)], task.known))
            found = found[len(task.seeds) :]
        return out

    def _timer(self, tasks: Sequence[Task], began: float) -> Timer:
        left = min((t.seconds_left for t in tasks if t.seconds_left is not None), default=None)
        return lambda: left is not None and self.clock() - began >= left

    def _propose(self, slots: Sequence[_Slot]) -> list[Candidate]:
        def act(given: bool, which: Sequence[int]) -> Sequence[Any]:
            rows = [s.task.committed for s in (slots[i] for i in which) if s.task.committed is not None]
            return self.policy.act(
                [slots[i].task.observation for i in which], [slots[i].seed for i in which], rows if given else None
            )

        chunks, faults = grouped(act, [s.task.committed is not None for s in slots])
        found: list[Candidate] = []
        for i, slot in enumerate(slots):
            if i in faults:
                found.append(slot.candidate(rejected=f"not proposed: {faults[i]}"))
                continue
            same_task = [*slot.task.known, *found[i - slot.place :]]
            found.append(slot.candidate(chunk=chunks[i], duplicate_of=self._original(chunks[i], same_task)))
        return found

    def _original(self, chunk: ActionChunk, others: Sequence[Candidate]) -> int | None:
        """Index of the first of ``others`` that is the same chunk and no duplicate itself."""
        for other in others:
            if other.chunk is None or other.duplicate_of is not None:
                continue
            if np.abs(other.chunk.values - chunk.values).max() <= self.settings.duplicate_tolerance:
                return other.index
        return None

    def _scored(
        self, slots: Sequence[_Slot], found: list[Candidate], fresh: Sequence[int], out_of_time: Timer
    ) -> list[Candidate]:
        branches = self._begun(slots, found, fresh)
        faults: dict[int, str] = {}
        for depth in range(self.settings.depth if self.settings.reads != "q_value" else 0):
            branches = self._imagined(branches, depth, faults)
            if out_of_time():
                faults |= {b.owner: "imagined, not scored: out of time" for b in branches}
                branches = []
            if depth + 1 < self.settings.depth:
                branches = self._onward(branches, depth + 1, faults)
        values = self._values(branches, faults)
        return [self._judged(i, c, branches, values, faults) if i in fresh else c for i, c in enumerate(found)]

    def _begun(self, slots: Sequence[_Slot], found: Sequence[Candidate], fresh: Sequence[int]) -> list[_Branch]:
        futures = 1 if self.settings.reads == "q_value" else self.settings.futures
        return [
            _Branch(i, slots[i].seed, j, slots[i].task.observation, chunk)
            for i in fresh
            if (chunk := found[i].chunk) is not None
            for j in range(futures)
        ]

    def _imagined(self, branches: Sequence[_Branch], depth: int, faults: dict[int, str]) -> list[_Branch]:
        """The branches with their futures; those of a candidate that fails are gone."""
        seeds = [future_seed(b.seed, b.number, depth) for b in branches]

        def imagine(member: int, which: Sequence[int]) -> Sequence[Any]:
            chosen = [branches[k] for k in which]
            return self.worlds[member].imagine(
                [b.observation for b in chosen], [b.chunk for b in chosen], [seeds[k] for k in which]
            )

        futures, failed = grouped(imagine, [_member(self.worlds, b.number) for b in branches])
        faults |= {branches[k].owner: f"not imagined: {why}" for k, why in failed.items()}
        alive = [k for k, b in enumerate(branches) if b.owner not in faults]
        return [replace(branches[k], future=futures[k]) for k in alive]

    def _onward(self, branches: Sequence[_Branch], depth: int, faults: dict[int, str]) -> list[_Branch]:
        """The branches at the end of their futures, with the policy's next chunk there."""
        assert self.onward is not None
        there = [self.onward(b.observation, b.future) for b in branches if b.future is not None]
        seeds = [proposal_seed(b.seed, b.number, depth) for b in branches]
        chunks, failed = each(
            lambda which: self.policy.act([there[k] for k in which], [seeds[k] for k in which]), len(there)
        )
        faults |= {branches[k].owner: f"nothing proposed at depth {depth + 1}: {why}" for k, why in failed.items()}
        alive = [k for k, b in enumerate(branches) if b.owner not in faults]
        return [replace(branches[k], observation=there[k], chunk=chunks[k], future=None) for k in alive]

    def _values(
        self, branches: Sequence[_Branch], faults: dict[int, str]
    ) -> dict[tuple[int, int], NDArray[np.float64]]:
        """(values,) of each branch, by owner and number."""
        count = self.settings.values
        asked = [b for b in branches for _ in range(count)]
        seeds = [s for b in branches for s in value_seeds(b.seed, b.number, count)]

        def score(member: int, which: Sequence[int]) -> Sequence[Any]:
            chosen = [asked[k] for k in which]
            futures = None if self.settings.reads == "q_value" else [b.future for b in chosen if b.future is not None]
            found = self.values[member].score(
                [b.observation for b in chosen], [b.chunk for b in chosen], futures, [seeds[k] for k in which]
            )
            if np.shape(found) != (len(which),):
                raise InputError(f"score: expected {len(which)} values, got shape {np.shape(found)}")
            return [float(v) for v in found]

        values, failed = grouped(score, [_member(self.values, i) for _ in branches for i in range(count)])
        faults |= {asked[k].owner: f"not scored: {why}" for k, why in failed.items()}
        return {
            (b.owner, b.number): np.array(values[i * count : (i + 1) * count])
            for i, b in enumerate(branches)
            if b.owner not in faults
        }

    def _judged(
        self,
        place: int,
        candidate: Candidate,
        branches: Sequence[_Branch],
        values: dict[tuple[int, int], NDArray[np.float64]],
        faults: dict[int, str],
    ) -> Candidate:
        if place in faults:
            return replace(candidate, rejected=faults[place])
        own = [b for b in branches if b.owner == place]
        table = np.stack([values[place, b.number] for b in own])
        score = float(aggregate(table.ravel(), self.settings.aggregation))
        wrong = int((~np.isfinite(table)).sum())
        rejected = "" if np.isfinite(score) else f"no score: {wrong} of {table.size} values are no numbers"
        futures = tuple(b.future for b in own if b.future is not None)
        return replace(candidate, values=table, score=score, rejected=rejected, futures=futures)


def _members(models: Any) -> tuple[Any, ...]:
    if models is None:
        return ()
    return tuple(models) if isinstance(models, Sequence) else (models,)


def _member(models: Sequence[Any], number: int) -> int:
    """The model of member ``number`` of an ensemble; the first of those that are one and the same."""
    chosen = models[number % len(models)]
    return next(i for i, model in enumerate(models) if model is chosen)


def grouped(
    call: Callable[[Any, Sequence[int]], Sequence[Any]], kinds: Sequence[Hashable]
) -> tuple[list[Any], dict[int, str]]:
    """``each`` for the items of each kind: ``call(kind, which)``."""
    results: list[Any] = [None] * len(kinds)
    faults: dict[int, str] = {}
    for kind in dict.fromkeys(kinds):
        items = [i for i, k in enumerate(kinds) if k == kind]
        found, failed = each(lambda which, kind=kind, items=items: call(kind, [items[k] for k in which]), len(items))
        for i, result in zip(items, found, strict=True):
            results[i] = result
        faults |= {items[k]: why for k, why in failed.items()}
    return results, faults


def each(call: Callable[[Sequence[int]], Sequence[Any]], count: int) -> tuple[list[Any], dict[int, str]]:
    """``call`` for items 0 .. count - 1 as one batch; where that fails, one by one. Returns the results (None for what
    failed) and why the others failed."""
    if not count:
        return [], {}
    try:
        return list(call(range(count))), {}
    except FAULTS as error:
        if count == 1:
            return [None], {0: _words(error)}
    results: list[Any] = [None] * count
    faults = {}
    for i in range(count):
        try:
            (results[i],) = call([i])
        except FAULTS as error:
            faults[i] = _words(error)
    return results, faults


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _with_duplicates(found: Sequence[Candidate], known: Sequence[Candidate]) -> list[Candidate]:
    """Duplicates with the values of what they are duplicates of."""
    by_index = {c.index: c for c in (*known, *found)}
    out = []
    for candidate in found:
        original = None if candidate.duplicate_of is None else by_index[candidate.duplicate_of]
        if original is not None:
            candidate = replace(
                candidate,
                values=original.values,
                score=original.score,
                rejected=original.rejected,
                futures=original.futures,
            )
        out.append(candidate)
    return out
