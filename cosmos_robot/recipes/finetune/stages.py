"""The stages as folders: what each was made from, what it said, and which must come before it.

A stage is done once ``done.json`` lies in its folder. It is skipped while what it was made from is the same. What was
cheap to make is made anew when something before it changed; trained weights are never thrown away.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cosmos_robot.contract import Contract, read_contract
from cosmos_robot.errors import InputError
from cosmos_robot.ownership import owned
from cosmos_robot.recipes.finetune.description import Description

DONE: Final = "done.json"
CONTRACT: Final = "contract.json"
DESCRIPTION: Final = "description.json"
AFTER: Final[Mapping[str, tuple[str, ...]]] = {
    "describe": (),
    "lint": ("describe",),
    "stats": ("describe", "lint"),
    "plan": ("describe", "stats"),
    "tokenizer": ("describe", "stats", "plan"),
    "overfit": ("describe", "stats", "plan"),
    "train": ("describe", "stats", "plan", "overfit"),
    "check": ("describe", "stats", "train"),
    "export": ("train", "check"),
    "serve": ("describe", "export"),
}
"""Each stage and those it is made from, in their order."""
COSTLY: Final = ("tokenizer", "overfit", "train")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    """All stages of one robot, below ``out``."""

    out: Path

    def folder(self, stage: str) -> Path:
        return self.out / stage

    def description(self) -> Description:
        """What ``describe`` wrote."""
        return Description.model_validate_json((self.folder("describe") / DESCRIPTION).read_text())

    def contract(self) -> Contract:
        """The contract with its statistics, of ``stats``."""
        return read_contract(self.folder("stats") / CONTRACT)

    def facts(self, stage: str) -> dict[str, Any]:
        """What a stage that is done found, as plain values."""
        return self._done(stage)["facts"]

    def is_done(self, stage: str) -> bool:
        return (self.folder(stage) / DONE).is_file()

    def before(self, stage: str) -> tuple[str, ...]:
        """The stages that ``stage`` is made from, the optional one included where it is asked for."""
        needs = AFTER[stage]
        if stage in ("overfit", "train", "check") and self.description().tokenizer is not None:
            needs = (*needs, "tokenizer")
        return needs

    def require(self, stage: str) -> None:
        """Raise InputError with the command to type unless all before ``stage`` is done."""
        for need in AFTER[stage] if stage == "describe" or not self.is_done("describe") else self.before(stage):
            if not self.is_done(need):
                raise InputError(f"{stage}: {need} was not done in {self.out}; run: {command(need, self.out)}")

    def perform(self, stage: str, work: Callable[[Path, Say], dict[str, Any]], given: Any, say: Say) -> dict[str, Any]:
        """Do ``stage``, or tell again what it said. ``work`` gets the folder and returns facts; ``given``, JSON values,
        is what it is made from besides the stages before it. Raises InputError where one of these is missing, or where
        weights would have to be trained anew."""
        self.require(stage)
        folder = self.folder(stage)
        made_from = {"given": given, **{name: self._digest(name) for name in AFTER[stage] and self.before(stage)}}
        made_from = json.loads(json.dumps(made_from, default=str))
        with owned(self.out, f"working in {self.out}"):
            if self.is_done(stage):
                done = self._done(stage)
                changed = [n for n, v in made_from.items() if done["made_from"].get(n) != v]
                if not changed:
                    say(f"{stage}: done already, in {folder}")
                    for line in done["said"]:
                        say(f"  {line}")
                    return done["facts"]
                self._clear(stage, changed)
            elif folder.is_dir() and stage not in COSTLY:
                shutil.rmtree(folder)
            folder.mkdir(parents=True, exist_ok=True)
            said: list[str] = []

            def tell(line: str) -> None:
                said.append(line)
                say(f"  {line}")

            say(f"{stage}:")
            facts = work(folder, tell)
            write_json(folder / DONE, {"stage": stage, "made_from": made_from, "said": said, "facts": facts})
            return facts

    def _clear(self, stage: str, changed: list[str]) -> None:
        folder = self.folder(stage)
        names = ", ".join("what it was given" if n == "given" else n for n in changed)
        if stage in COSTLY:
            raise InputError(
                f"{stage}: {folder} was trained before {names} changed; move it away or delete it yourself, or choose "
                "another --out"
            )
        shutil.rmtree(folder)

    def _done(self, stage: str) -> dict[str, Any]:
        return json.loads((self.folder(stage) / DONE).read_text())

    def _digest(self, stage: str) -> str:
        """Changes when the stage was made from something else, or found something else."""
        done = self._done(stage)
        text = json.dumps([done["made_from"], done["facts"]], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def command(stage: str, out: Path) -> str:
    """What to type for a stage."""
    words = {"describe": "describe DESCRIPTION.toml", "train": "run"}.get(stage, stage)
    return f"cosmos-robot train {words} --out {out}"


def write_json(path: Path, value: Any) -> None:
    """Write whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=2) + "\n")
    part.replace(path)
