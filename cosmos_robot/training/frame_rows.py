"""Demonstrations and rollouts as one table for joint training: a moment, commands, the moment after them, its value.

Axis legend: N rows, T chunk steps, D action width, S state width, P placements, C h w latents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.codec import Codec
from cosmos_robot.actions.normalization import LARGEST_NORMALISED, require_bounded
from cosmos_robot.contract import Contract
from cosmos_robot.data.returns import value_targets
from cosmos_robot.errors import InputError
from cosmos_robot.training.cache import FrameCache
from cosmos_robot.training.rows import gathered, hand_offsets, pointed

DEMO, SUCCESS, FAILURE = range(3)
"""Sources of a row, in the order of ``mixing.SOURCES``."""


@dataclass(frozen=True)
class FrameSource:
    """One dataset, cached. stride: control steps between moments. outcomes: of each rollout, the share of the task that
    was done in the end; None for demonstrations, which all succeeded. variant: its pictures were changed, so objects
    are not where the cache says, and held-out episodes are left out."""

    cache: FrameCache
    latents: NDArray[np.float16]
    stride: int
    outcomes: tuple[float, ...] | None = None
    variant: bool = False


@dataclass(frozen=True)
class FrameRows:
    """All rows. state, later_state (N, S), actions, executed (N, T, D) normalised float32, valid (N, T). value (N,) in
    -1..1, of the moment after the commands. source (N,): DEMO, SUCCESS or FAILURE. instruction (N,) indexes
    ``instructions``. validation (N,). cells (N, P, 2, 2), seen (N, P, 2), offset (N, 2, 3): as ``grounding.Places``.
    now, later (N,): numbers of the moments, for ``latents``."""

    instructions: tuple[str, ...]
    state: NDArray[np.float32]
    later_state: NDArray[np.float32]
    actions: NDArray[np.float32]
    executed: NDArray[np.float32]
    valid: NDArray[np.bool_]
    value: NDArray[np.float32]
    source: NDArray[np.int8]
    instruction: NDArray[np.int64]
    validation: NDArray[np.bool_]
    cells: NDArray[np.float32]
    seen: NDArray[np.bool_]
    offset: NDArray[np.float32]
    now: NDArray[np.int64]
    later: NDArray[np.int64]
    _latents: tuple[NDArray[np.float16], ...]

    def __len__(self) -> int:
        return len(self.state)

    def latents(self, moments: NDArray[np.int64]) -> NDArray[np.float16]:
        """(B, C, h, w) of moments by their numbers."""
        return gathered(self._latents, moments)

    def training(self, source: int) -> NDArray[np.int64]:
        """The rows of ``source`` that are not held out."""
        return np.flatnonzero((self.source == source) & ~self.validation)


_JOINED = tuple(f.name for f in fields(FrameRows))[1:-1]


def join_frames(
    contract: Contract,
    sources: Sequence[FrameSource],
    gamma: float,
    hand_field: str,
    largest: float = LARGEST_NORMALISED,
) -> FrameRows:
    """One table, normalised by ``contract`` (which must have its statistics).

    The moment after a demonstration's chunk is the recorded one nearest before its end. Raises InputError where the
    chunk is no whole number of a demonstration's strides, a rollout's stride is not the contract's ``execute``, or a
    number is beyond ``largest`` after normalisation.
    """
    instructions = tuple(dict.fromkeys(text for source in sources for text in source.cache.instructions))
    starts = np.cumsum([0, *(len(source.cache) for source in sources)])
    parts = [
        _columns(contract, source, gamma, hand_field, instructions, start, largest)
        for source, start in zip(sources, starts, strict=False)
    ]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in _JOINED}
    return FrameRows(instructions, **joined, _latents=tuple(source.latents for source in sources))


def _columns(contract, source: FrameSource, gamma, hand_field, instructions, start: int, largest) -> dict:
    cache, codec = source.cache, Codec(contract)
    now, later, value = _moments(contract, source, gamma)
    if source.variant:
        kept = ~cache.validation[now]
        now, later, value = now[kept], later[kept], value[kept]
    state, valid = codec.encode_state(cache.state), cache.valid[now]
    actions, executed = (codec.encode_actions(commands[now]) for commands in (cache.actions, cache.executed))
    require_bounded(state, largest, "training states")
    require_bounded(actions[valid], largest, "training actions")
    require_bounded(executed[valid], largest, "executed commands")
    cells, seen = pointed(cache)
    outcomes = np.ones(1 + cache.episode.max()) if source.outcomes is None else np.asarray(source.outcomes)
    rollout = FAILURE - (outcomes[cache.episode[now]] > 0)
    offset = hand_offsets(contract.robot, hand_field, cache.state, cache.target_xyz, cache.goal_xyz)
    return {
        "state": state[now].astype(np.float32),
        "later_state": state[later].astype(np.float32),
        "actions": actions.astype(np.float32),
        "executed": executed.astype(np.float32),
        "valid": valid,
        "value": value,
        "source": (np.zeros(len(now)) if source.outcomes is None else rollout).astype(np.int8),
        "instruction": np.array([instructions.index(text) for text in cache.instructions])[cache.instruction[now]],
        "validation": cache.validation[now],
        "cells": cells[now],
        "seen": seen[now] & (not source.variant),
        "offset": offset[now],
        "now": now + start,
        "later": later + start,
    }


def _moments(contract: Contract, source: FrameSource, gamma: float):
    """Rows with commands: their number in the cache, that of the moment after them, and its value."""
    cache, chunk = source.cache, contract.model.chunk
    if source.outcomes is None and chunk % source.stride:
        raise InputError(
            f"frame training: a chunk of {chunk} commands is no whole number of the demonstrations' stride of "
            f"{source.stride}; record with a stride that divides it, or change model.chunk"
        )
    if source.outcomes is not None and source.stride != chunk:
        raise InputError(
            f"frame training: rollouts with {source.stride} commands between decisions, but the chunk is {chunk}; "
            "collect them with a policy that executes its whole chunk"
        )
    now, later, value = [], [], []
    for episode in np.unique(cache.episode):
        rows = np.flatnonzero(cache.episode == episode)
        reward = 1.0 if source.outcomes is None else source.outcomes[episode]
        decisions = np.flatnonzero(cache.valid[rows].any(1))
        last = decisions[-1]
        commands = last * source.stride + int(cache.valid[rows[last]].sum())
        after = decisions * source.stride + chunk
        found = value_targets(commands + 1, reward, gamma)[np.minimum(after, commands)]
        now.append(rows[decisions])
        later.append(rows[np.minimum(decisions + chunk // source.stride, len(rows) - 1)])
        value.append(found)
    return np.concatenate(now), np.concatenate(later), np.concatenate(value)
