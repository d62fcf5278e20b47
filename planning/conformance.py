"""What every planner is checked for, in the manner of ``policies.conformance``:

    run(lambda: planner)

The planner is also checked as the policy that it is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cosmos_robot.errors import InputError
from cosmos_robot.planning.best_of_n import Planner
from cosmos_robot.planning.policy import PlanningPolicy
from cosmos_robot.policies import conformance
from cosmos_robot.policies.conformance import some_observation


def run(make: Callable[[], Planner]) -> list[str]:
    """Make a planner and run every check on it, and a policy's on ``PlanningPolicy``; returns the names."""
    planner = make()
    for check in CHECKS.values():
        check(planner)
    return [*CHECKS, *conformance.run(lambda: PlanningPolicy(planner))]


def check_every_candidate_is_logged(planner: Planner) -> None:
    """As many candidates as asked for, by index, with distinct seeds; each has values, or says why not."""
    found = planner.plan(some_observation(planner.contract), 5)
    settings, candidates = planner.settings, found.candidates
    assert settings.n <= len(candidates) <= (settings.n_most or settings.n), f"{len(candidates)} candidates"
    assert [c.index for c in candidates] == list(range(len(candidates))), "candidates out of order"
    assert len({c.seed for c in candidates}) == len(candidates), "two candidates have the same seed"
    assert len({c.request for c in candidates}) == 1, "candidates of several requests"
    for c in candidates:
        assert bool(c.rejected) != bool(np.isfinite(c.score)), f"candidate {c.index}: {c.score}, {c.rejected!r}"
        assert c.rejected or c.values.size == settings.members, f"candidate {c.index} has {c.values.shape} values"


def check_best_is_chosen(planner: Planner) -> None:
    """What is chosen has the highest score, and its chunk is returned; without any score, the plain policy's own."""
    found = planner.plan(some_observation(planner.contract), 6)
    assert np.array_equal(found.chunk.values, found.chosen.chunk.values), "the chunk is not the chosen candidate's"
    scores = [c.score for c in found.candidates if not c.rejected]
    assert found.planned == bool(scores), "planned, and nothing scored, or the other way round"
    assert not scores or found.chosen.score == max(scores), f"chosen {found.chosen.score}, best {max(scores)}"
    assert found.why, "does not say why"


def check_base_is_the_plain_policys(planner: Planner) -> None:
    """Candidate 0 is what the plain policy does with the same seed."""
    seen = some_observation(planner.contract)
    base, plain = planner.plan(seen, 7).candidates[0], planner.plain.act([seen], [7])[0]
    limit = conformance.BATCH_TOLERANCE * conformance.command_range(planner.contract)
    assert base.seed == 7, f"candidate 0 has seed {base.seed}, asked was 7"
    assert np.abs(base.chunk.values - plain.values).max() <= limit, "candidate 0 is not the plain policy's"


def check_deadline_0_is_the_plain_policy(planner: Planner) -> None:
    """Without any time the plain policy answers, and the plan says so; a deadline below 0 is refused."""
    seen = some_observation(planner.contract)
    found = planner.plan(seen, 8, deadline_s=0)
    assert not found.planned and found.chosen.index == 0, "planned in no time"
    assert np.array_equal(found.chunk.values, planner.plain.act([seen], [8])[0].values), "not the plain policy's chunk"
    try:
        planner.plan(seen, 8, deadline_s=-1)
    except InputError:
        return
    raise AssertionError("a deadline of -1 s was accepted")


CHECKS: dict[str, Callable[[Planner], None]] = {
    "every_candidate_is_logged": check_every_candidate_is_logged,
    "best_is_chosen": check_best_is_chosen,
    "base_is_the_plain_policys": check_base_is_the_plain_policys,
    "deadline_0_is_the_plain_policy": check_deadline_0_is_the_plain_policy,
}
