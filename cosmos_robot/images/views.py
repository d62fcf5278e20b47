"""Do the cameras show what their names say? Compared with reference pictures, at start-up.

What this can show: that a picture looks more like another camera's reference, like its own turned, or like its own with
red and blue exchanged. What it cannot: prove a view right. References must be of the same scene from the same mount; a
flat, symmetric or rearranged scene leaves it undecided, and it then says nothing or that nothing is alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage
from scipy.optimize import linear_sum_assignment

from cosmos_robot.contract import Orientation
from cosmos_robot.errors import CheckpointError, InputError
from cosmos_robot.images.resize import resize
from cosmos_robot.images.steps import turn
from cosmos_robot.types import Image, check_image

THUMBNAIL = 24
"""Side of the compared pictures, in pixels: coarse enough that a moved object matters little."""
MARGIN = 0.15
"""How much better (in correlation) another explanation must be before it is reported."""
UNLIKE = 0.2
"""A correlation below this resembles nothing."""
FLAT = 2.0
"""Standard deviation in levels below which a picture shows nothing to compare."""

Floats = NDArray[np.float64]
Problem = Literal["flat", "swapped", "turned", "channels", "same", "unlike"]


@dataclass(frozen=True)
class ViewFinding:
    """A camera whose picture does not look like its name. other: the camera or orientation that it looks like."""

    camera: str
    problem: Problem
    other: str
    message: str


def check_views(pictures: Mapping[str, Image], references: Mapping[str, Image]) -> list[ViewFinding]:
    """Cameras that look wrong, most serious first; empty if nothing speaks against the names.

    pictures, references: camera name to uint8 (H, W, 3) of any size, in the orientation the model sees. Names that are
    not in both are left out. Raises InputError if no name is in both.
    """
    names = [name for name in references if name in pictures]
    if not names:
        raise InputError(f"views: no reference for any of {sorted(pictures)}; references are {sorted(references)}")
    now = {name: _thumbnail(name, pictures[name]) for name in names}
    then = {name: _thumbnail(name, references[name]) for name in names}
    flat = [name for name in names if now[name].std() < FLAT]
    found = [ViewFinding(n, "flat", "", f"camera {n!r} shows one flat colour; is it covered or off?") for n in flat]
    found += _same(now, [name for name in names if name not in flat])
    seen = [name for name in names if name not in flat and then[name].std() >= FLAT]
    if not seen:
        return found
    best = np.array([[_best_turn(now[a], then[b])[1] for b in seen] for a in seen])
    for row, column in zip(*linear_sum_assignment(-best), strict=True):
        name, other = seen[row], seen[column]
        if row != column and best[row, column] > best[row, row] + MARGIN:
            text = (
                f"camera {name!r} looks like {other!r} (correlation {best[row, column]:.2f}, own {best[row, row]:.2f})"
            )
            found.append(ViewFinding(name, "swapped", other, f"{text}; are the two swapped?"))
        else:
            found += _own(name, now[name], then[name])
    return sorted(found, key=lambda f: get_args(Problem).index(f.problem))


def write_references(pictures: Mapping[str, Image], folder: Path) -> None:
    """Keep one PNG of each camera in ``folder``, made if absent, for ``read_references``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        PILImage.fromarray(np.ascontiguousarray(check_image(name, picture))).save(
            folder / f"{quote(name, safe='')}.png"
        )


def read_references(folder: Path) -> dict[str, Image]:
    """Camera name to picture (H, W, 3) of what ``write_references`` kept. Raises CheckpointError if there is none."""
    found = {unquote(p.stem): np.asarray(PILImage.open(p).convert("RGB")) for p in sorted(folder.glob("*.png"))}
    if not found:
        raise CheckpointError(f"no reference pictures in {folder}; write_references makes them from a known good start")
    return found


def _thumbnail(name: str, picture: Image) -> Floats:
    return resize(check_image(name, picture), THUMBNAIL, THUMBNAIL, "area").astype(np.float64)


def _same(now: Mapping[str, Floats], names: list[str]) -> list[ViewFinding]:
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    text = "cameras {!r} and {!r} show the same picture; is one of them wired twice?"
    return [ViewFinding(a, "same", b, text.format(a, b)) for a, b in pairs if np.abs(now[a] - now[b]).mean() < 1]


def _own(name: str, now: Floats, then: Floats) -> list[ViewFinding]:
    orientation, score = _best_turn(now, then)
    as_is = _alike(now.mean(-1), then.mean(-1))
    if score < UNLIKE:
        text = (
            f"camera {name!r} resembles no reference (correlation {as_is:.2f}); was it moved, or is the scene another?"
        )
        return [ViewFinding(name, "unlike", "", text)]
    if orientation != "upright" and score > as_is + MARGIN:
        text = (
            f"camera {name!r} matches its reference after {orientation!r} (correlation {score:.2f}, as is {as_is:.2f})"
        )
        return [ViewFinding(name, "turned", orientation, text)]
    own, exchanged = _alike(_colour(now), _colour(then)), _alike(_colour(now[..., ::-1]), _colour(then))
    if exchanged > own + MARGIN:
        text = f"camera {name!r} matches its reference with red and blue exchanged; it sends BGR instead of RGB"
        return [ViewFinding(name, "channels", "bgr", text)]
    return []


def _best_turn(now: Floats, then: Floats) -> tuple[Orientation, float]:
    grey = now.mean(-1)  # the plain mean, which exchanging red and blue leaves alone
    scores: dict[Orientation, float] = {
        o: _alike(turn(grey, o, "upright"), then.mean(-1)) for o in get_args(Orientation)
    }
    best = max(scores, key=lambda o: scores[o])
    return best, scores[best]


def _colour(picture: Floats) -> Floats:
    return np.asarray(picture - picture.mean(-1, keepdims=True))


def _alike(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Pearson's correlation over all values; 0 where one of the two is flat."""
    x, y = a.ravel() - a.mean(), b.ravel() - b.mean()
    length = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / length if length > 1e-9 else 0.0
