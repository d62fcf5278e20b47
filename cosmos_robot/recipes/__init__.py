"""Whole jobs made of the package's parts: record demonstrations, train a checkpoint from nothing.

The top layer, beside the command line: the only place under ``cosmos_robot`` that knows simulators and policies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cosmos_robot.errors import InputError
from cosmos_robot.registry import Registry

RECIPES = Registry("recipe")
RECIPES.add("tiny-libero", "cosmos_robot.recipes.tiny_libero:reproduce")
RECIPES.add("tiny-cosmos-policy", "cosmos_robot.recipes.tiny_cosmos_policy:reproduce")
RECIPES.add("tiny-world-model", "cosmos_robot.recipes.tiny_world_model:reproduce")
RECIPES.add("trends-latent-frames", "cosmos_robot.recipes.tiny_cosmos_policy:trend")
RECIPES.add("trends-joint", "cosmos_robot.recipes.trends:joint")
RECIPES.add("trends-adaptation", "cosmos_robot.recipes.trends:adaptation")


def check_run(parts: Sequence[str], until: str | None, scale: float) -> None:
    """Raise InputError for a part that a recipe lacks, or a scale that is no positive number."""
    if until is not None and until not in parts:
        raise InputError(f"until: expected one of {', '.join(parts)}, got {until!r}")
    if not 0 < scale < math.inf:
        raise InputError(f"scale: expected a positive number, got {scale}")


@dataclass(frozen=True)
class RolloutFlags:
    """How the rollouts of a policy are made."""

    execute: int | None = None
    """Rows run per decision; the contract's when not given."""
    max_steps: int | None = None
    """Control steps after which an episode ends; the environment's own budget when not given."""
    noise: float = 0.0
    """Correlated noise on the commands, as a share of half their range; rotations get 0.3 of it, grippers none."""
    seed: int = 0
    """From which the seed of every decision is derived; each decision has its own."""
    plan: str | None = None
    """Decide by search, such as best-of-8."""
    hdf5: Path | None = None
    """Folder for the episodes as Cosmos Policy's HDF5 files too; these show every control step, each a picture."""
    contract: str | None = None
    """Contract that the policies random and zero act under: a name, a checkpoint's folder or a file."""
    python: str | None = None
    """Interpreter of the simulators, where they live in an environment of their own, as RoboCasa does."""
    device: str = "cpu"
    """Where the policy computes."""
    threads: int = 1
    """Threads of the policy's computations on CPU."""


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
        recipe: tiny-libero, tiny-cosmos-policy, tiny-world-model, trends-latent-frames, trends-joint or
            trends-adaptation.
        out: folder for everything: datasets, runs, and the checkpoint in a folder of the recipe's name; runs/<recipe>
            if not given.
        until: stop after this part (tiny-libero: demos, tokenizer, policy, corrections, corrected, blind;
            tiny-cosmos-policy: demos, joint, rollouts, refined; tiny-world-model: demos, tokenizer, model); trends have
            no parts.
        workers: processes that record.
        scale: share of the recipe's demonstrations and training steps; below 1 it is a trial.
        corrections: add a round in which the policy drives and the expert labels (DAgger).
    """
    RECIPES.get(recipe)(
        out or Path("runs") / recipe, until=until, workers=workers, scale=scale, corrections=corrections
    )


def collect(
    out: Path | None = None,
    envs: Annotated[tuple[str, ...], tyro.conf.arg(aliases=["--env"])] = (),
    episodes: int = 20,
    first_seed: int = 1000,
    workers: int = 2,
    checkpoint: str | None = None,
    policy: str | None = None,
    rollouts: RolloutFlags = RolloutFlags(),
) -> None:
    """Record episodes as a LeRobot v3 dataset with a picture sheet: scripted demonstrations in LIBERO or PushT, or with
    --policy the rollouts of a policy in any environment. They begin in layouts of their own, never in an evaluation's.

    Args:
        out: dataset folder to write; the picture sheet lies beside it. runs/demonstrations, or runs/rollouts/POLICY, if
            not given.
        envs: environments, for instance libero_object/0 libero_object/1.
        episodes: attempts per environment. Demonstrations that fail are counted and left out; rollouts are all kept.
        first_seed: layouts are drawn from this seed and the ones that follow.
        workers: simulator processes.
        checkpoint: let this policy (shipped name or folder) drive and only label where it gets to (DAgger).
        policy: whose rollouts to record: shipped name, folder, hub id, tcp://HOST:PORT, random or zero.
        rollouts: how rollouts are made.
    """
    from rich.console import Console

    from cosmos_robot.data.lerobot_writing import require_absent

    if not envs:
        raise InputError("collect: name at least one environment, for instance libero_object/0")
    if episodes < 1 or first_seed < 0:
        raise InputError(f"collect: expected episodes >= 1 and first_seed >= 0, got {episodes} and {first_seed}")
    if out is None:
        out = Path("runs/demonstrations") if policy is None else Path("runs/rollouts") / _file_name(policy)
    require_absent(out)
    if policy is not None:
        if checkpoint is not None:
            raise InputError("--policy records what a policy does, --checkpoint corrects one; choose one of them")
        from cosmos_robot.recipes.rollouts import record_rollouts

        record_rollouts(policy, out, envs, episodes, first_seed, workers, rollouts)
        return
    if rollouts != RolloutFlags():
        raise InputError("--noise, --execute and their like are about rollouts; say whose with --policy")
    _demonstrate(out, envs, episodes, first_seed, workers, checkpoint)
    Console(highlight=False).print(f"{out}, pictures in {out}.png", markup=False, soft_wrap=True)


def _file_name(policy: str) -> str:
    return re.sub("[^A-Za-z0-9_.-]+", "-", policy).strip("-.")


def _demonstrate(
    out: Path, envs: tuple[str, ...], episodes: int, first_seed: int, workers: int, checkpoint: str | None
) -> None:
    if "pusht/0" in envs:
        from cosmos_robot.envs.pusht_demos import record_demos as record_pushes

        if len(envs) > 1 or checkpoint is not None:
            raise InputError(
                "collect: pusht/0 is another robot than LIBERO's; record it by itself, without --checkpoint"
            )
        record_pushes(out, episodes, first_seed=first_seed, workers=workers)
        return
    from cosmos_robot.backbone.cosmos3.folder import find_checkpoint
    from cosmos_robot.envs.libero import find_task
    from cosmos_robot.recipes.tiny_libero import record_demos

    for env in envs:
        find_task(env)
    driver = None if checkpoint is None else find_checkpoint(checkpoint).folder
    record_demos(out, dict.fromkeys(envs, episodes), first_seed, workers, driver)
