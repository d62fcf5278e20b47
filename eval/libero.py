"""Score a policy on a suite: LIBERO, LIBERO-PRO, or any other environment family with init states.

    python eval/libero.py --ckpt tiny-libero --suite libero_object --episodes 10 --json out.json

is the same as ``cosmos-robot eval ...``.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # The folder of a script comes first on the path, and this one's libero.py and statistics.py would hide the
    # simulator and a standard module, here and in every worker.
    _here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != _here]

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from cosmos_robot.contract import Contract
from cosmos_robot.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from cosmos_robot.eval.entrants import Entrant
    from cosmos_robot.eval.protocol import EvalProtocol


@dataclass(frozen=True)
class EvalConfig:
    """Score a policy on a suite, with Wilson 95 % intervals. A killed or interrupted run resumes."""

    ckpt: str = "tiny-libero"
    """Shipped name, folder or hub id of the checkpoint; also the contract that a control policy works under."""
    suite: str = "libero_object"
    """Suite, for instance libero_spatial, libero_object_swap or pusht."""
    tasks: tuple[int, ...] = ()
    """Task indices; all of the suite when none is given."""
    episodes: int = 10
    """Episodes per task, from init states init_offset, init_offset + 1, ..."""
    init_offset: int = 0
    """First init state."""
    protocol: Path | None = None
    """Protocol or result file whose suite, episodes and rules are used again, in place of the flags for them."""
    json: Path | None = None
    """Result file; runs/eval/POLICY.SUITE.json when not given. Finished episodes are kept beside it."""
    policy: Literal["checkpoint", "random", "zero"] = "checkpoint"
    """The checkpoint, or a control: random actions, or none."""
    blind: bool = False
    """Score the checkpoint's blind control, CKPT-blind, trained and run without pictures."""
    plan: str | None = None
    """Decide by search, such as best-of-8, quick-of-8 (fewer sampler steps) or best-of-8:futures=1,value_steps=1."""
    planning_ckpt: str | None = None
    """Checkpoint that imagines and scores for the search, if not CKPT itself."""
    executor: str = "in-process"
    """How a search's candidates are worked out: in-process, threads:COUNT or ray:COUNT."""
    paired: bool = False
    """Run the plain policy on the same episodes with the same seeds, too, and compare; needs a plan."""
    videos: Path | None = None
    """Folder for films of every episode."""
    video_every: int = 2
    """Control steps per film frame; each frame costs two pictures."""
    settle_steps: int | None = None
    """Steps of no motion before the policy acts; the suite's (LIBERO: 10) when not given."""
    max_steps: int | None = None
    """Step budget; the suite's published one when not given."""
    settle_counts: bool = False
    """Count settle steps in the budget."""
    prompt_source: Literal["scene", "name"] | None = None
    """LIBERO: take the instruction from the scene file (when not given) or from the task's name."""
    execute: int | None = None
    """Rows run per decision; the contract's when not given."""
    seed: int = 0
    """From which the seed of every reset and every decision is derived."""
    one_at_a_time: bool = False
    """Compute decisions singly: outcomes then do not depend on which episodes wait together."""
    workers: int = 3
    """Simulator processes. One more than there are cores keeps them busy while the policy computes."""
    device: str = "cpu"
    """Where the policy computes."""
    threads: int = 1
    """Threads of the policy's computations on CPU."""
    fresh: bool = False
    """Discard what an earlier run left in the result file and its episode log."""


def main_eval(config: Annotated[EvalConfig, tyro.conf.arg(name="")]) -> int:
    """Run one evaluation, print its table, write its JSON. Exit status 1 if an episode could not be run."""
    from rich.console import Console

    from cosmos_robot.eval.entrants import open_entrant, open_planner

    console = Console()
    check_search(config)
    chosen = {"device": config.device, "threads": config.threads}
    if config.plan is None:
        entrant = open_entrant(config.ckpt, kind=config.policy, blind=config.blind, **chosen)
        content, result, _ = _run(config, entrant, config.json, console)
        return _shown(content, result, console)
    from cosmos_robot.eval.planning import PlanLog, paired_report

    entrant = open_planner(config.ckpt, config.plan, config.planning_ckpt, executor=config.executor, **chosen)
    searched, result, planning = _run(config, entrant, config.json, console, keep_plans=True)
    status = _shown(searched, result, console)
    if not config.paired:
        return status
    other, plain_result, plain = _run(
        config, open_entrant(config.ckpt, **chosen), result.with_suffix(".plain.json"), console
    )
    status = max(status, _shown(other, plain_result, console))
    decisions = PlanLog(_plan_log(result)).decisions()
    paired_report(result, plain_result, decisions, {"planning": planning, "plain policy": plain}, console)
    console.print(f"comparison: {result.with_suffix('.paired.json')}", highlight=False, soft_wrap=True)
    return status


def check_search(config: EvalConfig) -> None:
    """Raise InputError where the flags of a search do not fit the others."""
    of_search = config.paired or config.planning_ckpt is not None or config.executor != "in-process"
    if config.plan is None and of_search:
        raise InputError(
            "--paired, --planning-ckpt and --executor are about a search; say which with --plan, such as best-of-8"
        )
    if config.plan is not None and (config.policy != "checkpoint" or config.blind):
        raise InputError("--plan searches with a checkpoint's own models; drop --policy and --blind")


