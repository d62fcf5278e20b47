"""One evaluation from header to result file: log, progress, resume, Ctrl-C, table. The same for every benchmark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from cosmos_robot import envs
from cosmos_robot.errors import CosmosRobotError, InputError, Interrupted, UnknownNameError
from cosmos_robot.eval.progress import RunProgress
from cosmos_robot.eval.protocol import Job
from cosmos_robot.eval.results import (
    EpisodeLog,
    EpisodeRecord,
    RunHeader,
    build_result,
    log_path,
    read_result,
    remaining,
    write_result,
)
from cosmos_robot.eval.runner import Listener, Runner, RunSettings

if TYPE_CHECKING:
    from cosmos_robot.policies.base import Policy


def suite_tasks(suite: str, chosen: Sequence[int] = ()) -> tuple[int, ...]:
    """The task indices of ``suite``, or ``chosen`` once they are known to exist.

    Raises UnknownNameError with the nearest suites, or with the tasks there are.
    """
    names = envs.list_envs(suite.split("_")[0])
    tasks = [int(name.rsplit("/", 1)[1]) for name in names if name.rsplit("/", 1)[0] == suite]
    if not tasks:
        raise UnknownNameError("suite", suite, {name.rsplit("/", 1)[0] for name in names})
    for task in chosen:
        if task not in tasks:
            raise UnknownNameError(f"task of {suite}", str(task), map(str, tasks))
    return tuple(chosen) or tuple(tasks)


def evaluate(
    policy: Policy,
    header: RunHeader,
    result: Path,
    settings: RunSettings,
    *,
    fresh: bool = False,
    console: Console | None = None,
    listeners: Sequence[Listener] = (),
) -> dict[str, Any]:
    """Run what is left of ``header.protocol``, write ``result`` and return its content.

    Finished episodes are kept beside it in ``<result>.episodes.jsonl`` and not run again; ``fresh`` discards them.
    Raises InputError if either file belongs to another run, Interrupted on Ctrl-C with everything finished saved.
    """
    protocol, began = header.protocol, time.monotonic()
    console = console or Console(stderr=True)
    _require_own(result, header, fresh)
    jobs = list(protocol.jobs())
    log = EpisodeLog(log_path(result), header, fresh=fresh)
    try:
        todo = remaining(jobs, log.finished)
        before = len(jobs) - len(todo)
        done = [log.finished[job.key] for job in jobs if job.key in log.finished]
        if done:
            console.print(f"{before} of {len(jobs)} episodes taken from {log.path}; --fresh runs them again")
        with RunProgress(protocol.suite, len(jobs), done, console) as progress:
            errors = Runner(policy, protocol, settings, [_Keep(log), progress, *listeners]).run(todo)
    except KeyboardInterrupt:
        raise Interrupted(_saved(jobs, log)) from None
    except CosmosRobotError:
        if log.finished:
            console.print(_saved(jobs, log), soft_wrap=True)
        raise
    finally:
        log.close()
    records = [log.finished[job.key] for job in jobs if job.key in log.finished]
    content = build_result(header, records, errors, seconds=time.monotonic() - began, resumed=before)
    write_result(result, content)
    return content


def print_result(content: dict[str, Any], console: Console) -> None:
    """The table of tasks with Wilson 95 % intervals, errors, and the line ``success: k/n``."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading, justify in (("task", "right"), ("instruction", "left"), ("success", "right"), ("rate", "right")):
        table.add_column(heading, justify=justify)
    table.add_column("95 % interval")
    for row in content["per_task"]:
        table.add_row(str(row["task"]), row["instruction"] or "", *_cells(row))
    table.add_section()
    table.add_row("all", content["protocol"]["suite"], *_cells(content), style="bold")
    console.print(table)
    for error in content["errors"]:
        line = f"not run: {error['suite']}/{error['task']} init {error['init']}: {error['message']}"
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    for name, words in (("score", "score at the end"), ("best_score", "best score")):
        if name in content:
            low, high = content[f"{name}_ci95"]
            console.print(f"{words}: {content[name]:.3f} ({low:.3f} to {high:.3f})", highlight=False)
    console.print(f"success: {content['successes']}/{content['episodes']}", highlight=False)


class _Keep(Listener):
    """Puts each finished episode into the log."""

    def __init__(self, log: EpisodeLog):
        self._log = log

    def on_episode(self, job: Job, record: EpisodeRecord) -> None:
        self._log.append(record)


def _require_own(path: Path, header: RunHeader, fresh: bool) -> None:
    """Refuse a path that is no place for a result, or holds something else. Raises InputError."""
    if path.suffix != ".json" or path.is_dir():
        raise InputError(f"the result should be a file ending in .json, got {path}")
    if not path.exists():
        return
    differences = read_result(path)[0].differences(header)
    if differences and not fresh:
        raise InputError(
            f"{path} is the result of another run:"
            + "".join(f"\n  - {d}" for d in differences)
            + "\nwrite to another --json, or pass --fresh to replace it"
        )


def _saved(jobs: Sequence[Job], log: EpisodeLog) -> str:
    log.close_after_stop()
    kept = len(jobs) - len(remaining(jobs, log.finished))
    return f"{kept} of {len(jobs)} episodes are saved in {log.path}; the same command goes on from there"


def _cells(row: dict[str, Any]) -> tuple[str, str, str]:
    if not row["episodes"]:
        return "0/0", "", ""
    low, high = row["ci95"]
    return f"{row['successes']}/{row['episodes']}", f"{row['success_rate']:.2f}", f"{low:.2f} to {high:.2f}"
