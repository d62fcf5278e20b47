"""What every training run needs around its steps: a clock, a log, checkpoints, Ctrl-C, a progress bar."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cosmos_robot.errors import CheckpointError, Interrupted

STATE_FILE = "state.pt"
LOG_FILE = "log.jsonl"
CONFIG_FILE = "config.json"
MADE_FROM = "made_from"
"""In the config: fingerprints of data and weights by name, see ``ingredients``."""


@dataclass(frozen=True)
class Budget:
    """Minutes or steps, one of them None."""

    minutes: float | None
    steps: int | None

    def progress(self, seconds: float, step: int) -> float:
        """Share of the budget used, 1 and more when it is spent."""
        return step / self.steps if self.steps is not None else seconds / (60 * self.minutes)


class RunFolder:
    """A run's own folder: its config, its log and its newest state, all of them whole at any moment.

    observers: called with each record that is logged."""

    def __init__(self, path: Path, config: dict, may_differ: tuple[str, ...]):
        """Raises CheckpointError as ``require_same_run`` does."""
        self.path = Path(path)
        require_same_run(self.path, config, may_differ)
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomic(
            self.path / CONFIG_FILE, lambda temporary: temporary.write_text(json.dumps(config, indent=2) + "\n")
        )
        self.observers: list[Callable[[dict], None]] = []

    def save_state(self, state: dict) -> None:
        """Replace the saved state in one move."""
        write_atomic(self.path / STATE_FILE, lambda temporary: torch.save(state, temporary))

    def finish(self) -> None:
        """Wait until what was saved is on disk. For a run that ended or was interrupted, not for one that failed."""

    def load_state(self) -> dict | None:
        """The newest saved state, None if there is none yet. Raises CheckpointError if its file is damaged."""
        file = self.path / STATE_FILE
        if not file.exists():
            return None
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(
                f"{file} is damaged ({str(error).splitlines()[0]}); restore it, or delete it to begin this run anew"
            ) from error

    def log(self, record: dict) -> None:
        with (self.path / LOG_FILE).open("a") as file:
            file.write(json.dumps(record) + "\n")
        for observer in self.observers:
            observer(record)

    def read_log(self) -> list[dict]:
        """All records but a last one that was cut short when the process was killed or the disk was full."""
        file = self.path / LOG_FILE
        text = file.read_text() if file.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def drop_log_after(self, step: int) -> None:
        """Forget what was logged after the saved step: those steps will be taken again."""
        kept = "".join(json.dumps(r) + "\n" for r in self.read_log() if r["step"] <= step)
        write_atomic(self.path / LOG_FILE, lambda temporary: temporary.write_text(kept))


def require_same_run(path: Path, config: dict, may_differ: tuple[str, ...]) -> None:
    """Raise CheckpointError if ``path`` holds a run of another config (fields in ``may_differ`` aside) or one made from
    other data or weights (``ingredients``), naming what differs."""
    file = path / CONFIG_FILE
    if not file.exists():
        return
    old = json.loads(file.read_text())
    changed = [k for k in sorted({*old, *config} - {*may_differ, MADE_FROM}) if old.get(k) != config.get(k)]
    if not changed and MADE_FROM in config and MADE_FROM not in old:
        raise CheckpointError(
            f"{path} holds a run of an older version, which did not note what data and weights it was made from, so it "
            "cannot be resumed safely; choose another folder"
        )
    before, now = old.get(MADE_FROM, {}), config.get(MADE_FROM, {})
    if before:
        changed += [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    if changed:
        raise CheckpointError(
            f"{path} holds a run whose {', '.join(changed)} differ; resume it with the same settings, data and start, "
            "or choose another folder"
        )


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """``write`` to a temporary neighbour, then rename it to ``path``."""
    temporary = path.with_name(path.name + ".part")
    write(temporary)
    os.replace(temporary, path)


class Every:
    """True once per so many seconds."""

    def __init__(self, seconds: float):
        self.seconds, self._last = seconds, time.monotonic()

    def __call__(self) -> bool:
        if time.monotonic() - self._last < self.seconds:
            return False
        self._last = time.monotonic()
        return True


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, so that a step is never cut in half; the second one interrupts at once.

    Outside the main thread Python delivers no signals, and the event stays unset.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)


def interrupted(folder: Path, step: int) -> Interrupted:
    return Interrupted(
        f"training stopped at step {step}; everything is saved in {folder}, run the same command again to go on"
    )


@contextmanager
def progress_bar(title: str, enabled: bool) -> Iterator[Callable[[float, str], None]]:
    """``show(share, note)`` moves the bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
               TimeElapsedColumn(), TextColumn("{task.fields[note]}"))  # fmt: skip
    with Progress(*columns, disable=not enabled) as bar:
        task = bar.add_task(title, total=1.0, note="")
        yield lambda share, note: bar.update(task, completed=min(share, 1.0), note=note)
