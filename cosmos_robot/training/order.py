"""Which samples a step takes: streams, shuffled episodes, modes, packs. Numbers only, no data.

Everything about a sample follows from the run's seed, its stream and its number in that stream, so the position of a
run is one number a stream, and the samples that were passed over. Every process computes the packs of all, so that all
know how many passes a step has: processes that disagree on that wait for each other for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, sqrt

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.backbone.cosmos3.layout import PlanMode
from cosmos_robot.errors import InputError

_GOLDEN, _ROOT = (sqrt(5) - 1) / 2, sqrt(2) - 1
"""Steps of two sequences that spread evenly, each by itself and both together (Kronecker)."""


class EpisodeOrder:
    """Samples of shuffled episodes, ``open_episodes`` of them mixed at a time; then the next, then the next epoch.

    ``at(n)`` is the place of sample number n. Each sample comes once an epoch. A long dataset is read episode by
    episode, so few are open.
    """

    def __init__(self, episodes: Sequence[int], lengths: Sequence[int], open_episodes: int, seed: Sequence[int]):
        self._episodes, self._lengths = np.array(episodes), np.array([lengths[e] for e in episodes])
        self._open, self._seed, self.epoch_samples = open_episodes, tuple(seed), int(self._lengths.sum())
        self._epoch: tuple[int, NDArray, NDArray] | None = None
        self._block: tuple[tuple[int, int], NDArray] | None = None

    def at(self, number: int) -> tuple[int, int]:
        """Episode, and sample within it."""
        epoch, within = divmod(number, self.epoch_samples)
        order, ends = self._shuffled(epoch)
        block = int(np.searchsorted(ends, within, side="right"))
        first = int(ends[block - 1]) if block else 0
        episode, row = self._mixed(epoch, block, order)[within - first]
        return int(episode), int(row)

    def _shuffled(self, epoch: int) -> tuple[NDArray, NDArray]:
        """The epoch's order of episodes, and the samples up to the end of each block."""
        if self._epoch is None or self._epoch[0] != epoch:
            order = np.random.default_rng((*self._seed, epoch)).permutation(len(self._episodes))
            sums = np.cumsum(self._lengths[order])
            ends = sums[np.minimum(np.arange(self._open, len(order) + self._open, self._open), len(order)) - 1]
            self._epoch = epoch, order, ends
        return self._epoch[1:]

    def _mixed(self, epoch: int, block: int, order: NDArray) -> NDArray:
        """(m, 2): episode and sample of everything in the block, at random."""
        if self._block is None or self._block[0] != (epoch, block):
            members = order[block * self._open : (block + 1) * self._open]
            lengths = self._lengths[members]
            samples = np.concatenate([np.arange(length) for length in lengths])
            pairs = np.stack([np.repeat(self._episodes[members], lengths), samples], axis=1)
            np.random.default_rng((*self._seed, epoch, block)).shuffle(pairs)
            self._block = (epoch, block), pairs
        return self._block[1]


@dataclass(frozen=True)
class Draw:
    """One sample: where it lies and what it is taken for.

    level: 0..1, behind its noise level; evenly spread over successive samples. history: share (0..1) of the past rows
    it is shown. dropped: without its caption. seed: of its noise.
    """

    stream: int
    number: int
    episode: int
    row: int
    mode: PlanMode
    level: float
    history: float
    dropped: bool
    seed: tuple[int, ...]


class StreamOrder:
    """The samples of one stream by number."""

    def __init__(self, index: int, order: EpisodeOrder, modes: Mapping[PlanMode, float], dropout: float, seed: int):
        self.index, self.order, self._dropout, self._seed = index, order, dropout, seed
        self._modes: tuple[PlanMode, ...] = tuple(modes)
        self._up_to = np.cumsum([modes[m] for m in self._modes])
        self._offset = float(np.random.default_rng((seed, index)).random())

    def draw(self, number: int) -> Draw:
        """Modes are spread as evenly as levels, so that a batch has nearly the same number of each, and few shapes of
        tensors occur. Half of the samples are shown their whole history, the others a part of it, evenly
        (cosmos-framework, droid_lerobot_dataset.py)."""
        random = np.random.default_rng((self._seed, self.index, number))
        dropped, whole, part = random.random(3)
        level, chance = self._offset + number * _GOLDEN, (self._offset + number * _ROOT) % 1
        return Draw(
            self.index,
            number,
            *self.order.at(number),
            mode=self._modes[int(np.searchsorted(self._up_to, chance * self._up_to[-1], side="right"))],
            level=level - floor(level),
            history=1.0 if whole < 0.5 else float(part),
            dropped=bool(dropped < self._dropout),
            seed=(self._seed, self.index, number),
        )


@dataclass(frozen=True)
class Packing:
    """batch: samples of a step over all processes. Or budget: tokens of a step in each process; up to ``look_ahead``
    samples that do not fit any more are passed over, and come first in the stream's next step."""

    batch: int
    budget: int | None = None
    look_ahead: int = 64


class StepOrder:
    """Successive steps: one stream each, the same in all processes, and a pack of its samples for each process."""

    def __init__(
        self,
        streams: Sequence[StreamOrder],
        weights: Sequence[float],
        packing: Packing,
        seed: int,
        processes: int = 1,
        tokens: Callable[[Draw], int] = lambda draw: 1,
    ):
        if packing.budget is None and packing.batch % processes:
            raise InputError(f"batch {packing.batch} cannot be shared evenly by {processes} processes")
        self._streams, self._packing, self._seed, self._processes = streams, packing, seed, processes
        self._up_to = np.cumsum(weights)
        self._tokens = tokens
        self._next = [0] * len(streams)
        self._waiting: list[list[int]] = [[] for _ in streams]

    def step(self, number: int) -> list[list[Draw]]:
        """The packs of step ``number``, one for each process. To be called for each step once, in order."""
        chance = np.random.default_rng((self._seed, 0x57E9, number)).random()
        stream = int(np.searchsorted(self._up_to, chance * self._up_to[-1], side="right"))
        if self._packing.budget is None:
            draws = [self._streams[stream].draw(self._take(stream)) for _ in range(self._packing.batch)]
            return [draws[rank :: self._processes] for rank in range(self._processes)]
        return [self._pack(stream, self._packing.budget) for _ in range(self._processes)]

    def state(self) -> dict:
        return {"next": list(self._next), "waiting": [list(w) for w in self._waiting]}

    def load(self, state: dict) -> None:
        self._next, self._waiting = list(state["next"]), [list(w) for w in state["waiting"]]

    def _take(self, stream: int) -> int:
        number = self._next[stream]
        self._next[stream] += 1
        return number

    def _pack(self, stream: int, budget: int) -> list[Draw]:
        order, waiting, left = self._streams[stream], self._waiting[stream], budget
        pack, passed = [], []
        while left > 0 and len(passed) <= self._packing.look_ahead:
            draw = order.draw(waiting.pop(0) if waiting else self._take(stream))
            cost = self._tokens(draw)
            if cost > budget:
                raise InputError(f"token_budget {budget}: a sample of this stream ({draw.mode}) has {cost} tokens")
            if cost <= left:
                pack.append(draw)
                left -= cost
            else:
                passed.append(draw.number)
        waiting[:0] = passed
        return pack
