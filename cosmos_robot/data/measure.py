"""Statistics of one or several datasets in one streaming pass over their rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from cosmos_robot.actions.statistics import StatisticsAccumulator
from cosmos_robot.data.evidence import QUANTITIES, Evidence
from cosmos_robot.data.layouts import open_recordings
from cosmos_robot.data.recordings import Recordings
from cosmos_robot.errors import CheckpointError, InputError


def measure(
    paths: Sequence[str | Path], *, state: str | None = None, action: str | None = None, progress: bool = False
) -> dict[str, Any]:
    """Statistics of ``state`` and ``action`` over all rows of ``paths`` together, as JSON values.

    Several datasets are measured as one, row by row: finished statistics cannot be averaged. They are refused if
    widths, names or rates differ. Pictures are not read. Raises InputError for this and for rows that are not finite,
    CheckpointError as ``open_recordings`` does.
    """
    if not paths:
        raise InputError("statistics: got no dataset, expected one or more")
    datasets = [open_recordings(path, state=state, action=action) for path in paths]
    for other in datasets[1:]:
        _require_alike(datasets[0], other)
    tallies: dict[str, StatisticsAccumulator] = {}
    todo = [(dataset, index) for dataset in datasets for index in range(len(dataset))]
    shown = {"console": Console(stderr=True), "disable": not progress, "transient": True}
    for dataset, index in track(todo, "measuring", **shown):
        recording = dataset[index]
        for quantity in QUANTITIES:
            rows = Evidence.of(recording, quantity)
            tally = tallies.setdefault(quantity, StatisticsAccumulator(rows.shape[1]))
            try:
                tally.update(rows)
            except InputError as error:
                where = f"{dataset.path.name}, {recording.where}, {quantity}"
                raise InputError(f"{where}: {error}; see cosmos-robot data lint") from error
    if not tallies or not tallies["action"].count:
        raise CheckpointError(f"{', '.join(map(str, paths))}: no rows to measure; the episodes are empty")
    return {
        "datasets": [str(path) for path in paths],
        "episodes": len(todo),
        "rows": tallies["action"].count,
        "quantiles": "exact" if all(t.exact for t in tallies.values()) else "sketched",
        "rank_error": max(t.rank_error for t in tallies.values()),
        "names": {"state": list(datasets[0].state_names), "action": list(datasets[0].action_names)},
        **{q: tally.finish().model_dump(mode="json", exclude_none=True) for q, tally in tallies.items()},
    }


def _require_alike(one: Recordings, other: Recordings) -> None:
    first, second = one[0], other[0]
    for what, a, b in (
        ("state width", first.state.shape[1], second.state.shape[1]),
        ("action width", first.actions.shape[1], second.actions.shape[1]),
        ("state names", one.state_names, other.state_names),
        ("action names", one.action_names, other.action_names),
        ("rate", one.fps, other.fps),
    ):
        if a != b:
            raise InputError(
                f"{one.path} and {other.path} are not one dataset: {what} {a} and {b}; measure them separately"
            )
