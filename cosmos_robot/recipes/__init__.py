"""Whole jobs made of the package's parts: record demonstrations, train a checkpoint from nothing.

The top layer, beside the command line: the only place under ``cosmos_robot`` that knows simulators and policies.
"""

from __future__ import annotations

from pathlib import Path

from cosmos_robot.errors import InputError
from cosmos_robot.registry import Registry

RECIPES = Registry("recipe")
RECIPES.add("tiny-libero", "cosmos_robot.recipes.tiny_libero:reproduce")


def train(
    recipe: str = "tiny-libero",
    out: Path | None = None,
    until: str | None = None,
    workers: int = 2,
    scale: float = 1.0,
    corrections: bool = False,
) -> None:
    """Make a checkpoint by its recipe: demonstrations, autoencoder, policy, blind control, export.

    Run again after a stop, it goes on where it was; finished parts are not repeated.

    Args:
        recipe: name of the recipe, for instance tiny-libero.
        out: folder for everything: datasets, runs, and the checkpoint in a folder of the recipe's name; runs/<recipe>
            if not given.
        until: stop after this part (demos, tokenizer, policy, corrections, corrected, blind).
        workers: processes that record.
        scale: share of the recipe's demonstrations and training steps; below 1 it is a trial.
        corrections: add a round in which the policy drives and the expert labels (DAgger).
    """
    RECIPES.get(recipe)(
        out or Path("runs") / recipe, until=until, workers=workers, scale=scale, corrections=corrections
    )


def collect(
    out: Path,
    envs: tuple[str, ...],
    episodes: int = 20,
    first_seed: int = 1000,
    workers: int = 2,
    checkpoint: str | None = None,
) -> None:
    """Record scripted demonstrations in LIBERO, in layouts of their own, as a LeRobot v3 dataset with a picture sheet.

    Args:
        out: dataset folder to write; the picture sheet lies beside it.
        envs: environments, for instance libero_object/0 libero_object/1.
        episodes: attempts per environment; those that fail are counted and left out.
        first_seed: layouts are drawn from this seed and the ones that follow.
        workers: processes that record.
        checkpoint: let this policy (shipped name or folder) drive and only label where it gets to (DAgger).
    """
    from cosmos_robot.backbone.cosmos3.folder import find_checkpoint
    from cosmos_robot.data.lerobot_writing import require_absent
    from cosmos_robot.envs.libero import find_task
    from cosmos_robot.recipes.tiny_libero import record_demos

    if not envs:
        raise InputError("collect: name at least one environment, for instance libero_object/0")
    if episodes < 1 or first_seed < 0:
        raise InputError(f"collect: expected episodes >= 1 and first_seed >= 0, got {episodes} and {first_seed}")
    require_absent(out)
    for env in envs:
        find_task(env)
    driver = None if checkpoint is None else find_checkpoint(checkpoint).folder
    record_demos(out, dict.fromkeys(envs, episodes), first_seed, workers, driver)
