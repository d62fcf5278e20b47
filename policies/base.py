"""What a policy is: observations in, one action chunk each out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from cosmos_robot.contract import Contract
from cosmos_robot.errors import InputError
from cosmos_robot.types import ActionChunk, Observation


class Policy(ABC):
    """A stateless map from an observation to a chunk of commands in the robot's units.

    Nothing is remembered from call to call but caches: the same observation and seed give the same chunk, alone or in
    a batch. A subclass sets ``contract`` and writes ``_act``.
    """

    contract: Contract

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras whose pictures ``act`` reads, so that nobody draws the others."""
        return ()

    def act(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[ActionChunk]:
        """One chunk of ``contract.model.chunk`` rows for each observation; seeds make its noise. Empty in, empty out.

        Raises InputError where the two lengths differ, a seed is no whole number of 32 bits, or an observation lacks
        what the contract's robot delivers.
        """
        if len(observations) != len(seeds):
            raise InputError(f"act: {len(observations)} observations but {len(seeds)} seeds; pass one seed for each")
        for seed in seeds:
            if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
                raise InputError(f"act: expected seeds that are whole numbers from 0 to 2**32 - 1, got {seed!r}")
        return self._act(observations, seeds) if observations else []

    @abstractmethod
    def _act(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[ActionChunk]:
        """``act`` for at least one observation and as many seeds."""
