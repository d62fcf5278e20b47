"""Best-of-N search: propose chunks, imagine where each leads, score that, and act on the best.

The procedure of Cosmos Policy (arXiv 2601.16163, planning): N proposals of the policy, three imagined futures of each,
five values of each future, one number for each proposal, the highest wins.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import Contract
from cosmos_robot.errors import InputError
from cosmos_robot.planning.evaluate import Evaluator, Onward
from cosmos_robot.planning.executors import Executor, InProcess
from cosmos_robot.planning.plan import Candidate, Plan, PlannerSettings, Task, candidate_seeds
from cosmos_robot.planning.values import choose, disagreement
from cosmos_robot.policies.base import Policy, ValueModel, WorldModel, check_seeds
from cosmos_robot.types import Observation


class Planner:
    """Decides by search. Stateless: the same observation and seed give the same plan, unless time cuts it short."""

    def __init__(
        self,
        plain: Policy,
        executor: Executor,
        settings: PlannerSettings,
        *,
        cameras: tuple[str, ...] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """plain: the policy that answers where no candidate was scored; the executor's models should propose as it
        does. cameras: that anybody reads, those of ``plain`` if not given. clock: seconds, never going back."""
        self.plain, self.executor, self.settings, self.clock = plain, executor, settings, clock
        self.contract: Contract = plain.contract
        self.cameras = tuple(plain.cameras if cameras is None else cameras)
        self._requests = itertools.count()

    def plan(
        self,
        observation: Observation,
        seed: int,
        deadline_s: float | None = None,
        committed: NDArray[np.float64] | None = None,
    ) -> Plan:
        """The best of the candidates that were scored by ``deadline_s`` (seconds from now; the settings' if None).

        Candidate 0 has ``seed`` itself, so that it is what the plain policy would do; where nothing was scored it is
        the answer, and ``Plan.why`` says so. committed: as in ``Policy.act``. Raises InputError for a deadline below 0,
        and what the plain policy raises where it is needed and fails too.
        """
        check_seeds("plan", "observations", [observation], [seed])
        limit = self.settings.deadline_s if deadline_s is None else deadline_s
        if limit is not None and not limit >= 0:
            raise InputError(f"plan: deadline_s must be at least 0, got {limit}")
        began = self.clock()
        until = None if limit is None else began + limit
        found = self._search(observation, seed, until, committed)
        best = choose([c.score if not c.rejected else np.nan for c in found], self.settings.ties)
        if best is None:
            return self._plain(observation, seed, committed, found, began)
        chosen = found[best]
        assert chosen.chunk is not None
        scored = sum(not c.rejected for c in found)
        why = f"best of {scored} scored, of {len(found)} candidates"
        return Plan(chosen.chunk, chosen, tuple(found), True, why, self.clock() - began)

    def close(self) -> None:
        """End the executor's workers."""
        self.executor.close()

    def _search(
        self, observation: Observation, seed: int, until: float | None, committed: NDArray[np.float64] | None
    ) -> list[Candidate]:
        """Rounds of n candidates: one, and more while values disagree and the budget lasts."""
        settings, request = self.settings, next(self._requests)
        most = settings.n_most or settings.n
        seeds = candidate_seeds(seed, most)
        found: list[Candidate] = []
        while len(found) < most:
            indices = tuple(range(len(found), min(len(found) + settings.n, most)))
            known = tuple(c for c in found if c.chunk is not None)
            task = Task(request, observation, indices, tuple(seeds[i] for i in indices), None, known, committed)
            if until is not None and self.clock() >= until:
                found += task.lost("not begun: the deadline") if not found else []
                break
            found += self.executor.run(task, until, self.clock)
            if disagreement([c.values for c in found]) <= settings.disagree_above:
                break
        return found

    def _plain(
        self,
        observation: Observation,
        seed: int,
        committed: NDArray[np.float64] | None,
        found: Sequence[Candidate],
        began: float,
    ) -> Plan:
        """The plain policy's own candidate, made here if no worker brought it."""
        base = found[0]
        if base.chunk is None:
            rows = None if committed is None else [committed]
            base = replace(base, chunk=self.plain.act([observation], [seed], rows)[0])
        reasons = ", ".join(dict.fromkeys(c.rejected for c in found))
        why = f"the plain policy's own: none of {len(found)} candidates was scored ({reasons})"
        assert base.chunk is not None
        return Plan(base.chunk, base, (base, *found[1:]), False, why, self.clock() - began)


def best_of_n(
    policy: Policy,
    world: WorldModel | None,
    value: ValueModel,
    settings: PlannerSettings,
    *,
    onward: Onward | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Planner:
    """A planner whose models are in this process: one call proposes all candidates, one imagines all their futures, one
    scores them all (``settings.batch`` cuts them). Raises ContractError where the models do not fit each other."""
    evaluator = Evaluator(policy, world, value, settings, onward=onward, clock=clock)
    executor = InProcess(evaluator, settings.batch)
    return Planner(policy, executor, settings, cameras=evaluator.cameras, clock=clock)
