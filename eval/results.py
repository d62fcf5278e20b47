"""Episode records, the log a killed run resumes from, and the result file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from cosmos_robot.errors import InputError
from cosmos_robot.eval.protocol import EvalProtocol, Job, faults, protocol_differences
from cosmos_robot.eval.run_log import RunLog
from cosmos_robot.eval.statistics import bootstrap_mean, wilson


class EpisodeRecord(BaseModel):
    """One finished episode. noise_seeds: one per decision. ended: what stopped it. seconds: wall time, shared CPU.
    score: how much of the task was done at the end of it; best_score: at the best of its decisions."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    suite: str
    task: int
    init: int
    instruction: str
    success: bool
    ended: Literal["success", "budget", "env"]
    steps: int
    decisions: int
    reset_seed: int
    noise_seeds: tuple[int, ...]
    seconds: float
    film: str | None = None
    score: float | None = None
    best_score: float | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.task, self.init


class EpisodeError(BaseModel):
    """An episode that could not be run, after its worker died twice."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    suite: str
    task: int
    init: int
    message: str


class RunHeader(BaseModel):
    """Whose episodes these are. control: None for a checkpoint as it is, else the kind of control it stands for."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    policy: str
    checkpoint: str | None
    checkpoint_sha256: str | None
    contract: str
    control: Literal["blind", "random", "zero"] | None
    protocol: EvalProtocol

    def differences(self, now: RunHeader) -> list[str]:
        """Why episodes of this header may not be mixed with those of ``now``; empty if they may."""
        found = [
            f"{name}: {getattr(self, name)} then, {getattr(now, name)} now"
            for name in ("policy", "checkpoint_sha256", "contract", "control")
            if getattr(self, name) != getattr(now, name)
        ]
        return found + protocol_differences(self.protocol, now.protocol, episodes_may_differ=True)


LOG_BEGINS = b'{"policy"'


class EpisodeLog(RunLog):
    """One line per finished episode, after the header."""

    begins, kind, holds = LOG_BEGINS, "not an episode log", "episodes"

    def __init__(self, path: Path, header: RunHeader, *, fresh: bool = False):
        """As ``RunLog``."""
        self.header = header
        self.finished: dict[tuple[int, int], EpisodeRecord] = {}
        super().__init__(path, header.model_dump_json(), fresh=fresh)

    def append(self, record: EpisodeRecord) -> None:
        """Keep one finished episode."""
        self._keep(record.model_dump_json())
        self.finished[record.key] = record

    def close_after_stop(self) -> None:
        """Close the file and read anew what is in it: Ctrl-C may have come in the middle of ``append``."""
        self._file.close()
        self._read()

    def _take(self, whole: bytes) -> list[str]:
        try:
            lines = whole.decode().splitlines()
            found = RunHeader.model_validate_json(lines[0])
            records = [EpisodeRecord.model_validate_json(line) for line in lines[1:]]
        except (ValidationError, UnicodeDecodeError) as error:
            what = faults(error) if isinstance(error, ValidationError) else error
            raise InputError(
                f"{self.path} is not an episode log of this version: {what}\n"
                "write to another --json, or pass --fresh to discard it"
            ) from error
        differences = found.differences(self.header)
        if not differences:
            self.finished = {r.key: r for r in records}
        return differences


def log_path(result: Path) -> Path:
    """``out.json`` to ``out.episodes.jsonl``."""
    return result.with_name(result.stem + ".episodes.jsonl")


def summarize(records: Iterable[EpisodeRecord]) -> dict[str, Any]:
    """``success_rate`` (None without episodes), ``successes``, ``episodes`` and ``ci95`` (Wilson)."""
    records = list(records)
    rate = wilson(sum(r.success for r in records), len(records))
    return scores(records) | {
        "success_rate": rate.rate if records else None,
        "successes": rate.successes,
        "episodes": rate.episodes,
        "ci95": [rate.low, rate.high],
    }


def scores(records: Sequence[EpisodeRecord]) -> dict[str, Any]:
    """Means of ``score`` and ``best_score`` with their 95 % bootstrap intervals; nothing where all tasks are done or
    not, with nothing between."""
    found = {}
    for name in ("score", "best_score"):
        values = [getattr(r, name) for r in records]
        if values and None not in values and not set(values) <= {0.0, 1.0}:
            mean, low, high = bootstrap_mean(values)
            found |= {name: mean, f"{name}_ci95": [low, high]}
    return found


def build_result(
    header: RunHeader, records: Iterable[EpisodeRecord], errors: Iterable[EpisodeError], *, seconds: float, resumed: int
) -> dict[str, Any]:
    """The content of the result file. ``errors`` are listed and counted neither as success nor as failure."""
    records = sorted(records, key=lambda r: r.key)
    per_task = []
    for task in header.protocol.tasks:
        mine = [r for r in records if r.task == task]
        per_task.append({"task": task, "instruction": mine[0].instruction if mine else None} | summarize(mine))
    return {
        **summarize(records),
        "per_task": per_task,
        **header.model_dump(mode="json"),
        "wall_seconds": round(seconds, 1),
        "resumed_episodes": resumed,
        "errors": [e.model_dump(mode="json") for e in errors],
        "records": [r.model_dump(mode="json") for r in records],
    }


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write ``result`` as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(result, indent=2) + "\n")
    os.replace(part, path)


def read_result(path: Path) -> tuple[RunHeader, list[EpisodeRecord]]:
    """Header and records of a result file. Raises InputError if it is none."""
    try:
        data = json.loads(Path(path).read_text())
        header = RunHeader.model_validate({name: data[name] for name in RunHeader.model_fields})
        return header, [EpisodeRecord.model_validate(r) for r in data["records"]]
    except ValidationError as error:
        raise InputError(f"{path} is not a result of eval/libero.py: {faults(error)}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a result of eval/libero.py: {error}") from error


def hash_folder(folder: Path) -> str:
    """SHA-256 over the names and contents of every file in ``folder``, in sorted order."""
    digest = hashlib.sha256()
    for path in sorted(p for p in Path(folder).rglob("*") if p.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def remaining(jobs: Iterable[Job], finished: Iterable[tuple[int, int]]) -> list[Job]:
    """The jobs not yet finished, in order."""
    done = set(finished)
    return [job for job in jobs if job.key not in done]
