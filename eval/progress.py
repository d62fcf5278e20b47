"""How a run is going: a bar on a terminal, a line per episode elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cosmos_robot.data.episodes import EpisodeInfo
from cosmos_robot.eval.protocol import Job
from cosmos_robot.eval.results import EpisodeError, EpisodeRecord
from cosmos_robot.eval.runner import Listener


class RunProgress(Listener):
    """Running success and time left of ``total`` episodes, ``done`` of which were finished earlier."""

    def __init__(self, title: str, total: int, done: Sequence[EpisodeRecord | EpisodeInfo], console: Console):
        self._console, self._total = console, total
        self._finished, self._successes = len(done), sum(record.success for record in done)
        self._lost, self._earlier, self._began = 0, len(done), time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task(title, total=total - len(done), rate=self._rate())

    def __enter__(self) -> RunProgress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def on_episode(self, job: Job, record: EpisodeRecord) -> None:
        self._finished += 1
        self._successes += record.success
        outcome = "success" if record.success else "failure"
        self._tell(f"{job.label}: {outcome} in {record.steps} steps")

    def on_error(self, job: Job, error: EpisodeError) -> None:
        self._lost += 1
        self._tell(f"{job.label}: not run; {error.message}")

    def _tell(self, what: str) -> None:
        self._bar.update(self._task, advance=1, rate=self._rate())
        if self._console.is_terminal:
            return
        pace = (time.monotonic() - self._began) / max(self._finished - self._earlier, 1)
        left = pace * (self._total - self._finished - self._lost) / 60
        line = f"{self._finished + self._lost}/{self._total} {what}; {self._rate()}; about {left:.0f} min left"
        self._console.print(line, highlight=False, soft_wrap=True)

    def _rate(self) -> str:
        return f"success {self._successes}/{self._finished}"
