"""``cosmos-robot contract sheet``: what a checkpoint would see in an environment, as a picture."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

from cosmos_robot.contract import Contract, RobotSpec, load_contract
from cosmos_robot.envs import make
from cosmos_robot.errors import ContractError
from cosmos_robot.images.sheet import write_model_sheet


def contract_sheet(checkpoint: str, env: str, out: Path = Path("sheet.png"), seed: int = 0) -> None:
    """Draw the cameras of an environment beside the canvas that a checkpoint would see of them.

    Args:
        checkpoint: contract name, checkpoint folder or JSON file.
        env: environment, for instance libero_object/0.
        out: PNG to write.
        seed: of the reset.
    """
    contract = load_contract(checkpoint)
    with make(env) as world:
        observation, _ = world.reset(seed=seed)
        path = write_model_sheet(with_cameras(contract, world.robot), observation.images, out)
    Console().print(f"wrote {path}", markup=False, highlight=False)


def with_cameras(contract: Contract, robot: RobotSpec) -> Contract:
    """``contract`` with the cameras that ``robot`` has. Raises ContractError if its canvas cannot be made of them."""
    shown = contract.robot.model_dump() | {"name": robot.name, "cameras": robot.cameras}
    try:
        return Contract.model_validate(contract.model_dump() | {"robot": shown})
    except ValidationError as error:
        reasons = "; ".join(e["msg"].removeprefix("Value error, ") for e in error.errors())
        raise ContractError(f"{contract.model.name!r} cannot be shown {robot.name!r}: {reasons}") from error
