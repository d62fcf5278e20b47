"""A dataset to look at: a contact sheet, and state and action over time."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from cosmos_robot.data.layouts import open_recordings
from cosmos_robot.data.recordings import Recording, Recordings
from cosmos_robot.data.sheet import Strip, draw_sheet, spread
from cosmos_robot.errors import InputError

SHEET, PLOTS = "sheet.png", "plots.png"
WIDE, TALL = 8.0, 2.4


def show(
    path: str | Path,
    out: str | Path,
    *,
    episodes: int = 6,
    columns: int = 8,
    state: str | None = None,
    action: str | None = None,
) -> tuple[Path, Path]:
    """Draw ``episodes`` episodes, evenly spread, into the folder ``out``; returns the sheet's and the plots' path.

    columns: moments of each. state, action: as for ``open_recordings``. Raises CheckpointError as it does, and
    InputError if ``out`` is there and holds anything.
    """
    out = Path(out)
    if episodes < 1 or columns < 1:
        raise InputError(f"show: got {episodes} episodes and {columns} columns, expected at least 1")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is already there and not an empty folder; choose another one")
    recordings = open_recordings(path, state=state, action=action)
    full = [index for index, rows in enumerate(recordings.lengths) if rows]
    if not full:
        raise InputError(f"{path}: no episode has rows; see cosmos-robot data lint")
    chosen = [full[i] for i in spread(len(full), episodes)]
    sheet = draw_sheet(_strips(recordings, chosen, columns), columns=columns)
    out.mkdir(parents=True, exist_ok=True)
    sheet.save(out / SHEET)
    plot(recordings, [recordings[index] for index in chosen], out / PLOTS)
    return out / SHEET, out / PLOTS


def plot(recordings: Recordings, chosen: Sequence[Recording], path: Path) -> None:
    """States (left) and actions (right) of the episodes ``chosen`` over time, one line per dimension, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2 * WIDE, TALL * len(chosen)), layout="constrained")
    axes = figure.subplots(len(chosen), 2, squeeze=False)
    for line, recording in zip(axes, chosen, strict=True):
        for axis, what, names in zip(
            line, ("state", "action"), (recordings.state_names, recordings.action_names), strict=True
        ):
            values = recording.state if what == "state" else recording.actions
            steps = np.arange(len(values))
            axis.plot(steps / recordings.fps if recordings.fps else steps, values, linewidth=0.9)
            axis.set_title(f"{recording.where}: {what}", fontsize=9, loc="left")
            axis.set_xlabel("s" if recordings.fps else "row", fontsize=8)
            axis.tick_params(labelsize=8)
            axis.grid(alpha=0.3)
            labels = names or tuple(map(str, range(values.shape[1])))
            axis.legend(axis.lines, labels, fontsize=6, ncols=2, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=100)


def _strips(recordings: Recordings, chosen: Sequence[int], columns: int) -> Iterator[Strip]:
    for index in chosen:
        recording = recordings[index]
        rows = spread(len(recording), columns)
        about = [recording.where, f"{len(recording)} rows", *recordings.cameras]
        if recording.success is not None:
            about.insert(1, "success" if recording.success else "failure")
        caption = "\n".join([*textwrap.wrap(recording.instruction, 30), *about])
        yield Strip(caption, rows, {name: recordings.pictures(index, name, rows) for name in recordings.cameras})
