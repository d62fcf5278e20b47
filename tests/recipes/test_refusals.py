"""What collecting and recipes refuse before the first process is started."""

from __future__ import annotations

import math

import pytest

from cosmos_robot import recipes
from cosmos_robot.errors import CheckpointError, ContractError, InputError, UnknownNameError


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


@pytest.mark.parametrize("recipe", ["tiny-libero", "tiny-cosmos-policy", "tiny-world-model"])
@pytest.mark.parametrize("scale", [0, -1, math.nan, math.inf])
def test_a_scale_that_is_no_share_is_refused(tmp_path, recipe: str, scale: float):
    with pytest.raises(InputError, match="scale"):
        recipes.train(recipe, tmp_path, scale=scale)
    assert not list(tmp_path.iterdir())


def test_rollouts_name_the_nearest_before_anything_is_started(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'libero_object"):
        recipes.collect(tmp_path / "data", ("libero_object/0", "libero_objct/0"), policy="tiny-libero")
    with pytest.raises(UnknownNameError, match="did you mean 'pusht'"):
        recipes.collect(tmp_path / "data", ("push/0",), policy="tiny-libero")
    with pytest.raises(UnknownNameError, match="tiny-libero"):
        recipes.collect(tmp_path / "data", ("libero_object/0",), policy="tiny-libro")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"policy": "tiny-libero", "checkpoint": "tiny-libero"}, "choose one of them"),
        ({"rollouts": recipes.RolloutFlags(noise=0.1)}, "say whose with --policy"),
        ({"policy": "random"}, "--contract"),
        ({"policy": "tiny-libero", "rollouts": recipes.RolloutFlags(contract="tiny-libero")}, "brings its own"),
        ({"policy": "tiny-libero", "rollouts": recipes.RolloutFlags(max_steps=0)}, "max_steps"),
        ({"policy": "tiny-libero", "rollouts": recipes.RolloutFlags(execute=17)}, "execute=17"),
        ({"policy": "tiny-libero", "rollouts": recipes.RolloutFlags(noise=2.0)}, "noise"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(tmp_path, flags, named):
    with pytest.raises(InputError, match=named):
        recipes.collect(tmp_path / "data", ("libero_object/0",), **flags)
    assert not (tmp_path / "data").exists()


def test_a_robot_that_is_not_the_policys_is_refused_by_field(tmp_path):
    with pytest.raises(ContractError, match="robot"):
        recipes.collect(tmp_path / "data", ("fake/0",), episodes=1, workers=1, policy="tiny-libero")
