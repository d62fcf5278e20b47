"""Policies, world models, inverse models and value models by name: checkpoints, and those that know nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosmos_robot.contract import Contract
from cosmos_robot.errors import ContractError, InputError, UnknownNameError
from cosmos_robot.registry import Registry

if TYPE_CHECKING:
    from cosmos_robot.latent_frames.layout import ValueMode
    from cosmos_robot.policies.base import InverseModel, Policy, ValueModel, WorldModel

FAKES = Registry("policy")
"""Policies made from a contract alone."""
FAKES.add("random", "cosmos_robot.policies.fakes:RandomPolicy")
FAKES.add("zero", "cosmos_robot.policies.fakes:ZeroPolicy")

FAKE_WORLDS = Registry("world model")
"""World models made from a contract alone."""
FAKE_WORLDS.add("still", "cosmos_robot.policies.fakes:StillWorld")

FAKE_INVERSES = Registry("inverse model")
"""Inverse models made from a contract alone."""
FAKE_INVERSES.add("still", "cosmos_robot.policies.fakes:StillInverse")

FAKE_VALUES = Registry("value model")
"""Value models made from a contract and from what they are to read."""
FAKE_VALUES.add("random", "cosmos_robot.policies.fakes:RandomValue")

BACKBONES = Registry("backbone")
"""Loaders of checkpoint policies, by the backbone that their contract names: (ref, device) to a policy."""
BACKBONES.add("cosmos3", "cosmos_robot.policies.cosmos3:load")
BACKBONES.add("predict2", "cosmos_robot.policies.cosmos_policy:load")

WORLD_BACKBONES = Registry("backbone of a world model")
"""As ``BACKBONES``, for world models."""
WORLD_BACKBONES.add("cosmos3", "cosmos_robot.policies.cosmos3:load_world_model")
WORLD_BACKBONES.add("predict2", "cosmos_robot.policies.cosmos_policy:load_world_model")

INVERSE_BACKBONES = Registry("backbone of an inverse model")
"""As ``BACKBONES``, for inverse models."""
INVERSE_BACKBONES.add("cosmos3", "cosmos_robot.policies.cosmos3:load_inverse_model")

VALUE_BACKBONES = Registry("backbone of a value model")
"""Loaders of value models: (ref, device, contract, reads) to a ``ValueModel``."""
VALUE_BACKBONES.add("cosmos3", "cosmos_robot.policies.cosmos3:load_value_model")
VALUE_BACKBONES.add("predict2", "cosmos_robot.policies.cosmos_policy:load_value_model")


def blind_control(name: str | Path) -> str:
    """The checkpoint that is the blind control of ``name``: its neighbour ``<name>-blind``."""
    return f"{str(name).rstrip('/')}-blind"


def load_policy(
    name: str | Path, *, contract: Contract | None = None, blind: bool = False, device: str = "cpu"
) -> Policy:
    """The policy called ``name``.

    name: ``random`` or ``zero`` (these need the ``contract`` to act under), a shipped or released checkpoint, a folder,
    a hub id, or the address ``tcp://HOST:PORT`` of a policy server. blind: its blind control instead, the neighbour
    ``<name>-blind``. Raises UnknownNameError with the nearest names, CheckpointError or ContractError.
    """
    from cosmos_robot.backbone.cosmos3.folder import find_checkpoint

    if str(name).startswith("tcp://"):
        from cosmos_robot.policies.remote import connect

        if contract is not None or blind:
            raise InputError(f"policy {name!r} is served and brings its own contract; it has no blind control here")
        return connect(str(name))
    if name in FAKES:
        if contract is None or blind:
            raise InputError(f"policy {name!r} needs a contract and has no blind control; got {contract=}, {blind=}")
        return FAKES.get(str(name))(contract)
    _require_known("policy", name, FAKES)
    if contract is not None:
        raise InputError(f"policy {name!r} is a checkpoint and brings its own contract; pass none")
    ref = blind_control(name) if blind else name
    found = find_checkpoint(ref)
    made_for = found.contract().model
    if blind and made_for.sees:
        raise ContractError(f"{found.name} is called a blind control, but its contract says model.sees=True")
    return BACKBONES.get(made_for.backbone)(ref, device)


def load_world_model(name: str | Path, *, contract: Contract | None = None, device: str = "cpu") -> WorldModel:
    """The world model called ``name``: ``still``, or a checkpoint whose contract has the mode ``forward_dynamics``.

    contract: what ``still`` acts under; what a checkpoint runs under instead of its own, such as a base model, which
    has none. Raises as ``load_policy``.
    """
    return _load("world model", name, FAKE_WORLDS, WORLD_BACKBONES, contract, device)


def load_inverse_model(name: str | Path, *, contract: Contract | None = None, device: str = "cpu") -> InverseModel:
    """The inverse model called ``name``: ``still``, or a checkpoint whose contract has the mode ``inverse_dynamics``.
    contract: as in ``load_world_model``. Raises as ``load_policy``."""
    return _load("inverse model", name, FAKE_INVERSES, INVERSE_BACKBONES, contract, device)


def load_value_model(
    name: str | Path, *, reads: ValueMode = "value", contract: Contract | None = None, device: str = "cpu"
) -> ValueModel:
    """The value model called ``name``: ``random``, or a checkpoint whose contract has latent frames with a value.
    reads: what the value is a function of. contract: as in ``load_world_model``. Raises as ``load_policy``."""
    return _load("value model", name, FAKE_VALUES, VALUE_BACKBONES, contract, device, reads)


def _load(
    kind: str,
    name: str | Path,
    fakes: Registry,
    backbones: Registry,
    contract: Contract | None,
    device: str,
    *more: Any,
) -> Any:
    from cosmos_robot.backbone.cosmos3.folder import find_checkpoint

    if name in fakes:
        if contract is None:
            raise InputError(f"{kind} {name!r} needs a contract, got None")
        return fakes.get(str(name))(contract, *more)
    _require_known(kind, name, fakes)
    made_for = contract or find_checkpoint(name).contract()
    return backbones.get(made_for.model.backbone)(name, device, contract, *more)


def _require_known(kind: str, name: str | Path, fakes: Registry) -> None:
    """Raise UnknownNameError for a plain name that nothing is called."""
    from cosmos_robot.backbone.cosmos3.folder import known_names
    from cosmos_robot.backbone.cosmos3.released import released

    known = [*fakes, *known_names()]
    plain = isinstance(name, str) and "/" not in name and not Path(name).is_dir()
    if plain and name not in known and not released(name):
        raise UnknownNameError(kind, name, known)
