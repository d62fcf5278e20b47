"""The start-up check of what cameras show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from drawn import scene

from cosmos_robot.errors import CheckpointError, InputError
from cosmos_robot.images.steps import turn
from cosmos_robot.images.views import ViewFinding, check_views, read_references, write_references

REFERENCES = {"wrist": scene(1), "exterior_1": scene(2), "exterior_2": scene(3)}


def seen(seed: int = 0) -> dict[str, np.ndarray]:
    """The reference scenes on another day: noise, brightness, and an object where none was."""
    random = np.random.default_rng(seed)
    out = {}
    for name, picture in REFERENCES.items():
        new = picture * random.uniform(0.7, 1.0) + random.normal(0, 12, picture.shape)
        new[40:60, 50:75] = (20, 120, 200)
        out[name] = np.clip(new, 0, 255).astype(np.uint8)
    return out


def told(findings: list[ViewFinding]) -> list[tuple[str, str, str]]:
    return [(f.camera, f.problem, f.other) for f in findings]


@pytest.mark.parametrize("seed", range(5))
def test_right_views_pass(seed: int) -> None:
    assert check_views(seen(seed), REFERENCES) == []


def test_pc_16_swapped_views_are_flagged() -> None:
    now = seen()
    now["wrist"], now["exterior_1"] = now["exterior_1"], now["wrist"]
    assert told(check_views(now, REFERENCES)) == [
        ("wrist", "swapped", "exterior_1"),
        ("exterior_1", "swapped", "wrist"),
    ]


def test_pc_16_red_and_blue_exchanged_is_flagged() -> None:
    now = seen()
    now["exterior_2"] = np.ascontiguousarray(now["exterior_2"][..., ::-1])
    assert told(check_views(now, REFERENCES)) == [("exterior_2", "channels", "bgr")]


@pytest.mark.parametrize("orientation", ["flip_vertical", "mirror", "rot180"])
def test_a_turned_view_is_flagged(orientation: str) -> None:
    now = seen()
    now["wrist"] = turn(now["wrist"], "upright", orientation)
    assert told(check_views(now, REFERENCES)) == [("wrist", "turned", orientation)]


def test_a_dark_a_doubled_and_a_strange_view() -> None:
    now = seen()
    now["wrist"] = np.full_like(now["wrist"], 7)
    assert told(check_views(now, REFERENCES)) == [("wrist", "flat", "")]
    now = seen()
    now["exterior_2"] = now["exterior_1"]
    assert ("exterior_1", "same", "exterior_2") in told(check_views(now, REFERENCES))
    now = seen()
    now["wrist"] = scene(99)
    assert [f.camera for f in check_views(now, REFERENCES)] == ["wrist"]


def test_references_are_kept(tmp_path: Path) -> None:
    pictures = {"observation/wrist": scene(1), "top": scene(2)}
    write_references(pictures, tmp_path / "views")
    kept = read_references(tmp_path / "views")
    assert list(kept) == sorted(pictures)
    for name, picture in pictures.items():
        np.testing.assert_array_equal(kept[name], picture)


def test_nothing_to_compare_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no reference"):
        check_views({"left": scene(1)}, REFERENCES)
    with pytest.raises(CheckpointError, match="write_references"):
        read_references(tmp_path)
