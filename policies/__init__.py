"""Policies by name: shipped checkpoints, checkpoint folders, hub ids, and the two that know nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cosmos_robot.contract import Contract
from cosmos_robot.errors import ContractError, InputError, UnknownNameError
from cosmos_robot.registry import Registry

if TYPE_CHECKING:
    from cosmos_robot.policies.base import Policy

FAKES = Registry("policy")
"""Policies made from a contract alone."""
FAKES.add("random", "cosmos_robot.policies.fakes:RandomPolicy")
FAKES.add("zero", "cosmos_robot.policies.fakes:ZeroPolicy")

BACKBONES = Registry("backbone")
"""Loaders of checkpoint policies, by the backbone that their contract names: (ref, device) to a policy."""
BACKBONES.add("cosmos3", "cosmos_robot.policies.cosmos3:load")


def blind_control(name: str | Path) -> str:
    """The checkpoint that is the blind control of ``name``: its neighbour ``<name>-blind``."""
    return f"{str(name).rstrip('/')}-blind"


def load_policy(
    name: str | Path, *, contract: Contract | None = None, blind: bool = False, device: str = "cpu"
) -> Policy:
    """The policy called ``name``.

    name: ``random`` or ``zero`` (these need the ``contract`` to act under), a shipped or released checkpoint, a folder,
    or a hub id. blind: its blind control instead, the neighbour ``<name>-blind``. Raises UnknownNameError with the
    nearest names, CheckpointError or ContractError.
    """
    from cosmos_robot.backbone.cosmos3.folder import find_checkpoint, known_names
    from cosmos_robot.backbone.cosmos3.released import released

    if name in FAKES:
        if contract is None or blind:
            raise InputError(f"policy {name!r} needs a contract and has no blind control; got {contract=}, {blind=}")
        return FAKES.get(str(name))(contract)
    known = [*FAKES, *known_names()]
    plain = isinstance(name, str) and "/" not in name and not Path(name).is_dir()
    if plain and name not in known and not released(name):
        raise UnknownNameError("policy", name, known)
    if contract is not None:
        raise InputError(f"policy {name!r} is a checkpoint and brings its own contract; pass none")
    ref = blind_control(name) if blind else name
    found = find_checkpoint(ref)
    made_for = found.contract().model
    if blind and made_for.sees:
        raise ContractError(f"{found.name} is called a blind control, but its contract says model.sees=True")
    return BACKBONES.get(made_for.backbone)(ref, device)
