"""The contract as a document: one robot and one checkpoint, read from and written to JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError, model_validator

from cosmos_robot.contract.base import Spec
from cosmos_robot.contract.migration import migrated
from cosmos_robot.contract.model import ModelSpec
from cosmos_robot.contract.numbers import Statistics
from cosmos_robot.contract.robot import RobotSpec
from cosmos_robot.errors import ContractError

CONTRACT_FILE = "contract.json"
CONTRACT_VERSION: Final = 2


class Contract(Spec):
    """One robot and one checkpoint. Widths, cameras and ranges of the two halves are checked against each other."""

    version: Literal[2] = CONTRACT_VERSION
    robot: RobotSpec
    model: ModelSpec
    note: str = ""

    @property
    def action_width(self) -> int:
        """Columns of the model's action rows, before padding."""
        space = self.model.action_space
        return space.width if space else self.robot.action_width

    @property
    def state_width(self) -> int:
        """Columns of the model's state row, before padding."""
        space = self.model.state_space
        return space.width if space else self.robot.state_width

    @property
    def reads_state(self) -> bool:
        """Whether a chunk needs the robot's state where it begins: as a row of its own, or because commands are rows
        relative to it. Where one chunk of a rollout joins the next, somebody has to tell it."""
        space = self.model.action_space
        return self.model.state_row or (space is not None and space.relative)

    @property
    def fps(self) -> float:
        """Frames per second told to the model: ``model.fps``, or else those of a video with ``actions_per_frame``."""
        return self.model.fps or self.robot.rate_hz / self.model.actions_per_frame

    @model_validator(mode="after")
    def _halves_agree(self) -> Contract:
        for p in self.model.canvas.placements:
            camera = self.robot.camera(p.camera)
            if p.crop.top + p.crop.height > camera.height or p.crop.left + p.crop.width > camera.width:
                raise ValueError(f"crop of {p.camera!r} leaves its {camera.height}x{camera.width} picture: {p.crop}")
        for what, norm, width in (
            ("state", self.model.state_normalization, self.state_width),
            ("action", self.model.action_normalization, self.action_width),
        ):
            if norm.statistics and norm.statistics.width != width:
                raise ValueError(
                    f"{what} statistics have {norm.statistics.width} dimensions, the model's {what} {width}"
                )
        return self

    def with_statistics(self, *, action: Statistics | None = None, state: Statistics | None = None) -> Contract:
        """This contract with statistics in its normalisers, in place of those it has; None leaves a side as it is.

        ``cosmos_robot.actions.statistics_files`` reads them from published files. Raises ContractError if they are of
        another width or lack what the method needs.
        """
        data = self.model_dump()
        for side, given in (("action", action), ("state", state)):
            if given is not None:
                data["model"][f"{side}_normalization"] |= {"statistics": given.model_dump()}
        try:
            return Contract.model_validate(data)
        except ValidationError as error:
            raise ContractError(f"{self.model.name}: {'; '.join(e['msg'] for e in error.errors())}") from error

    def save(self, folder: Path) -> Path:
        """Write ``contract.json`` into ``folder`` and return its path."""
        path = Path(folder) / CONTRACT_FILE
        path.write_text(self.model_dump_json(indent=2) + "\n")
        return path

    @classmethod
    def load(cls, folder: Path) -> Contract:
        """Read ``contract.json`` from ``folder``. Raises ContractError if it is absent or malformed."""
        path = Path(folder) / CONTRACT_FILE
        if not path.is_file():
            raise ContractError(f"no {CONTRACT_FILE} in {folder}; a checkpoint without its contract is not run")
        return read_contract(path)


def read_contract(path: Path) -> Contract:
    """The contract in the JSON file ``path``, of this version or older.

    A file of this version states every field whose absence would leave a choice open. Raises ContractError naming each
    fault.
    """
    try:
        data = json.loads(path.read_text(), parse_constant=_refuse_constant)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ContractError(f"{path} is not a contract, not even JSON: {error}") from error
    try:
        contract = Contract.model_validate(migrated(_object(data), CONTRACT_VERSION))
        if data["version"] == CONTRACT_VERSION:
            _require_stated(data, contract.model_dump(mode="json"))
        return contract
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc'])) or 'contract'}: {e['msg']}" for e in error.errors()]
        raise ContractError(
            f"{path} is not a contract of version {CONTRACT_VERSION}:" + "".join(f"\n  - {line}" for line in wrong)
        ) from error
    except ContractError as error:
        raise ContractError(f"{path}: {error}") from error


def _require_stated(data: Any, whole: Any) -> None:
    """Raise ContractError naming the fields of ``whole`` that ``data`` leaves to a default which means something."""
    missing = list(_unstated(data, whole, ""))
    if missing:
        raise ContractError("not stated, and nothing is guessed:" + "".join(f"\n  - {line}" for line in missing))


def _unstated(data: Any, whole: Any, path: str) -> Iterator[str]:
    if isinstance(whole, dict) and isinstance(data, dict):
        for key, value in whole.items():
            if key in data:
                yield from _unstated(data[key], value, f"{path}{key}.")
            elif value not in (None, "", []):
                yield f"{path}{key} (for instance {json.dumps(value)})"
    elif isinstance(whole, list) and isinstance(data, list):
        for number, (one, other) in enumerate(zip(data, whole, strict=False)):
            yield from _unstated(one, other, f"{path}{number}.")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number that a contract may hold")


def _object(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ContractError(f"expected a JSON object with version, robot and model, got {type(data).__name__}")
    return data
