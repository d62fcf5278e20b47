"""What a user says about a robot, its recordings and its training: a TOML file, or a Python file with ``DESCRIPTION``.

What concerns the robot must be said. What concerns only the model is taken from the contract of the checkpoint that
training begins with, and every field that was taken is told.
"""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError, model_validator

from cosmos_robot.backbone.cosmos3.layout import PlanMode
from cosmos_robot.contract import Contract, Normalization, RobotSpec, load_contract, load_robot
from cosmos_robot.contract.base import Spec
from cosmos_robot.contract.model import Mode
from cosmos_robot.data.bridge import DataSpec
from cosmos_robot.errors import ContractError, CosmosRobotError

MUST_SAY: Final = ("name", "domain_id", "domain_name", "chunk", "execute", "state_row", "canvas", "normalization")
"""Fields of [model] that no other robot's checkpoint can answer."""
CANVAS_MUST_SAY: Final = ("height", "width", "placements")
NEVER_TAKEN: Final = (
    "state_normalization", "action_normalization", "state_space", "action_space", "frames", "fps", "modes",
)  # fmt: skip
"""Fields of a contract that belong to its robot, so they are empty unless said; the modes are those of [training]."""
NAME: Final = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,80}")
"""Of a model: its exported folder is called so."""
SECTIONS: Final = ("start", "env", "data", "robot", "model", "training", "tokenizer", "overfit")


Share = Annotated[float, Field(gt=0)]


class TrainingSpec(Spec):
    """How long and how. modes: how often a sample is drawn as each, or "joint" for the report's mixture
    (``training.model_config.JOINT``); they become the contract's. recipe: settings of
    ``training.model_config.PostTraining`` that differ from the published ones. lora: adapters of this rank instead of
    the weights themselves."""

    steps: int = Field(ge=1)
    batch: int = Field(default=32, ge=1)
    modes: Literal["joint"] | Annotated[dict[PlanMode, Share], Field(min_length=1)] = Field(
        default_factory=lambda: {"policy": 1.0}
    )
    recipe: dict[str, Any] = Field(default_factory=dict)
    lora: int | None = Field(default=None, ge=1)
    checkpoint_layers: bool = False
    compute: Literal["bfloat16", "float32"] = "bfloat16"
    device: str = "cpu"
    threads: int = Field(default=2, ge=1)
    seed: int = Field(default=42, ge=0)

    @property
    def shares(self) -> dict[PlanMode, float]:
        """``modes`` with the mixture by its parts."""
        if self.modes != "joint":
            return dict(self.modes)
        from cosmos_robot.training.model_config import JOINT

        return dict(JOINT)

    @property
    def acts(self) -> bool:
        """Whether what comes out is a policy."""
        return not {"policy", "wam"}.isdisjoint(self.shares)


class TokenizerSpec(Spec):
    """Fine-tuning of the start's autoencoder on the new pictures, before anything else. lr: peak."""

    steps: int = Field(ge=1)
    lr: float = Field(default=1e-3, gt=0)
    batch: int = Field(default=32, ge=1)


class OverfitSpec(Spec):
    """The one-episode test. episode: its index among the episodes that are kept, the first is 0."""

    steps: int = Field(default=300, ge=1)
    episode: int = Field(default=0, ge=0)


class Description(Spec):
    """A description, complete. start: checkpoint to begin with. env: simulator to try the policy in, if there is one.
    normalization: the method of both normalisers. scale_floor: of both, in the model's units before normalising; None
    leaves it to ``prepare.scale_floor``. taken: fields of the model that are the start's, in words."""

    start: str
    env: str | None = None
    data: DataSpec
    contract: Contract
    normalization: Literal["quantile", "minmax", "meanstd"]
    scale_floor: float | None = Field(default=None, gt=0)
    training: TrainingSpec
    tokenizer: TokenizerSpec | None = None
    overfit: OverfitSpec = OverfitSpec()
    taken: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _executes(self) -> Description:
        if self.data.stride > self.contract.model.execute:
            raise ValueError(
                f"data.stride {self.data.stride} is more than model.execute {self.contract.model.execute}: decisions "
                "would be trained at fewer moments than they are made"
            )
        return self


@dataclass(frozen=True)
class _Written:
    """The parts of a description as written, and where."""

    path: Path
    parts: dict[str, Any]


