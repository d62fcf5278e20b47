"""Training curves as a picture."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from cosmos_robot.errors import DependencyError
from cosmos_robot.training.session import RunFolder

PICTURE = "curves.png"
_NOT_DRAWN = ("kind", "cycle", "step", "cycle_seconds")


def draw_curves(folder: RunFolder) -> Path:
    """Draw every logged measure over the steps, training and validation in one panel each, into ``curves.png``."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DependencyError("drawing training curves needs matplotlib: pip install 'cosmos-robot[model]'") from error
    lines: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for record in folder.read_log():
        for name, value in record.items():
            if name not in _NOT_DRAWN:
                lines[name][record["kind"]].append((record["step"], value))
    columns = 3
    rows = -(-max(len(lines), 1) // columns)
    figure = Figure(figsize=(4.5 * columns, 2.8 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for number, (name, kinds) in enumerate(lines.items()):
        axes = figure.add_subplot(rows, columns, number + 1)
        for kind, points in kinds.items():
            axes.plot(*zip(*points, strict=True), label=kind)
        axes.set_title(name)
        axes.set_xlabel("step")
        axes.legend()
        if min(value for points in kinds.values() for _, value in points) > 0:
            axes.set_yscale("log")
    path = folder.path / PICTURE
    figure.savefig(path, dpi=80)
    return path
