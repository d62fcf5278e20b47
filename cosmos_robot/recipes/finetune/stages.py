"""The stages as folders: what each was made from, what it said, and which must come before it.

A stage is done once ``done.json`` lies in its folder, and up to date while what it was made from is the same; what that
is was written into ``begun.json`` when it began. What was cheap to make is made anew when something before it changed,
and so is ``overfit``, a test on which no weights depend; the weights of ``tokenizer`` and ``train`` are never thrown
away.
"""

from __future__ import annotations

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
from cosmos_robot.recipes.finetune.reads import READS, RECORDINGS, START, description_parts, differing, digest, told
from cosmos_robot.recipes.finetune.start import start_weights

BEGUN: Final = "begun.json"
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
    "export": ("describe", "stats", "train", "check"),
    "serve": ("describe", "export"),
}
"""Each stage and those that must be done and up to date before it, in their order. What it reads is in ``reads.py``."""
KEPT: Final = ("tokenizer", "train")
RESUMED: Final = (*KEPT, "overfit")
"""What goes on where it was stopped, if what it was made from is the same."""

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
        return self._read(stage, DONE)["facts"]

    def inside(self, path: Path) -> str:
        """A path below ``out`` as facts hold it: from ``out`` on, which may be moved."""
        return path.resolve().relative_to(self.out.resolve()).as_posix()

    def found(self, stage: str, name: str) -> Path:
        """The path that is a fact of a stage that is done."""
        return self.out / self.facts(stage)[name]

    def is_done(self, stage: str) -> bool:
        return (self.folder(stage) / DONE).is_file()

    def before(self, stage: str) -> tuple[str, ...]:
        """The stages that must come before ``stage``, the optional one included where it is asked for."""
        needs = AFTER[stage]
        if "tokenizer" in READS[stage].found and self.description().tokenizer is not None:
            needs = (*needs, "tokenizer")
        return needs

    def require(self, stage: str) -> None:
        """Raise InputError with the command to type unless all before ``stage`` is done and up to date."""
        for need in self.before(stage) if self.is_done("describe") else AFTER[stage]:
            if not self.is_done(need):
                raise InputError(f"{stage}: {need} was not done in {self.out}; run: {command(need, self.out)}")
            changed = differing(self._read(need, DONE)["made_from"], self._made_from(need))
            if need != "describe" and changed:
                raise InputError(
                    f"{stage}: {need} was done in {self.out} before {told(changed)} changed; run: "
                    f"{command(need, self.out)}"
                )

    def perform(
        self, stage: str, work: Callable[[Path, Say], dict[str, Any]], say: Say, given: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Do ``stage``, or tell again what it said. ``work`` gets the folder and returns facts; ``given``, JSON values,
        is what it was asked besides. Raises InputError where a stage before it is missing or out of date, or where
        weights would have to be trained anew."""
        self.require(stage)
        given = json.loads(json.dumps(given or {}, default=str))
        about = {"stage": stage, "given": given, "made_from": self._made_from(stage)}
        with owned(self.out, f"working in {self.out}"):
            if self.is_done(stage) and not self._changed(stage, about):
                done = self._read(stage, DONE)
                say(f"{stage}: done already, in {self.folder(stage)}")
                for line in done["said"]:
                    say(f"  {line}")
                return done["facts"]
            self._begin(stage, about)
            said: list[str] = []

            def tell(line: str) -> None:
                said.append(line)
                say(f"  {line}")

            say(f"{stage}:")
            facts = work(self.folder(stage), tell)
            write_json(self.folder(stage) / DONE, {**about, "said": said, "facts": facts})
            return facts

    def _begin(self, stage: str, about: Mapping[str, Any]) -> None:
        """The stage's folder, empty or what is to be gone on with, with a note of what it is made from. Raises
        InputError where weights that are never thrown away are of something else."""
        folder = self.folder(stage)
        if folder.is_dir() and any(folder.iterdir()):
            changed = self._changed(stage, about)
            if changed and stage in KEPT:
                when = f"was {'trained' if self.is_done(stage) else 'begun'} before {told(changed)} changed"
                if changed == [BEGUN]:
                    when = f"has no {BEGUN}, so nobody knows what its weights are being made from"
                raise InputError(
                    f"{stage}: {folder} {when}; move it away or delete it yourself, or choose another --out"
                )
            if changed or stage not in RESUMED:
                shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / BEGUN, about)

    def _changed(self, stage: str, about: Mapping[str, Any]) -> list[str]:
        """Names of what differs from when the stage was done or begun; ``[BEGUN]`` where it did not say."""
        file = DONE if self.is_done(stage) else BEGUN
        if not (self.folder(stage) / file).is_file():
            return [BEGUN]
        old = self._read(stage, file)
        return differing(old["made_from"], about["made_from"]) + differing(old.get("given") or {}, about["given"])

    def _made_from(self, stage: str) -> dict[str, Any]:
        """What the stage reads as it is now. None stands for a stage that was asked for and is not done."""
        if stage == "describe":
            return {}
        description, reads = self.description(), READS[stage]
        made: dict[str, Any] = description_parts(stage, description)
        if "data" in reads.parts:
            made[RECORDINGS] = self.facts("describe")["data"]
        noted = self.facts("describe").get("start")  # runs of versions that did not look have none
        if "start" in reads.parts and noted is not None:
            made[START] = start_weights(description.start, noted)
        for name in reads.found:
            if name != "tokenizer" or description.tokenizer is not None:
                made[name] = digest(self.facts(name)) if self.is_done(name) else None
        return made

    def _read(self, stage: str, file: str) -> dict[str, Any]:
        return json.loads((self.folder(stage) / file).read_text())


def command(stage: str, out: Path) -> str:
    """What to type for a stage."""
    words = {"describe": "describe DESCRIPTION.toml", "train": "run"}.get(stage, stage)
    return f"cosmos-robot train {words} --out {out}"


def write_json(path: Path, value: Any) -> None:
    """Write whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=2) + "\n")
    part.replace(path)
