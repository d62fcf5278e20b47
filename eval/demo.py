"""A few real episodes with a shipped checkpoint, and a report to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from cosmos_robot.errors import InputError
from cosmos_robot.eval.entrants import Entrant, open_entrant
from cosmos_robot.eval.progress import RunProgress
from cosmos_robot.eval.protocol import EpisodeRules, Job, current_versions, fields_named
from cosmos_robot.eval.report import Tracer, write_report
from cosmos_robot.eval.results import EpisodeError
from cosmos_robot.eval.runner import Filming, Runner, RunSettings

DEMO_TASKS = ("libero_object/3", "libero_object_swap/3", "libero_spatial/0")
"""A task as it is shipped, one whose objects LIBERO-PRO has exchanged, and one of another suite."""

MAX_STEPS = 280


@dataclass(frozen=True)
class DemoConfig:
    """Run a few LIBERO episodes and write films and an HTML report."""

    ckpt: str = "tiny-libero"
    """Shipped name, folder or hub id of the checkpoint."""
    episodes: int = 3
    """How many episodes, taken from the tasks in turn."""
    out: Path = Path("demo_out")
    """Folder for report.html and films/."""
    tasks: tuple[str, ...] = DEMO_TASKS
    """Environment names."""
    init_offset: int = 0
    """First init state of each task."""
    blind: bool = False
    """Run the checkpoint's blind control instead."""
    max_steps: int = MAX_STEPS
    """Steps after which an episode has failed."""
    seed: int = 0
    """From which the seed of every decision is derived."""
    workers: int = 2
    """Simulator processes."""
    device: str = "cpu"
    """Where the policy computes."""
    threads: int = 1
    """Threads of the policy's computations on CPU."""


@dataclass(frozen=True)
class DemoOutcome:
    """What a demo came to. errors: episodes that could not be run."""

    successes: int
    episodes: int
    report: Path
    errors: tuple[EpisodeError, ...]


def main_demo(config: Annotated[DemoConfig, tyro.conf.arg(name="")]) -> int:
    """Run the demo and print its score last. Exit status 1 if an episode could not be run."""
    console = Console()
    entrant = open_entrant(config.ckpt, blind=config.blind, device=config.device, threads=config.threads)
    outcome = run_demo(entrant, config)
    for error in outcome.errors:
        line = f"not run: {error.suite}/{error.task} init {error.init}: {error.message}"
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {outcome.report}", highlight=False, soft_wrap=True)
    console.print(f"success: {outcome.successes}/{outcome.episodes}", highlight=False)
    return 1 if outcome.errors else 0


def run_demo(entrant: Entrant, config: DemoConfig, settings: RunSettings | None = None) -> DemoOutcome:
    """Run the episodes of ``config`` and write ``report.html`` and ``films/`` into ``config.out``.

    Raises InputError if that is a file, RenderError if this machine can draw no pictures.
    """
    if config.out.exists() and not config.out.is_dir():
        raise InputError(f"--out: {config.out} is a file; name a folder")
    contract = entrant.policy.contract
    jobs = demo_jobs(config)
    with fields_named():
        rules = EpisodeRules(
            max_steps=config.max_steps,
            execute=contract.model.execute,
            seed=config.seed,
            rate_hz=contract.robot.rate_hz,
            cameras=contract.robot.cameras,
            versions=current_versions(),
        )
    filming = Filming(config.out / "films", tuple(camera.name for camera in contract.robot.cameras))
    tracer = Tracer(contract, looks=bool(entrant.policy.cameras))
    with RunProgress("demo", len(jobs), (), Console(stderr=True)) as progress:
        runner = Runner(entrant.policy, rules, settings or RunSettings(config.workers, filming), [tracer, progress])
        errors = runner.run(jobs)
    order = {(job.suite, job.task, job.init): i for i, job in enumerate(jobs)}
    traces = sorted(tracer.traces, key=lambda t: order[t.record.suite, t.record.task, t.record.init])
    title = f"cosmos-robot demo: {entrant.checkpoint or entrant.policy_name}"
    report = write_report(config.out / "report.html", entrant, rules, traces, filming.folder, title)
    return DemoOutcome(sum(t.record.success for t in traces), len(traces), report, tuple(errors))


def demo_jobs(config: DemoConfig) -> list[Job]:
    """``episodes`` jobs, the tasks in turn and a new init state with each round."""
    if config.episodes < 1 or not config.tasks:
        raise InputError(f"expected at least one episode and one task, got {config.episodes} and {config.tasks}")
    if config.init_offset < 0:
        raise InputError(f"init_offset: expected at least 0, got {config.init_offset}")
    names: Sequence[str] = config.tasks
    jobs = []
    for i in range(config.episodes):
        suite, _, task = names[i % len(names)].partition("/")
        if not task.isdecimal():
            raise InputError(f"task {names[i % len(names)]!r}: expected SUITE/INDEX, for instance libero_object/3")
        jobs.append(Job(suite, int(task), config.init_offset + i // len(names)))
    return jobs
