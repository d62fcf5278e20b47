"""Films: whole or absent, of one even size."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.errors import InputError
from cosmos_robot.eval.films import Film, side_by_side


def frame(height: int = 16, width: int = 32) -> np.ndarray:
    return np.full((height, width, 3), 90, np.uint8)


def test_a_film_has_its_name_only_when_complete(tmp_path) -> None:
    film = Film(tmp_path / "deep" / "a.mp4", 10)
    film.add(frame())
    assert not film.path.exists()
    assert film.close() == film.path
    assert [path.name for path in film.path.parent.iterdir()] == ["a.mp4"]


def test_a_discarded_film_leaves_nothing(tmp_path) -> None:
    film = Film(tmp_path / "a.mp4", 10)
    film.add(frame())
    film.discard()
    Film(tmp_path / "b.mp4", 10).discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("second, said", [(frame(15, 32), "even sizes"), (frame(32, 32), "expected 16x32 as before")])
def test_frames_are_of_one_even_size(tmp_path, second, said: str) -> None:
    film = Film(tmp_path / "a.mp4", 10)
    film.add(frame())
    with pytest.raises(InputError, match=said):
        film.add(second)
    film.discard()


def test_a_film_without_frames_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="no frame"):
        Film(tmp_path / "a.mp4", 10).close()


def test_cameras_of_different_heights_stand_side_by_side() -> None:
    both = side_by_side([frame(15, 8), frame(6, 5)])
    assert both.shape == (16, 14, 3)
    assert both[:15, :8].min() == 90
    assert both[:6, 8:13].min() == 90
    assert both[6:, 8:].max() == both[:, 13:].max() == 0
