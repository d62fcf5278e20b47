"""What collecting and recipes refuse before the first process is started."""

from __future__ import annotations

import math

import pytest

from cosmos_robot import recipes
from cosmos_robot.errors import CheckpointError, InputError, UnknownNameError


@pytest.mark.parametrize("change", [{"episodes": 0}, {"episodes": -2}, {"first_seed": -1}])
def test_a_collection_of_nothing_is_refused(tmp_path, change):
    with pytest.raises(InputError, match="expected episodes"):
        recipes.collect(tmp_path / "data", ("libero_object/0",), **change)
    assert not list(tmp_path.iterdir())


def test_unknown_environments_name_the_nearest(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'libero_object'"):
        recipes.collect(tmp_path / "data", ("libero_object/0", "libero_objct/0"))
    with pytest.raises(UnknownNameError, match="tiny-libero"):
        recipes.collect(tmp_path / "data", ("libero_object/0",), checkpoint="tiny-libro")
    assert not list(tmp_path.iterdir())


def test_an_existing_output_is_refused_and_left_alone(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(CheckpointError, match="already there"):
        recipes.collect(tmp_path, ("libero_object/0",))
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize("scale", [0, -1, math.nan, math.inf])
def test_a_scale_that_is_no_share_is_refused(tmp_path, scale: float):
    with pytest.raises(InputError, match="scale"):
        recipes.train("tiny-libero", tmp_path, scale=scale)
    assert not list(tmp_path.iterdir())
