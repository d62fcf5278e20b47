"""What an evaluation takes for granted about a suite unless it is told otherwise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SuiteRules:
    """settle_steps: steps of no motion at the start. budget: control steps, None where none is published.
    has_prompt_source: whether instructions come in two wordings. packages: software that its results depend on, beside
    what all depend on."""

    settle_steps: int = 0
    budget: int | None = None
    has_prompt_source: bool = False
    packages: tuple[str, ...] = ()


def suite_rules(suite: str) -> SuiteRules:
    """The rules of ``suite``: LIBERO's as published, PushT's as gym-pusht registers it, none for the others."""
    family = suite.split("_")[0]
    if family == "libero":
        from cosmos_robot.envs.libero import STEP_BUDGETS, base_suite

        return SuiteRules(10, STEP_BUDGETS.get(base_suite(suite)), True)
    if family == "fake":
        return SuiteRules(10, None, True)
    if family == "pusht":
        from cosmos_robot.envs.pusht import STEP_BUDGET

        return SuiteRules(0, STEP_BUDGET, packages=("gym-pusht", "pymunk"))
    return SuiteRules()
