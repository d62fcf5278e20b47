"""Probes of time: the control rate, the settle steps, the budget, and the official initial states."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from cosmos_robot.envs.probes.trial import Finding, NotApplicable, Trial, verdict, without_settling

RATE_STEPS = 10
MOST_STEPS = 1000


def probe_rate(trial: Trial) -> Iterator[Finding]:
    """Simulated time per control step is one period of the contract's rate."""
    trial.make_room(RATE_STEPS)
    before = trial.truth.seconds()
    if before is None:
        raise NotApplicable("there is no simulated time")
    trial.run(trial.hold(), RATE_STEPS)
    rate = RATE_STEPS / (trial.truth.seconds() - before)
    said = trial.spec.rate_hz
    yield verdict("rate", "robot.rate_hz", abs(rate - said) < 0.01 * said, f"{rate:.2f} Hz", f"{said:.2f} Hz")


def probe_init_states(trial: Trial) -> Iterator[Finding]:
    """Initial state k is the one in the file, written once, and k + 1 another one."""
    count = trial.env.init_state_count
    if not count:
        raise NotApplicable("there are no official initial states")
    indices = sorted({0, 1, count - 1})
    with without_settling(trial.env):
        apart = []
        for index in indices:
            trial.begin(init_state=index)
            apart.append(float(np.abs(trial.truth.start() - trial.truth.recorded_start(index)).max()))
    recorded = [trial.truth.recorded_start(index) for index in indices]
    distinct = all(not np.array_equal(a, b) for a, b in pairwise(recorded))
    yield verdict(
        "init_states",
        "protocol.init_offset",
        max(apart) == 0 and (distinct or count == 1),
        f"states {indices} differ from their file by {max(apart):.1e}",
        "0, and no two alike",
    )


def probe_steps(trial: Trial) -> Iterator[Finding]:
    """The policy gets the steps of the budget, and the scene its settle steps before them."""
    yield from _settling(trial)
    budget = trial.env.step_budget
    if budget is None or budget > MOST_STEPS:
        yield Finding("steps", "protocol.max_steps", "not applicable", why=f"a budget of {budget} is not waited for")
        return
    row, steps = trial.hold(), 0
    while trial.env.running and steps <= MOST_STEPS:
        ended = trial.env.step(row)
        steps += 1
    if ended[2]:
        yield Finding("steps", "protocol.max_steps", "not applicable", why=f"the task succeeded after {steps} steps")
        return
    yield verdict("steps", "protocol.max_steps", steps == budget, f"{steps} steps", f"{budget} steps")


def _settling(trial: Trial) -> Iterator[Finding]:
    options = {"init_state": 0} if trial.env.init_state_count else {}
    with without_settling(trial.env):
        trial.begin(**options)
    unsettled = trial.truth.seconds()
    trial.begin(**options)
    if unsettled is None:
        yield Finding("steps", "protocol.settle_steps", "not applicable", why="there is no simulated time")
        return
    steps = (trial.truth.seconds() - unsettled) * trial.spec.rate_hz
    said = trial.env.settle_steps
    yield verdict("steps", "protocol.settle_steps", abs(steps - said) < 0.01, f"{steps:.1f} steps", f"{said} steps")
