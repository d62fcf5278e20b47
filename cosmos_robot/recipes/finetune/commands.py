"""``cosmos-robot train STAGE``: one command for each stage of fine-tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from cosmos_robot.recipes.finetune.stages import AFTER, Run, Say


def describe(description: Annotated[Path, tyro.conf.Positional], out: Path) -> None:
    """A robot's description as a contract: what it says, what is missing, where each number comes from.

    Args:
        description: a .toml file, or a .py file with DESCRIPTION; see docs/finetune.md.
        out: folder of this and all further stages.
    """
    from cosmos_robot.recipes.finetune.prepare import describe as work

    work(Run(out), description, said())


def lint(out: Path) -> None:
    """What is wrong with the recordings, by themselves and against the contract.

    Args:
        out: folder in which the description was made.
    """
    from cosmos_robot.recipes.finetune.prepare import lint as work

    work(Run(out), said())


def stats(out: Path) -> None:
    """Statistics of the training episodes, in the model's space, and the contract with them.

    Args:
        out: folder of the stages.
    """
    from cosmos_robot.recipes.finetune.prepare import stats as work

    work(Run(out), said())


def plan(out: Path, probe: bool = True) -> None:
    """Memory and time of the training, before anything is loaded.

    Args:
        out: folder of the stages.
        probe: try two steps of a small model for the time.
    """
    from cosmos_robot.recipes.finetune.plan import plan as work

    work(Run(out), probe, said())


def tokenizer(out: Path) -> None:
    """Fine-tune the autoencoder on the new pictures, where the description asks for it.

    Args:
        out: folder of the stages.
    """
    from cosmos_robot.recipes.finetune.learn import tokenizer as work

    work(Run(out), said())


def overfit(out: Path) -> None:
    """Learn one episode by heart, and replay it in simulation beside the recorded one.

    Args:
        out: folder of the stages.
    """
    from cosmos_robot.recipes.finetune.learn import overfit as work

    work(Run(out), said())


def run(out: Path) -> None:
    """Train on all episodes but the held-out ones. Run again after a stop, it goes on where it was.

    Args:
        out: folder of the stages.
    """
    from cosmos_robot.recipes.finetune.learn import train as work

    work(Run(out), said())


def check(out: Path) -> None:
    """Errors on held-out episodes, in the robot's units, against policies that know nothing.

    Args:
        out: folder of the stages.
    """
    from cosmos_robot.recipes.finetune.finish import check as work

    work(Run(out), said())


def export(out: Path) -> None:
    """The checkpoint in the released layout, under its own name.

    Args:
        out: folder of the stages.
    """
    from cosmos_robot.recipes.finetune.finish import export as work

    work(Run(out), said())


def serve(out: Path) -> None:
    """Serve the export once, ask it over the wire, compare, stop.

    Args:
        out: folder of the stages.
    """
    from cosmos_robot.recipes.finetune.finish import serve as work

    work(Run(out), said())


def everything(description: Path, out: Path) -> None:
    """All stages in their order; those that are done are told again."""
    describe(description, out)
    asked = Run(out).description().tokenizer is not None
    stages = {"lint": lint, "stats": stats, "plan": plan, "tokenizer": tokenizer, "overfit": overfit, "train": run,
              "check": check, "export": export, "serve": serve}  # fmt: skip
    for name in AFTER:
        if name in stages and (asked or name != "tokenizer"):
            stages[name](out)


def said() -> Say:
    """A line on the screen."""
    from rich.console import Console

    console = Console(highlight=False)
    return lambda line: console.print(line, markup=False, soft_wrap=True)
