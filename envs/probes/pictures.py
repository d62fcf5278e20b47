"""Probes of what the cameras show: which is which, which way up, and which one rides on the hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import CameraSpec
from cosmos_robot.envs.probes.trial import Finding, NotApplicable, Trial, verdict
from cosmos_robot.envs.truth import MARK_AT
from cosmos_robot.types import Image

CHANGED = 30
"""A pixel has changed if its three channels together differ by more."""
NEAR_SHARE = 0.12
"""How far from where it should be, as a share of the picture, a mark may be seen."""
MOVED_SHARE = 0.03
DIFFERENT = 10.0
HAND_WORDS = ("wrist", "hand")
"""A camera rides on the hand if what its view says, or its name where that says nothing, holds one of these."""


def probe_camera_names(trial: Trial) -> Iterator[Finding]:
    """The cameras that the contract names are there, in its order, in its sizes."""
    images = trial.start().images
    want, have = [c.name for c in trial.spec.cameras], list(images)
    yield verdict("camera_names", "robot.cameras", want == have, ", ".join(have), ", ".join(want))
    for camera in trial.spec.cameras:
        if camera.name in images:
            height, width = images[camera.name].shape[:2]
            yield verdict(
                "camera_names",
                f"robot.cameras.{camera.name}.size",
                (height, width) == (camera.height, camera.width),
                f"{height}x{width}",
                f"{camera.height}x{camera.width}",
            )


def probe_camera_views(trial: Trial) -> Iterator[Finding]:
    """Different names show different views."""
    images = trial.start().images
    for one, other in combinations([c.name for c in _present(trial)], 2):
        a, b = (_small(images[name]) for name in (one, other))
        apart = float(np.abs(a - b).max())
        yield verdict(
            "camera_views",
            f"robot.cameras.{other}.view",
            apart > DIFFERENT,
            f"{one} and {other} differ by up to {apart:.0f} of 255",
            f"more than {DIFFERENT:.0f}: two views",
        )


def probe_orientation(trial: Trial) -> Iterator[Finding]:
    """Something put where the camera's own pose says it is seen right and above the middle, is seen there."""
    trial.start()
    for camera in _present(trial):
        point = trial.truth.seen_at(camera.name, *MARK_AT)
        seen = _where(trial, camera, point)
        found = None if seen is None else _orientation(seen, MARK_AT)
        words = "nothing changed in the picture" if seen is None else f"{found}: seen at {seen[0]:.2f}, {seen[1]:.2f}"
        yield verdict(
            "orientation",
            f"robot.cameras.{camera.name}.orientation",
            found == camera.orientation,
            words,
            f"{camera.orientation}: a mark at {MARK_AT[0]:.2f}, {MARK_AT[1]:.2f} of the upright picture",
        )


def probe_mounts(trial: Trial) -> Iterator[Finding]:
    """A thing that lies still moves in the picture of a camera on the hand when the hand moves, and in no other."""
    trial.start()
    points = {c.name: trial.truth.seen_at(c.name, *MARK_AT) for c in _present(trial)}
    before = {c.name: _where(trial, c, points[c.name]) for c in _present(trial)}
    moving = [f for kind in ("position", "joint") for f in trial.spec.action if f.kind == kind]
    if not moving:
        raise NotApplicable("the contract names neither a position nor joints among its action fields")
    axis = 1 if moving[0].kind == "position" else 0
    trial.run(trial.moved(moving[0], axis, trial.amount(moving[0])), 4)
    for camera in _present(trial):
        seen, then = _where(trial, camera, points[camera.name]), before[camera.name]
        moved = None if seen is None or then is None else float(np.abs(np.subtract(seen, then)).max())
        riding = any(word in (camera.view or camera.name).lower() for word in HAND_WORDS)
        yield verdict(
            "mounts",
            f"robot.cameras.{camera.name}.view",
            moved is not None and (moved > MOVED_SHARE) == riding,
            "the mark is not seen" if moved is None else f"a still mark moved by {moved:.1%} of the picture",
            "moves with the hand" if riding else "stands still when the hand moves",
        )


def _present(trial: Trial) -> list[CameraSpec]:
    there = {camera.name for camera in trial.env.robot.cameras}
    return [camera for camera in trial.spec.cameras if camera.name in there]


def _where(trial: Trial, camera: CameraSpec, point: NDArray[np.float64]) -> tuple[float, float] | None:
    """The middle (u, v) of what changes in the picture as delivered when a mark at ``point`` vanishes."""
    with trial.truth.mark(point):
        shown = trial.env.render_camera(camera.name).astype(int)
    with trial.truth.mark(None):
        hidden = trial.env.render_camera(camera.name).astype(int)
    rows, columns = np.nonzero(np.abs(shown - hidden).sum(-1) > CHANGED)
    if not len(rows):
        return None
    height, width = shown.shape[:2]
    return (float(np.median(columns)) + 0.5) / width, (float(np.median(rows)) + 0.5) / height


def _orientation(seen: tuple[float, float], upright: tuple[float, float]) -> str | None:
    """Under which orientation a thing at ``upright`` is ``seen`` there; None if under none."""
    u, v = upright
    places = {"upright": (u, v), "flip_vertical": (u, 1 - v), "mirror": (1 - u, v), "rot180": (1 - u, 1 - v)}
    distance = {name: float(np.abs(np.subtract(seen, place)).max()) for name, place in places.items()}
    best = min(distance, key=lambda name: distance[name])
    return best if distance[best] < NEAR_SHARE else None


def _small(image: Image) -> NDArray[np.float64]:
    """(8, 8, 3) means of blocks."""
    rows = np.array_split(image.astype(np.float64), 8, axis=0)
    return np.array([[part.mean((0, 1)) for part in np.array_split(row, 8, axis=1)] for row in rows])