def _run(
    config: EvalConfig, entrant: Entrant, result: Path | None, console: Console, keep_plans: bool = False
) -> tuple[dict[str, Any], Path, dict[str, Any]]:
    """One evaluation: the result's content, its file, and what a decision cost. The search's reports are kept beside it
    with ``keep_plans``."""
    from cosmos_robot.eval.plan_pages import PlanGallery
    from cosmos_robot.eval.planning import PlanLog, Timed
    from cosmos_robot.eval.protocol import protocol_differences
    from cosmos_robot.eval.runner import Filming, Listener, RunSettings
    from cosmos_robot.eval.session import evaluate, suite_tasks

    saved = saved_protocol(config)
    suite = saved.suite if saved else config.suite
    tasks = suite_tasks(suite, saved.tasks if saved else config.tasks)
    budget = saved.max_steps if saved else step_budget(config)
    contract = entrant.policy.contract
    header = entrant.header(repeat(saved, contract) if saved else make_protocol(config, tasks, budget, contract))
    for difference in protocol_differences(saved or header.protocol, header.protocol):
        console.print(f"not as in {config.protocol}: {difference}", style="yellow", markup=False, soft_wrap=True)
    cameras = tuple(camera.name for camera in contract.robot.cameras)
    folder = config.videos and (config.videos / "plain" if config.paired and not keep_plans else config.videos)
    filming = Filming(folder, cameras, config.video_every) if folder else None
    result = result or Path("runs/eval") / f"{entrant.label}.{suite}.json"
    policy, settings = Timed(entrant.policy), RunSettings(config.workers, filming)
    listeners: list[Listener] = []
    if keep_plans:
        gallery = PlanGallery(contract, header.protocol.execute)
        entrant.policy.on_plan = gallery.offer
        listeners = [PlanLog(_plan_log(result), config.fresh), gallery]
    content = evaluate(policy, header, result, settings, fresh=config.fresh, listeners=listeners)
    drawn = gallery.write(result.with_suffix(".decisions.html")) if keep_plans else None
    if drawn:
        console.print(f"decisions, looked at: {drawn}", highlight=False, soft_wrap=True)
    return content, result, policy.cost


def _plan_log(result: Path) -> Path:
    return result.with_suffix(".decisions.jsonl")


def _shown(content: dict[str, Any], result: Path, console: Console) -> int:
    """Print a result; returns the exit status."""
    from cosmos_robot.eval.session import print_result

    print_result(content, console)
    console.print(f"result: {result}", highlight=False, soft_wrap=True)
    return 1 if content["errors"] else 0


def saved_protocol(config: EvalConfig) -> EvalProtocol | None:
    """The protocol that ``config`` names, if any. Raises InputError if a flag also says what it says."""
    from cosmos_robot.eval.protocol import EvalProtocol, load_protocol

    if config.protocol is None:
        return None
    plain = EvalConfig()
    shared = [name for name in EvalProtocol.model_fields if hasattr(plain, name)]
    clashing = [f"--{n.replace('_', '-')}" for n in shared if getattr(config, n) != getattr(plain, n)]
    if clashing:
        raise InputError(f"--protocol already says what {', '.join(clashing)} would say; drop one of them")
    return load_protocol(config.protocol)


def repeat(saved: EvalProtocol, contract: Contract) -> EvalProtocol:
    """``saved`` with the software of today. Raises InputError if its cameras or rate are not the contract's."""
    from cosmos_robot.eval.protocol import current_versions
    from cosmos_robot.eval.suites import suite_rules

    for name in ("cameras", "rate_hz"):
        want, have = getattr(saved, name), getattr(contract.robot, name)
        if want != have:
            raise InputError(f"{name}: the protocol says {want}, checkpoint {contract.model.name!r} {have}")
    return saved.model_copy(update={"versions": current_versions(suite_rules(saved.suite).packages)})


def step_budget(config: EvalConfig) -> int:
    """Policy steps per episode: as asked for, else the suite's published budget. Raises InputError if it has none."""
    from cosmos_robot.eval.suites import suite_rules

    budget = suite_rules(config.suite).budget if config.max_steps is None else config.max_steps
    if budget is None:
        raise InputError(f"no step budget is published for {config.suite!r}; give one with --max-steps")
    return budget


def make_protocol(config: EvalConfig, tasks: tuple[int, ...], budget: int, contract: Contract) -> EvalProtocol:
    """The protocol that ``config`` stands for. Raises InputError naming the field that is out of range."""
    from cosmos_robot.eval.protocol import EvalProtocol, current_versions, fields_named
    from cosmos_robot.eval.suites import suite_rules

    rules = suite_rules(config.suite)
    if config.prompt_source is not None and not rules.has_prompt_source:
        raise InputError(f"prompt_source: {config.suite} has one wording only; drop --prompt-source")
    with fields_named():
        return EvalProtocol(
            suite=config.suite,
            tasks=tasks,
            episodes=config.episodes,
            init_offset=config.init_offset,
            settle_steps=rules.settle_steps if config.settle_steps is None else config.settle_steps,
            max_steps=budget,
            settle_counts=config.settle_counts,
            prompt_source=(config.prompt_source or "scene") if rules.has_prompt_source else None,
            execute=contract.model.execute if config.execute is None else config.execute,
            seed=config.seed,
            one_at_a_time=config.one_at_a_time,
            rate_hz=contract.robot.rate_hz,
            cameras=contract.robot.cameras,
            versions=current_versions(rules.packages),
        )


if __name__ == "__main__":
    from cosmos_robot.cli import main

    sys.exit(main(["eval", *sys.argv[1:]]))
