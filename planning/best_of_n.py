"""Best-of-N search: propose chunks, imagine where each leads, score that, and act on the best.

The procedure of Cosmos Policy (arXiv 2601.16163, planning): N proposals of the policy, three imagined futures of each,
five values of each future, one number for each proposal, the highest wins.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

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


@dataclass(eq=False)
class _Moment:
    """One decision being made, and the candidates that are there."""

    observation: Observation
    seed: int
    request: int
    committed: NDArray[np.float64] | None
    found: list[Candidate] = field(default_factory=list)

    def task(self, count: int, most: int) -> Task:
        """The next ``count`` candidates of at most ``most``."""
        indices = tuple(range(len(self.found), min(len(self.found) + count, most)))
        seeds = candidate_seeds(self.seed, most)
        known = tuple(c for c in self.found if c.chunk is not None)
        return Task(
            self.request, self.observation, indices, tuple(seeds[i] for i in indices), None, known, self.committed
        )


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
        return self.plan_all([observation], [seed], deadline_s, None if committed is None else [committed])[0]

    def plan_all(
        self,
        observations: Sequence[Observation],
        seeds: Sequence[int],
        deadline_s: float | None = None,
        committed: Sequence[NDArray[np.float64]] | None = None,
    ) -> list[Plan]:
        """``plan`` for several moments, such as those of several robots, whose candidates share the models' calls. All
        have the same deadline; a plan's seconds are an even share."""
        check_seeds("plan", "observations", observations, seeds)
        limit = self.settings.deadline_s if deadline_s is None else deadline_s
        if limit is not None and not limit >= 0:
            raise InputError(f"plan: deadline_s must be at least 0, got {limit}")
        began = self.clock()
        until = None if limit is None else began + limit
        moments = [
            _Moment(o, int(s), next(self._requests), None if committed is None else committed[i])
            for i, (o, s) in enumerate(zip(observations, seeds, strict=True))
        ]
        self._search(moments, until)
        decided = [self._decided(moment) for moment in moments]
        share = (self.clock() - began) / max(1, len(moments))
        return [replace(plan, seconds=share, settings=self.settings.text) for plan in decided]

    def close(self) -> None:
        """End the executor's workers."""
        self.executor.close()

    def _search(self, moments: Sequence[_Moment], until: float | None) -> None:
        """Rounds of n candidates each: one, and more for those whose values disagree, while the budget lasts."""
        settings, active = self.settings, list(moments)
        most = settings.n_most or settings.n
        while active:
            tasks = [moment.task(settings.n, most) for moment in active]
            if until is not None and self.clock() >= until:
                for moment, task in zip(active, tasks, strict=True):
                    moment.found += [] if moment.found else task.lost("not begun: the deadline")
                return
            for moment, found in zip(active, self.executor.run_all(tasks, until, self.clock), strict=True):
                moment.found += found
            active = [
                m
                for m in active
                if len(m.found) < most and disagreement([c.values for c in m.found]) > settings.disagree_above
            ]

    def _decided(self, moment: _Moment) -> Plan:
        found = moment.found
        best = choose([c.score if not c.rejected else np.nan for c in found], self.settings.ties)
        if best is None:
            return self._plain(moment)
        chosen = found[best]
        assert chosen.chunk is not None
        scored = sum(not c.rejected for c in found)
        return Plan(chosen.chunk, chosen, tuple(found), True, f"best of {scored} scored, of {len(found)} candidates", 0)

    def _plain(self, moment: _Moment) -> Plan:
        """The plain policy's own candidate, made here if no worker brought it."""
        base, *others = moment.found
        if base.chunk is None:
            rows = None if moment.committed is None else [moment.committed]
            base = replace(base, chunk=self.plain.act([moment.observation], [moment.seed], rows)[0])
        reasons = ", ".join(dict.fromkeys(c.rejected for c in moment.found))
        why = f"the plain policy's own: none of {len(moment.found)} candidates was scored ({reasons})"
        assert base.chunk is not None
        return Plan(base.chunk, base, (base, *others), False, why, 0)


def best_of_n(
    policy: Policy,
    world: WorldModel | Sequence[WorldModel] | None,
    value: ValueModel | Sequence[ValueModel],
    settings: PlannerSettings,
    *,
    onward: Onward | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Planner:
    """A planner whose models are in this process: one call proposes all candidates, one imagines all their futures, one
    scores them all (``settings.batch`` cuts them). Several world models or values are the members of an ensemble, see
    ``Evaluator``. Raises ContractError where the models do not fit each other."""
    evaluator = Evaluator(policy, world, value, settings, onward=onward, clock=clock)
    executor = InProcess(evaluator, settings.batch)
    return Planner(policy, executor, settings, cameras=evaluator.cameras, clock=clock)
