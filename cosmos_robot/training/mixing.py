"""How demonstrations and rollouts share an epoch of joint training (dataset_common.py of Cosmos Policy).

An epoch is laid out as demonstrations, successful rollouts, failed rollouts; what is too short for its share is
repeated. Demonstrations train the policy; each rollout sample trains the world model or the value, by a fair coin. So
the shares 0.5 and 0.1 of demonstrations give the published 50/25/25 and, for planning, 10/45/45.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from cosmos_robot.errors import InputError

Source = Literal["demo", "success_rollout", "failure_rollout"]
SOURCES: Final[tuple[Source, ...]] = ("demo", "success_rollout", "failure_rollout")
JOINT_SHARE: Final = 0.5
PLANNING_SHARE: Final = 0.1


@dataclass(frozen=True)
class EpochMix:
    """Steps that are there of each source, and how many places of an epoch each gets."""

    there: tuple[int, int, int]
    places: tuple[int, int, int]

    def __len__(self) -> int:
        return sum(self.places)

    def at(self, place: int) -> tuple[Source, int]:
        """The source of ``place``, and which of its steps stands there. Raises InputError outside the epoch."""
        first = 0
        for source, count, there in zip(SOURCES, self.places, self.there, strict=True):
            if first <= place < first + count:
                return source, (place - first) % there
            first += count
        raise InputError(f"epoch: place {place} of {first}")


def epoch_mix(
    demos: int, successes: int, failures: int, demo_share: float = JOINT_SHARE, success_share: float = 0.5
) -> EpochMix:
    """Places so that no step is left out and the shares hold.

    demos, successes, failures: steps of each. demo_share: of demonstrations in the epoch. success_share: of successful
    rollouts among the rollouts. A share of 0 leaves its source out; a source without steps leaves its share to the
    others. Raises InputError for shares outside 0..1, negative counts, or nothing at all.
    """
    if not (0 <= demo_share <= 1 and 0 <= success_share <= 1) or min(demos, successes, failures) < 0:
        raise InputError(
            f"epoch: got shares {demo_share} and {success_share} of {demos}, {successes} and {failures} steps; "
            "expected shares from 0 to 1 and no negative counts"
        )
    good, bad = _shared(successes, failures, success_share)
    first, rollouts = _shared(demos, good + bad, demo_share)
    if rollouts != good + bad:
        good, bad = _split(rollouts, good, bad, success_share)
    if not first + good + bad:
        raise InputError("epoch: no steps have a share; collect some, or change the shares")
    return EpochMix((demos, successes, failures), (first, good, bad))


def _shared(first: int, second: int, share: float) -> tuple[int, int]:
    """Both counts, the one that is too small for its share raised."""
    if not first or not share:
        return 0, second
    if not second or share == 1:
        return first, 0
    wanted = int(second * share / (1 - share))
    return (wanted, second) if wanted > first else (first, int(first * (1 - share) / share))


def _split(total: int, good: int, bad: int, share: float) -> tuple[int, int]:
    if not good or not bad:
        return (total, 0) if good else (0, total if bad else 0)
    first = int(total * share)
    return first, total - first
