"""Checks on pictures: black, blank and frozen ones, sizes, and views that are turned or swapped in some episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cosmos_robot.data.evidence import correlation, listed
from cosmos_robot.data.findings import Finding

# Below this mean and deviation (of 255) a picture shows nothing; video noise in black stays below.
BLACK, FLAT = 6.0, 3.0
# So many successive pictures without a change, while the arm moves, are no accident of compression.
FROZEN_RUN = 5
THUMBNAIL = 24
# A pixel has changed if it differs by more than video noise.
CHANGED = 15.0
# Another reading of the view must explain an episode this much better than the given one does.
VIEW_MARGIN, VIEW_FIT = 0.2, 0.7

TURNS: dict[str, Callable[[NDArray], NDArray]] = {
    "upside down": lambda view: view[::-1],
    "mirrored": lambda view: view[:, ::-1],
    "turned by 180 degrees": lambda view: view[::-1, ::-1],
    "with red and blue exchanged": lambda view: view[..., ::-1],
}


@dataclass(eq=False)
class CameraLook:
    """What one camera showed in one episode, row by row of those that were looked at.

    rows: their numbers. mean, deviation: (n,). changed: (n - 1,) mean absolute difference to the picture before.
    moved: (n - 1,) where the change lies, from 0 (top) to 1 (bottom), NaN without one. size: height and width.
    """

    where: str
    camera: str
    rows: list[int] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    deviation: list[float] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    size: tuple[int, int] = (0, 0)
    _total: NDArray | None = None
    _last: NDArray | None = None

    def add(self, row: int, picture: NDArray[np.uint8]) -> None:
        """Take the next picture (H, W, 3)."""
        self.rows.append(row)
        self.size = picture.shape[:2]
        self.mean.append(float(picture.mean()))
        self.deviation.append(float(picture.std()))
        small = Image.fromarray(picture).resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
        self._total = np.asarray(small, np.float64) + (0 if self._total is None else self._total)
        now = picture.astype(np.int16)
        if self._last is not None:
            same = self._last.shape == now.shape
            change = abs(now - self._last).mean(axis=2) if same else np.full(now.shape[:2], np.nan)
            self.changed.append(float(change.mean()))
            self.moved.append(_height_of(change))
        self._last = now

    def view(self) -> NDArray[np.float64]:
        """The mean thumbnail (THUMBNAIL, THUMBNAIL, 3)."""
        return self._total / len(self.rows)


def _height_of(change: NDArray[np.float64]) -> float:
    """The centre of what changed, as a fraction of the height from the top."""
    lines = np.where(change > CHANGED, change, 0).sum(axis=1)
    return float((lines * np.linspace(0, 1, len(lines))).sum() / lines.sum()) if lines.sum() > 0 else float("nan")


def check_blank(look: CameraLook) -> Iterator[Finding]:
    """Black and single-coloured pictures."""
    flat = np.asarray(look.deviation) < FLAT
    dark = flat & (np.asarray(look.mean) < BLACK)
    for code, what, hits in (("black", "black", dark), ("blank", "of one colour", flat & ~dark)):
        rows = [look.rows[i] for i in np.flatnonzero(hits)]
        if rows:
            text = f"{len(rows)} of {len(look.rows)} pictures are {what}: rows {listed(rows)}"
            yield Finding(
                f"{code}-pictures", "error", f"{look.where} {look.camera}", text, "record it again or drop these rows"
            )


def check_frozen(look: CameraLook, state: NDArray[np.floating], width: NDArray[np.float64]) -> Iterator[Finding]:
    """Pictures that do not change while the state does. width: spread of each state dimension."""
    usable = width > 0
    if len(look.rows) <= FROZEN_RUN or not usable.any() or max(look.deviation) < FLAT:
        return
    steps = abs(np.diff(state[look.rows][:, usable].astype(float), axis=0)) / width[usable]
    stuck = (np.asarray(look.changed) == 0) & (steps.max(axis=1) > 0.002)
    run = best = end = 0
    for number, hit in enumerate(stuck):
        run = run + 1 if hit else 0
        if run > best:
            best, end = run, number + 1
    if best >= FROZEN_RUN:
        rows = f"rows {look.rows[end - best]} to {look.rows[end]}"
        what = f"the picture does not change over {best} steps ({rows}) while the arm moves"
        yield Finding("frozen-camera", "error", f"{look.where} {look.camera}", what, "record it again")


def check_sizes(looks: Sequence[CameraLook]) -> Iterator[Finding]:
    """Cameras whose pictures are not of one size in all episodes."""
    for camera in sorted({look.camera for look in looks}):
        sizes: dict[tuple[int, int], list[str]] = {}
        for look in looks:
            if look.camera == camera and look.rows:
                sizes.setdefault(look.size, []).append(look.where)
        if len(sizes) > 1:
            usual = max(sizes, key=lambda size: len(sizes[size]))
            odd = [
                f"{where} {size[0]}x{size[1]}" for size, places in sizes.items() if size != usual for where in places
            ]
            what = f"most episodes have {usual[0]}x{usual[1]}: {listed(odd)}"
            yield Finding("picture-size", "error", f"camera {camera}", what, "resize or record again with one setting")


def check_views(looks: Sequence[CameraLook]) -> Iterator[Finding]:
    """Episodes whose view is turned, mirrored, or another camera's, against the median of three or more episodes."""
    usual = _usual_views(looks)
    for look in looks:
        if look.camera not in usual or not look.rows:
            continue
        view = look.view()
        given = correlation(view, usual[look.camera])
        others = {name: correlation(turn(view), usual[look.camera]) for name, turn in TURNS.items()}
        others |= {f"what {c!r} shows elsewhere": correlation(view, v) for c, v in usual.items() if c != look.camera}
        name = max(others, key=lambda key: others[key])
        if others[name] > VIEW_FIT and others[name] - given > VIEW_MARGIN:
            what = (
                f"the view is {name}: it then agrees with other episodes by {others[name]:.2f}, as it is by {given:.2f}"
            )
            yield Finding("view", "error", f"{look.where} {look.camera}", what, "turn its pictures back, or drop it")


def _usual_views(looks: Sequence[CameraLook]) -> dict[str, NDArray[np.float64]]:
    views: dict[str, list[NDArray[np.float64]]] = {}
    for look in looks:
        if look.rows:
            views.setdefault(look.camera, []).append(look.view())
    return {camera: np.median(found, axis=0) for camera, found in views.items() if len(found) >= 3}
