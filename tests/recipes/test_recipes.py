"""Recipes: what they refuse, and that their parts fit together."""

from __future__ import annotations

import pytest

from cosmos_robot import recipes
from cosmos_robot.contract import require_fit
from cosmos_robot.envs.libero import LIBERO_PANDA, suites
from cosmos_robot.errors import InputError, UnknownNameError
from cosmos_robot.recipes import tiny_cosmos_policy, tiny_libero, tiny_world_model


def test_unknown_recipe_names_the_nearest(tmp_path):
    with pytest.raises(UnknownNameError, match="tiny-libero"):
        recipes.train("tiny-libro", tmp_path)


@pytest.mark.parametrize(
    ("recipe", "part"),
    [("tiny-libero", "tokenizer"), ("tiny-cosmos-policy", "rollouts"), ("tiny-world-model", "model")],
)
def test_unknown_part_is_refused_before_anything_runs(tmp_path, recipe, part):
    with pytest.raises(InputError, match=part):
        recipes.train(recipe, tmp_path, until="vae")
    assert not list(tmp_path.iterdir())


def test_collecting_from_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match="environment"):
        recipes.collect(tmp_path / "data", ())


@pytest.mark.parametrize("recipe", [tiny_libero, tiny_cosmos_policy, tiny_world_model])
def test_the_contract_fits_the_environment_and_shows_every_camera(recipe):
    contract = recipe.contract()
    require_fit(contract, LIBERO_PANDA)
    placed = {p.camera for p in contract.model.canvas.placements}
    assert placed == {camera.name for camera in LIBERO_PANDA.cameras}


def test_demonstrated_tasks_exist():
    known = {f"{suite}/{task.index}" for suite, tasks in suites().items() for task in tasks}
    assert set(tiny_libero.DEMOS) <= known and set(tiny_libero.CORRECTIONS) <= known


def test_training_plans_are_bounded_by_steps_so_that_they_repeat(tmp_path):
    for stage in (*tiny_libero.POLICY, *tiny_libero.CORRECTED, *tiny_libero.BLIND):
        assert stage.steps is not None
    config = tiny_libero.policy_training(tmp_path, "policy", (tmp_path / "demos",), tiny_libero.POLICY)
    assert config.contract.model.chunk == 16 and not config.blind
