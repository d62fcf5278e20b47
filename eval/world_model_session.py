"""A world-model evaluation from its episodes to its records: workers, log, progress, Ctrl-C.

An episode is a unit of work: a worker makes or reads it, cuts its windows, and measures each. What was measured goes to
the log at once, so a killed run loses at most the windows of the episodes in progress.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as PILImage
from rich.console import Console

from cosmos_robot.errors import CheckpointError, InputError, Interrupted, WorkerError
from cosmos_robot.eval.films import Film, side_by_side
from cosmos_robot.eval.world_model_case import Models
from cosmos_robot.eval.world_model_log import WindowLog
from cosmos_robot.eval.world_model_measure import MeasureSettings, Pictured, measure
from cosmos_robot.eval.world_model_sources import Source
from cosmos_robot.eval.world_model_windows import Window, frame_stride, spread, windows_of
from cosmos_robot.types import Image

FILM_SIDE = 256
"""Pixels of height that films of small canvases are brought to, by whole factors."""


@dataclass(frozen=True)
class SessionSettings:
    """windows: at most so many of an episode. probed: so many windows of each episode, spread over it, are tried with
    wrong scales and exchanged cameras. filmed: the first window of so many episodes is filmed, into ``films``. workers:
    processes, each with models and a simulator of its own; with 1 all is done in this one."""

    measure: MeasureSettings = field(default_factory=MeasureSettings)
    windows: int = 4
    probed: int = 2
    filmed: int = 4
    films: Path | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        least = {"windows": 1, "probed": 0, "filmed": 0, "workers": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise InputError(f"{name}: expected a whole number from {low}, got {getattr(self, name)}")


def measure_all(
    make: Callable[[], Models], source: Source, settings: SessionSettings, log: WindowLog, console: Console
) -> list[dict[str, Any]]:
    """Every window's record, in order; those in ``log`` are not measured again.

    make: loads the models; with several workers it and ``source`` are pickled. Raises Interrupted on Ctrl-C with
    everything finished saved, InputError where no episode is long enough for a window, WorkerError if a worker dies.
    """
    names = source.names()
    todo = [number for number, name in enumerate(names) if f"done: {name}" not in log.lines]
    if len(todo) < len(names):
        told = f"{len(names) - len(todo)} of {len(names)} episodes taken from {log.path}; --fresh measures them again"
        console.print(told, highlight=False, soft_wrap=True)
    finished = len(names) - len(todo)
    try:
        for number, records in _episodes(make, source, settings, todo):
            for record in records:
                log.append(record)
            log.append({"key": f"done: {names[number]}", "windows": len(records)})
            finished += 1
            words = f"{finished}/{len(names)} {names[number]}: {len(records)} windows"
            console.print(words, highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        raise Interrupted(
            f"{finished} of {len(names)} episodes are saved in {log.path}; the same command goes on from there"
        ) from None
    records = [line for line in log.lines.values() if "frames" in line]
    if not records:
        raise InputError(
            f"none of {len(names)} episodes is long enough for a window of {settings.measure.chunks} chunks; "
            f"{source.remedy}"
        )
    order = {name: number for number, name in enumerate(names)}
    return sorted(records, key=lambda record: (order[record["run"]], record["start"]))


def episode_records(models: Models, source: Source, settings: SessionSettings, number: int) -> list[dict[str, Any]]:
    """Make episode ``number`` and measure its windows. Errors name the window, such as that of a checkpoint whose
    numbers are not finite."""
    contract = models.contract
    run = source.run(number, contract)
    records = []
    windows = windows_of(run, contract, settings.measure.chunks, settings.windows)
    probed = spread(len(windows), settings.probed)
    for place, window in enumerate(windows):
        try:
            record, pictured = measure(models, window, settings.measure, probe=place in probed)
        except (InputError, CheckpointError) as error:
            raise type(error)(f"{window.key}: {error}") from error
        if place == 0 and number < settings.filmed and settings.films is not None:
            record |= film_window(
                settings.films, number, window, pictured, contract.robot.rate_hz / frame_stride(contract)
            )
        records.append(record)
    return records


def film_window(folder: Path, number: int, window: Window, pictured: Pictured, fps: float) -> dict[str, str]:
    """Write truth, prediction and last frame side by side, as a film and as the picture of its end; returns the names
    of both files for the window's record."""
    name = f"{number:04d}-{window.start:05d}"
    film = Film(folder / f"{name}.mp4", fps)
    try:
        for frames in zip(pictured.truth, pictured.predicted, pictured.last, strict=True):
            film.add(_beside(frames))
        film.close()
    except BaseException:
        film.discard()
        raise
    apart = np.abs(pictured.predicted[-1].astype(np.int16) - pictured.truth[-1].astype(np.int16)).astype(np.uint8)
    end = _beside((pictured.truth[-1], pictured.predicted[-1], pictured.last[-1], apart))
    PILImage.fromarray(end).save(folder / f"{name}.png")
    return {"film": f"{name}.mp4", "still": f"{name}.png"}


def _beside(pictures: Sequence[Image]) -> Image:
    factor = max(1, FILM_SIDE // pictures[0].shape[0])
    gap = np.full((pictures[0].shape[0] * factor, 4, 3), 255, np.uint8)
    larger = [np.repeat(np.repeat(picture, factor, axis=0), factor, axis=1) for picture in pictures]
    return side_by_side([piece for picture in larger for piece in (picture, gap)][:-1])


def _episodes(
    make: Callable[[], Models], source: Source, settings: SessionSettings, todo: Sequence[int]
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Episodes as they are finished."""
    if not todo:
        return
    if settings.workers == 1:
        models = make()
        try:
            for number in todo:
                yield number, episode_records(models, source, settings, number)
        finally:
            source.close()
        return
    context = multiprocessing.get_context("spawn")
    count = min(settings.workers, len(todo))
    pool = ProcessPoolExecutor(count, context, _begin, (make, source, settings))
    try:
        waiting = {pool.submit(_work, number): number for number in todo}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    except BrokenProcessPool as error:
        raise WorkerError(
            "a worker process died, perhaps for lack of memory; what was finished is saved, go on with fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_WORK: dict[str, Any] = {}


def _begin(make: Callable[[], Models], source: Source, settings: SessionSettings) -> None:
    _WORK.update(make=make, source=source, settings=settings)


def _work(number: int) -> list[dict[str, Any]]:
    if "models" not in _WORK:  # not in _begin, whose errors are told as a process that died
        _WORK["models"] = _WORK["make"]()
    return episode_records(_WORK["models"], _WORK["source"], _WORK["settings"], number)
