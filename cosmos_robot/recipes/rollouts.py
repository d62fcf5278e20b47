"""The rollouts of a policy, as a command: who drives, where, and the table of what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cosmos_robot.contract import load_contract
from cosmos_robot.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from cosmos_robot.eval.entrants import Entrant
    from cosmos_robot.eval.rollouts import Collected
    from cosmos_robot.recipes import RolloutFlags


def record_rollouts(
    policy: str, out: Path, envs: Sequence[str], episodes: int, first_seed: int, workers: int, flags: RolloutFlags
) -> Collected:
    """Collect the rollouts and print what came of them; ``cosmos-robot collect`` has the arguments in words.

    Raises UnknownNameError with the nearest names of policies and environments before anything is started.
    """
    from rich.console import Console

    from cosmos_robot.eval.rollouts import RolloutRules, collect_rollouts, rollout_jobs

    jobs = rollout_jobs(envs, episodes, first_seed)
    entrant = find_driver(policy, flags)
    contract = entrant.policy.contract
    rules = RolloutRules(
        execute=contract.model.execute if flags.execute is None else flags.execute,
        rate_hz=contract.robot.rate_hz,
        seed=flags.seed,
        max_steps=flags.max_steps,
        noise=flags.noise,
    )
    collected = collect_rollouts(entrant, jobs, rules, out, hdf5=flags.hdf5, workers=workers, python=flags.python)
    console = Console(highlight=False)
    console.print(summary(collected))
    for error in collected.lost:
        console.print(f"lost: {error.suite}/{error.task} seed {error.init}: {error.message}", style="red", markup=False)
    console.print(f"{out}, pictures in {out}.png", soft_wrap=True)
    return collected


def find_driver(policy: str, flags: RolloutFlags) -> Entrant:
    """The policy that is to drive. Raises UnknownNameError with the nearest names, InputError where the flags do not
    fit it."""
    from cosmos_robot.eval.entrants import Entrant, open_entrant, open_planner
    from cosmos_robot.policies import FAKES, load_policy

    if policy in FAKES:
        if flags.contract is None or flags.plan is not None:
            raise InputError(f"--policy {policy} acts under a contract and searches nothing; say which with --contract")
        kind = "zero" if policy == "zero" else "random"
        return Entrant(load_policy(kind, contract=load_contract(flags.contract)), kind, None, None, kind)
    if flags.contract is not None:
        raise InputError(f"--contract is for the policies {' and '.join(FAKES)}; {policy!r} brings its own")
    chosen = {"device": flags.device, "threads": flags.threads}
    return open_planner(policy, flags.plan, **chosen) if flags.plan else open_entrant(policy, **chosen)


def summary(collected: Collected) -> Table:
    """Per environment: how many episodes, successes and decisions, and the mean score."""
    from rich.table import Table

    table = Table("environment", "episodes", "success", "mean score", "decisions", box=None, pad_edge=False)
    places = dict.fromkeys((info.suite, info.task) for info in collected.infos)
    for suite, task in places:
        own = [info for info in collected.infos if (info.suite, info.task) == (suite, task)]
        score = sum(info.score or 0.0 for info in own) / len(own)
        decisions = sum(len(info.noise_seeds) for info in own)
        row = (f"{suite}/{task}", len(own), sum(info.success for info in own), f"{score:.2f}", decisions)
        table.add_row(*map(str, row))
    return table
