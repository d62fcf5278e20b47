"""What each stage reads: parts of the description, the recordings, and what stages before it found.

A stage is out of date once one of these differs, and only then: a changed number of threads, or a time that a probe
measured, says nothing against trained weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cosmos_robot.recipes.finetune.description import Description

RECORDINGS: Final = "recordings"
START: Final = "start weights"
RUNNING: Final = ("training.threads", "training.device", "training.checkpoint_layers")
"""How fast and where, not what is learnt."""
NEVER_READ: Final = ("data.path", "taken")
"""The path may change with its folder: ``RECORDINGS`` stands for what lies there."""
SHOWN: Final = 5


@dataclass(frozen=True)
class Reads:
    """parts: of the description, by dotted name or the beginning of one; ``data`` brings the recordings with it,
    ``start`` its weights. but: parts among these that are not read. found: stages whose facts are read."""

    parts: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    found: tuple[str, ...] = ()


READS: Final[Mapping[str, Reads]] = {
    "describe": Reads(),
    "lint": Reads(("data", "contract")),
    "stats": Reads(("data", "contract", "normalization", "scale_floor")),
    "plan": Reads(("start", "data", "contract", "training"), found=("stats",)),
    "tokenizer": Reads(
        ("start", "data", "contract.robot", "contract.model.canvas", "contract.model.chunk", "tokenizer")
    ),
    "overfit": Reads(
        ("start", "env", "data", "contract", "training", "overfit"),
        (*RUNNING, "training.steps"),
        ("stats", "tokenizer"),
    ),
    "train": Reads(("start", "data", "contract", "training"), RUNNING, ("stats", "tokenizer")),
    "check": Reads(("data", "contract"), found=("stats", "train")),
    "export": Reads(("start", "env", "data", "contract", "training"), RUNNING, ("stats", "tokenizer", "train")),
    "serve": Reads(("data", "contract"), found=("export",)),
}


def description_parts(stage: str, description: Description) -> dict[str, Any]:
    """The values of the description that ``stage`` reads, each under its dotted name."""
    reads = READS[stage]
    return {
        name: value
        for name, value in _leaves(description.model_dump(mode="json"))
        if _within(name, reads.parts) and not _within(name, (*reads.but, *NEVER_READ))
    }


def digest(facts: Mapping[str, Any]) -> str:
    """Changes with what a stage found."""
    text = json.dumps(facts, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Names whose values differ, or that only one of the two has."""
    return [name for name in {**new, **old} if (name in old) != (name in new) or old.get(name) != new.get(name)]


def told(names: list[str]) -> str:
    """The first few of ``names`` in words."""
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _leaves(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            yield from _leaves(inner, f"{before}{name}.")
        else:
            yield f"{before}{name}", inner


def _within(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)