def read_description(path: Path) -> Description:
    """The description at ``path``, a .toml or .py file. Paths in it are relative to it.

    Raises ContractError naming every field that is missing, unknown or out of range.
    """
    written = _Written(path, _parts(path))
    missing = list(_missing(written.parts))
    if missing:
        raise ContractError(f"{path} does not say everything:" + "".join(f"\n  - {line}" for line in missing))
    parts = dict(written.parts)
    try:
        model = dict(parts.pop("model"))
        parts["normalization"], parts["scale_floor"] = model.pop("normalization"), model.pop("scale_floor", None)
        contract, taken = _contract(parts.pop("robot"), model, parts["start"])
        data = dict(parts.pop("data"))
        data["path"] = str((path.parent / data["path"]).resolve())
        made = Description.model_validate({**parts, "data": data, "contract": contract, "taken": taken})
        return made.model_copy(update={"contract": with_modes(contract, tuple(made.training.shares))})
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc'])) or 'description'}: {e['msg']}" for e in error.errors()]
        raise ContractError(f"{path}:" + "".join(f"\n  - {line}" for line in wrong)) from error


def _parts(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ContractError(f"no description at {path}; write one as in docs/finetune.md, a .toml or .py file")
    if path.suffix == ".toml":
        try:
            return tomllib.loads(path.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ContractError(f"{path} is no TOML: {error}") from error
    if path.suffix == ".py":
        found = runpy.run_path(str(path)).get("DESCRIPTION")
        if isinstance(found, dict):
            return found
        raise ContractError(f"{path}: expected a dictionary DESCRIPTION, got {type(found).__name__}")
    raise ContractError(f"{path}: expected a .toml or a .py file")


def _missing(parts: Mapping[str, Any]) -> Iterator[str]:
    for name in parts:
        if name not in SECTIONS:
            yield f"{name}: unknown; there are {', '.join(SECTIONS)}"
    for name, about in (
        ("start", "checkpoint to begin with, such as tiny-libero"),
        ("data", "where the recordings lie: path, stride"),
        ("robot", 'a known robot (known = "NAME") or all fields of one'),
        ("model", "what the model is to be"),
        ("training", "how long: steps"),
    ):
        if name not in parts:
            yield f"{name}: {about}"
    model, canvas = parts.get("model"), None
    if isinstance(model, Mapping):
        yield from (f"model.{name}" for name in MUST_SAY if name not in model)
        if "name" in model and not (isinstance(model["name"], str) and NAME.fullmatch(model["name"])):
            yield (
                f"model.name: got {str(model['name'])[:100]!r}, expected 1 to 80 letters (a to z), digits, '.', '_', "
                "'-', not '.' at first; the exported folder is called so"
            )
        if "modes" in model:
            yield "model.modes: becomes what is trained; say that, with weights, as in training.modes = { policy = 1 }"
        canvas = model.get("canvas")
    if isinstance(canvas, Mapping):
        yield from (f"model.canvas.{name}" for name in CANVAS_MUST_SAY if name not in canvas)
    for section, needed in (("data", ("path", "stride")), ("training", ("steps",))):
        if isinstance(parts.get(section), Mapping):
            yield from (f"{section}.{name}" for name in needed if name not in parts[section])


def _contract(robot: Mapping[str, Any], model: dict[str, Any], start: str) -> tuple[Contract, tuple[str, ...]]:
    template = load_contract(start).model.model_dump(mode="json")
    taken = []
    for name, value in template.items():
        if name in NEVER_TAKEN or name in MUST_SAY:
            continue
        if name not in model:
            model[name] = value
            taken.append(name)
    for name, value in template["canvas"].items():
        if name not in model["canvas"]:
            model["canvas"] = {**model["canvas"], name: value}
            taken.append(f"canvas.{name}")
    unstated = Normalization(method="identity", scale_floor=1.0).model_dump(mode="json")
    model |= {"state_normalization": unstated, "action_normalization": unstated}
    made = Contract.model_validate({"robot": _robot(robot).model_dump(mode="json"), "model": model})
    return made, tuple(taken)


def with_modes(contract: Contract, modes: tuple[Mode, ...]) -> Contract:
    """``contract`` with these modes instead of its own."""
    return Contract(robot=contract.robot, model=contract.model.model_copy(update={"modes": modes}))


def _robot(robot: Mapping[str, Any]) -> RobotSpec:
    if "known" in robot:
        if set(robot) != {"known"}:
            raise ContractError(
                f"robot: known = {robot['known']!r} says everything; drop {sorted(set(robot) - {'known'})}"
            )
        return load_robot(str(robot["known"]))
    return RobotSpec.model_validate(dict(robot))


def require_start(start: str) -> None:
    """Raise if there is no checkpoint of that name with weights that training can begin with."""
    from cosmos_robot.backbone.cosmos3.folder import find_checkpoint

    try:
        find_checkpoint(start)
    except CosmosRobotError as error:
        raise ContractError(f"start = {start!r}: {error}") from error
