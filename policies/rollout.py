"""Imagining further than one chunk: chunk after chunk, each begun where the last one ended.

What chunk k sees, and nothing else: the end of chunk k - 1 (``carry``, see ``WorldModel.extend``), its own actions, the
last commands before it where the contract has history rows, the caller's state at the junction where the contract
reads one, and noise of a seed made from the rollout's seed and k. So nothing that comes later changes an earlier chunk.
Within one chunk attention is full: there a later command may well change an earlier frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.errors import InputError
from cosmos_robot.policies.base import WorldModel
from cosmos_robot.types import ActionChunk, Observation, VideoPrediction

State = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Rollout:
    """Successive predictions of one future; the first frame of each is the last of the one before."""

    chunks: tuple[VideoPrediction, ...]

    @property
    def frames(self) -> NDArray[np.uint8]:
        """(F, H, W, 3) uint8: the current moment and all that follows, junctions once. Decodes what was not yet."""
        first, *rest = self.chunks
        return np.concatenate([first.frames, *(chunk.frames[1:] for chunk in rest)])


def rollout(
    world: WorldModel,
    observations: Sequence[Observation],
    actions: Sequence[ActionChunk],
    seeds: Sequence[int],
    states: Sequence[Sequence[State]] | None = None,
    carry: str = "pixels",
) -> list[Rollout]:
    """The future of each observation under ``actions``, all rollouts side by side in one batch.

    actions: as many rows each as a whole number of ``contract.model.chunk``. states: for each rollout the robot's state
    at each junction (one fewer than chunks); needed where ``contract.reads_state``. Raises InputError where
    lengths do not fit, before anything is imagined, and as ``WorldModel.imagine``.
    """
    if not (len(observations) == len(actions) == len(seeds)):
        raise InputError(
            f"rollout: {len(observations)} observations, {len(actions)} action sequences and {len(seeds)} seeds; pass "
            "as many of each"
        )
    if not observations:
        return []
    pieces = [_pieces(chunk, world.contract.model.chunk) for chunk in actions]
    count = len(pieces[0])
    if any(len(found) != count for found in pieces):
        raise InputError(f"rollout: sequences of {sorted({len(a) for a in actions})} rows; pass equally long ones")
    if world.contract.reads_state and count > 1:
        found = None if states is None else [len(s) for s in states]
        if found != [count - 1] * len(observations):
            raise InputError(
                f"rollout: {world.contract.model.name!r} reads the robot's state, which no video shows: expected "
                f"{count - 1} states for each of {len(observations)} rollouts, got {found}"
            )
    last = world.imagine(observations, [p[0] for p in pieces], [chunk_seed(s, 0) for s in seeds])
    done = [last]
    for k in range(1, count):
        here = None if states is None else [s[k - 1] for s in states]
        last = world.extend(last, [p[k] for p in pieces], [chunk_seed(s, k) for s in seeds], here, carry)
        done.append(last)
    return [Rollout(chunks) for chunks in zip(*done, strict=True)]


def chunk_seed(seed: int, k: int) -> int:
    """The seed of chunk ``k``: ``seed`` itself for the first, so that a rollout of one chunk is ``imagine``."""
    return int(seed) if k == 0 else int(np.random.SeedSequence([seed, k]).generate_state(1)[0])


def _pieces(actions: ActionChunk, length: int) -> list[ActionChunk]:
    if len(actions) % length:
        raise InputError(f"rollout: {len(actions)} rows are no whole number of chunks of {length}; cut or extend them")
    return [
        ActionChunk(
            actions.values[at : at + length], actions.rate_hz, actions.start_time + at / actions.rate_hz, actions.source
        )
        for at in range(0, len(actions), length)
    ]
