"""Every policy passes the kit, and every check of the kit can fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cosmos_robot.contract import Contract
from cosmos_robot.policies import FAKES, conformance, load_policy
from cosmos_robot.policies.fakes import ZeroPolicy
from cosmos_robot.types import ActionChunk


@pytest.mark.parametrize("name", list(FAKES))
def test_fakes(name: str, contract: Contract) -> None:
    conformance.run(lambda: load_policy(name, contract=contract))


@pytest.mark.parametrize("blind", [False, True])
def test_checkpoint(folder: Path, blind: bool) -> None:
    assert conformance.run(lambda: load_policy(folder, blind=blind)) == list(conformance.CHECKS)


class WrongLength(ZeroPolicy):
    def _act(self, observations, seeds):
        return [
            ActionChunk(c.values[:-1], c.rate_hz, c.start_time, c.source) for c in super()._act(observations, seeds)
        ]


class HalfOpen(ZeroPolicy):
    def _act(self, observations, seeds):
        return [
            ActionChunk(np.where(c.values == -1, 0.5, c.values), c.rate_hz, c.start_time, c.source)
            for c in super()._act(observations, seeds)
        ]


class TooFar(ZeroPolicy):
    def _act(self, observations, seeds):
        return [ActionChunk(c.values - 3, c.rate_hz, c.start_time, c.source) for c in super()._act(observations, seeds)]


class Late(ZeroPolicy):
    def _act(self, observations, seeds):
        return [ActionChunk(c.values, c.rate_hz, c.start_time + 1, c.source) for c in super()._act(observations, seeds)]


class Remembers(ZeroPolicy):
    calls = 0

    def _act(self, observations, seeds):
        self.calls += 1
        chunks = super()._act(observations, seeds)
        return [ActionChunk(c.values / self.calls, c.rate_hz, c.start_time, c.source) for c in chunks]


class LooksAside(ZeroPolicy):
    def _act(self, observations, seeds):
        chunks = super()._act(observations, seeds)
        return [ActionChunk(c.values / len(chunks), c.rate_hz, c.start_time, c.source) for c in chunks]


class Peeks(ZeroPolicy):
    def _act(self, observations, seeds):
        observations[0].images["front"]
        return super()._act(observations, seeds)


class Lax(ZeroPolicy):
    def act(self, observations, seeds):
        return self._act(observations, seeds)


@pytest.mark.parametrize(
    "broken, check",
    [
        (WrongLength, "chunks_match_contract"),
        (HalfOpen, "chunks_match_contract"),
        (TooFar, "chunks_match_contract"),
        (Late, "chunks_match_contract"),
        (Remembers, "same_seed_same_chunk"),
        (LooksAside, "batch_equals_alone"),
        (Peeks, "reads_only_its_cameras"),
        (Lax, "seeds_fit_observations"),
    ],
)
def test_the_kit_notices(broken: type[ZeroPolicy], check: str, contract: Contract) -> None:
    with pytest.raises(AssertionError):
        conformance.CHECKS[check](broken(contract))
