"""Collecting demonstrations with several processes, so that a stop at any moment loses only the episodes in progress.

Finished episodes lie in ``<out>.staging/`` until all jobs are done; then the dataset is written to ``out``. Beside
them, ``log.jsonl`` keeps what became of every job, with the reason where it was not kept.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cosmos_robot.contract import RobotSpec
from cosmos_robot.data.lerobot_writing import require_absent
from cosmos_robot.data.sheet import write_sheet
from cosmos_robot.data.staging import Staging
from cosmos_robot.data.store import EpisodeStore, write_dataset
from cosmos_robot.data.workers import Demonstrator, DemonstratorSpec, Job, NotDemonstrated, Result, WorkerPool
from cosmos_robot.errors import InputError, Interrupted, WorkerError
from cosmos_robot.ownership import owned

__all__ = ["Collection", "Demonstrator", "DemonstratorSpec", "Job", "NotDemonstrated", "collect", "record"]

LOG_FILE = "log.jsonl"
COLLECTION_FILE = "collection.json"


@dataclass(frozen=True)
class Collection:
    """What a collection holds: ids of the jobs kept, failed (the demonstrator said so) and lost (error or crash).

    Lost jobs are tried again by the next run, failed ones are not.
    """

    staging: Path
    kept: tuple[str, ...]
    failed: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def success_share(self) -> float:
        """Kept among all jobs that were tried."""
        return len(self.kept) / max(1, len(self.kept) + len(self.failed) + len(self.lost))


def staging_folder(out: str | Path) -> Path:
    """Where the episodes of the dataset ``out`` wait while it is being collected."""
    out = Path(out)
    return out.with_name(out.name + ".staging")


def collect(
    jobs: Sequence[Job],
    demonstrator: DemonstratorSpec,
    robot: RobotSpec,
    out: str | Path,
    *,
    stride: int,
    notes: Mapping[str, Any] | None = None,
    keep_staging: bool = False,
    progress: bool = True,
    **options: Any,
) -> Collection:
    """``record`` the jobs, write the episodes as a dataset to ``out`` and a contact sheet to ``<out>.png``.

    stride, notes: as for ``write_dataset``. keep_staging: leave the lossless episodes behind. options: as for
    ``record``. Raises what these raise; CheckpointError at once, not after hours, if ``out`` is there already.
    """
    require_absent(Path(out))
    collection = record(jobs, demonstrator, robot, out, progress=progress, **options)
    about = {"failed": len(collection.failed), "lost": len(collection.lost), **(notes or {})}
    publish(out, collection.kept, robot, stride=stride, notes=about, progress=progress)
    if not keep_staging:
        shutil.rmtree(collection.staging)
    return collection


def publish(
    out: str | Path,
    keys: Sequence[str],
    robot: RobotSpec,
    *,
    stride: int,
    fps: int | None = None,
    notes: Mapping[str, Any],
    progress: bool,
) -> None:
    """Write the staged episodes ``keys`` as the dataset ``out``, and its contact sheet to ``<out>.png``.

    The rest is as for ``write_dataset``. Raises Interrupted on Ctrl-C; what is staged stays.
    """
    staging = Staging(staging_folder(out))
    about = {"stride": stride, "fps": fps, "notes": notes, "total": len(keys), "progress": progress}
    try:
        write_dataset((staging.load(key) for key in keys), out, robot, **about)
    except KeyboardInterrupt as stop:
        raise Interrupted(
            f"stopped while writing {out}; all {len(keys)} episodes are safe in {staging.folder}; "
            "run the same command again to write it"
        ) from stop
    write_sheet(EpisodeStore(out), f"{out}.png")


def record(
    jobs: Sequence[Job],
    demonstrator: DemonstratorSpec,
    robot: RobotSpec,
    out: str | Path,
    *,
    workers: int = 2,
    progress: bool = True,
    max_restarts: int = 3,
    job_seconds: float = 900.0,
) -> Collection:
    """Demonstrate ``jobs`` and stage the episodes; jobs that an earlier run finished are not repeated.

    Raises Interrupted on Ctrl-C and WorkerError when workers cannot be kept alive; in both cases the same call resumes.
    Raises InputError if the staging folder belongs to another demonstrator or robot.
    """
    if workers < 1:
        raise InputError(f"workers: got {workers}, expected at least 1")
    _require_distinct(jobs)
    folder = staging_folder(out)
    with owned(folder, f"collecting into {folder}"):
        require_same(folder, {"demonstrator": asdict(demonstrator), "robot": robot.model_dump(mode="json")})
        staging = Staging(folder)
        staging.clean()
        done = _finished(folder, staging, jobs)
        todo = [job for job in jobs if job.id not in done]
        pool = WorkerPool(todo, demonstrator, robot, folder, workers, max_restarts, job_seconds)
        try:
            with closing(pool), open(folder / LOG_FILE, "a") as log:
                for result in _shown(pool.results(), done, len(jobs), progress):
                    log.write(json.dumps(asdict(result)) + "\n")
                    log.flush()
                    done[result.job] = result.outcome
        except KeyboardInterrupt as stop:
            raise Interrupted(_resumable("stopped", done, jobs, folder)) from stop
        except WorkerError as error:
            raise WorkerError(f"{error}\n{_resumable('given up', done, jobs, folder)}") from error
    return _summary(folder, done, jobs)


def _resumable(what: str, done: dict[str, str], jobs: Sequence[Job], folder: Path) -> str:
    kept = sum(outcome == "kept" for outcome in done.values())
    return (
        f"collection {what} after {len(done)} of {len(jobs)} jobs; {kept} episodes are safe in {folder}; "
        "run the same command again to go on"
    )


def _summary(folder: Path, done: dict[str, str], jobs: Sequence[Job]) -> Collection:
    def ids(*outcomes: str) -> tuple[str, ...]:
        return tuple(job.id for job in jobs if done.get(job.id) in outcomes)

    return Collection(folder, ids("kept"), ids("failed"), ids("error", "crashed"))


def _finished(folder: Path, staging: Staging, jobs: Sequence[Job]) -> dict[str, str]:
    """Jobs that need no further try: those whose file is there and those whose demonstrator gave up."""
    staged = set(staging.keys())
    failed = {entry["job"] for entry in _read_log(folder) if entry["outcome"] == "failed"}
    return {job.id: "kept" if job.id in staged else "failed" for job in jobs if job.id in staged or job.id in failed}


def _read_log(folder: Path) -> Iterator[dict]:
    path = folder / LOG_FILE
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue  # the line that was being written when the process was killed


def _shown(results: Iterator[Result], done: dict[str, str], total: int, progress: bool) -> Iterator[Result]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    counts = Counter(done.values())
    with Progress(*columns, console=Console(stderr=True), disable=not progress, speed_estimate_period=600) as bar:
        task = bar.add_task(_counted(counts), total=total, completed=len(done))
        for result in results:
            counts[result.outcome] += 1
            bar.update(task, advance=1, description=_counted(counts))
            yield result


def _counted(counts: Counter[str]) -> str:
    kept, tried = counts["kept"], sum(counts.values())
    share = f"{kept / tried:.0%}" if tried else "-"
    lost = counts["error"] + counts["crashed"]
    return f"collecting: kept {kept} ({share})" + (f", lost {lost}" if lost else "")


def _require_distinct(jobs: Sequence[Job]) -> None:
    twice = [name for name, count in Counter(job.id for job in jobs).items() if count > 1]
    if twice:
        raise InputError(f"jobs: {len(twice)} ids occur more than once, for instance {twice[0]!r}")


def require_same(folder: Path, own: Mapping[str, Any]) -> None:
    """Refuse to mix episodes of different origins in one staging folder: ``own`` names what makes them, part by part.

    Raises InputError naming the part in which the folder was begun otherwise."""
    text = json.dumps(own, indent=2, sort_keys=True, default=str)
    path = folder / COLLECTION_FILE
    if not path.is_file():
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(text + "\n")
        temporary.replace(path)
        return
    found, own = json.loads(path.read_text()), json.loads(text)
    for part in own:
        if found.get(part) != own[part]:
            raise InputError(
                f"{folder} was begun with another {part}:\n  got      {own[part]}\n  expected {found.get(part)}\n"
                "choose another output, or delete that folder to begin anew"
            )
