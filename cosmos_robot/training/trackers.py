"""Further places for a run's log, beside ``log.jsonl``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from cosmos_robot.errors import DependencyError

Tracker = Callable[[dict], None]
_WORDS = ("kind", "cycle", "step")


def trackers(names: Sequence[Literal["tensorboard", "wandb"]], folder: Path, config: dict) -> list[Tracker]:
    """One for each name, to be called with every record. Raises DependencyError where its package is missing."""
    return [{"tensorboard": _tensorboard, "wandb": _wandb}[name](folder, config) for name in names]


def _tensorboard(folder: Path, config: dict) -> Tracker:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise DependencyError(f"logging to tensorboard: {error}; pip install tensorboard, or leave it out") from error
    writer = SummaryWriter(str(folder / "tensorboard"))

    def track(record: dict) -> None:
        for name, value in _numbers(record).items():
            writer.add_scalar(name, value, record["step"])
        writer.flush()

    return track


def _wandb(folder: Path, config: dict) -> Tracker:
    try:
        import wandb
    except ImportError as error:
        raise DependencyError(f"logging to wandb: {error}; pip install wandb, or leave it out") from error
    run = wandb.init(project="cosmos-robot", name=folder.name, dir=str(folder), config=config, resume="allow")
    return lambda record: run.log(_numbers(record), step=record["step"])


def _numbers(record: dict) -> dict[str, float]:
    return {f"{record['kind']}/{name}": value for name, value in record.items() if name not in _WORDS}
