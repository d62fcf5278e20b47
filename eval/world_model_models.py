"""The models of a checkpoint that a world-model evaluation asks, over one copy of its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cosmos_robot.contract import Contract
from cosmos_robot.contract.compare import compatible
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.eval.world_model_case import Models, places
from cosmos_robot.eval.world_model_sources import DRIVERS
from cosmos_robot.policies import FAKE_WORLDS, FAKES, load_inverse_model, load_world_model

if TYPE_CHECKING:
    from cosmos_robot.policies.base import InverseModel, JointPolicy, ValueModel, WorldModel


@dataclass(frozen=True)
class ModelsSpec:
    """What to load; calling it loads. It can be pickled, so that every worker has models of its own.

    ckpt: the world model. contract: checkpoint under whose contract a model that knows nothing works. inverse_ckpt:
    checkpoint that reads commands off videos, the world model's own if None. untrained: also the world model with its
    weights shuffled, as a control. threads: of torch on the CPU.
    """

    ckpt: str
    contract: str | None = None
    inverse_ckpt: str | None = None
    untrained: bool = True
    device: str = "cpu"
    threads: int = 1

    def __call__(self) -> Models:
        """Raises UnknownNameError, CheckpointError or ContractError as ``load_world_model`` does."""
        import torch

        if self.threads < 1:
            raise InputError(f"threads: expected at least 1, got {self.threads}")
        torch.set_num_threads(self.threads)
        world = load_world_model(self.ckpt, contract=self._contract(), device=self.device)
        inverse, untrained = _inverse(world), None
        if self.inverse_ckpt is not None:
            inverse = load_inverse_model(self.inverse_ckpt, device=self.device)
            require_same_videos(inverse.contract, world.contract)
        if self.untrained and self.ckpt not in FAKE_WORLDS:
            untrained = load_world_model(self.ckpt, device=self.device)
            shuffle_weights(untrained)
        return Models(world, untrained, inverse, _joint(world), _value(world))

    def contract_of(self) -> Contract:
        """The contract of ``ckpt``, read without loading its weights. Raises InputError where a model that knows
        nothing has none, or a checkpoint is given another, ContractError for a model that predicts no picture and for
        an inverse model of other videos."""
        from cosmos_robot.backbone.cosmos3.folder import find_checkpoint

        contract = self._contract() or find_checkpoint(self.ckpt).contract()
        if not places(contract):
            raise ContractError(
                f"{contract.model.name!r} predicts no picture, only {list(contract.model.frames)}, and this evaluation "
                "compares pictures; give its layout a frame 'future CAMERA'"
            )
        if self.inverse_ckpt is not None:
            require_same_videos(find_checkpoint(self.inverse_ckpt).contract(), contract)
        return contract

    def _contract(self) -> Contract | None:
        from cosmos_robot.backbone.cosmos3.folder import find_checkpoint

        if (self.contract is None) == (self.ckpt in FAKE_WORLDS):
            raise InputError(
                f"--contract names the checkpoint under whose contract {' or '.join(FAKE_WORLDS)} works, and nothing "
                f"else; got --ckpt {self.ckpt} and --contract {self.contract}"
            )
        return None if self.contract is None else find_checkpoint(self.contract).contract()


def require_same_videos(inverse: Contract, world: Contract) -> None:
    """Raise ContractError naming each field in which the videos that an inverse model reads, or the commands it finds,
    are not those of the world model."""
    faults = [str(difference) for difference in compatible(world, inverse.robot)]
    for name in ("chunk", "actions_per_frame", "frames"):
        theirs, ours = getattr(inverse.model, name), getattr(world.model, name)
        if theirs != ours:
            faults.append(f"model.{name}: {theirs}, the world model's is {ours}")
    theirs, ours = inverse.model.canvas.model_dump(), world.model.canvas.model_dump()
    faults += [
        f"model.canvas.{name}: {theirs[name]}, the world model's is {ours[name]}"
        for name in ours
        if theirs[name] != ours[name]
    ]
    if faults:
        raise ContractError(
            f"the inverse model {inverse.model.name!r} does not read the videos of {world.model.name!r}; name another "
            "with --inverse-ckpt, or leave it out:" + "".join(f"\n  - {fault}" for fault in faults)
        )


def checkpoint_hash(name: str | None) -> str | None:
    """SHA-256 of the checkpoint called ``name``; None for no name, for what is no checkpoint, and for a served one,
    whose weights are not known here."""
    from cosmos_robot.backbone.cosmos3.folder import find_checkpoint
    from cosmos_robot.eval.entrants import hash_checkpoint

    if name is None or name.startswith("tcp://") or name in (*DRIVERS, *FAKES, *FAKE_WORLDS):
        return None
    return hash_checkpoint(find_checkpoint(name))


def shuffle_weights(world: WorldModel, seed: int = 0) -> None:
    """Put the entries of every tensor of the generator in random order: the same numbers, and nothing learned."""
    import torch

    order = torch.Generator().manual_seed(seed)
    model: Any = world.model  # type: ignore[attr-defined]
    checkpoint = model.backbone.checkpoint if hasattr(model, "backbone") else model.checkpoint
    with torch.no_grad():
        for tensor in checkpoint.transformer.parameters():
            flat = tensor.flatten()
            tensor.copy_(flat[torch.randperm(len(flat), generator=order).to(flat.device)].view_as(tensor))


def _inverse(world: WorldModel) -> InverseModel | None:
    from cosmos_robot.policies.cosmos3 import Cosmos3InverseModel, Cosmos3WorldModel

    if "inverse_dynamics" in world.contract.model.modes and isinstance(world, Cosmos3WorldModel):
        return Cosmos3InverseModel(world.model)
    return None


def _joint(world: WorldModel) -> JointPolicy | None:
    from cosmos_robot.policies.cosmos3 import Cosmos3JointPolicy, Cosmos3WorldModel
    from cosmos_robot.policies.latent_frames import LatentFramePolicy, LatentFrameWorldModel

    modes = world.contract.model.modes
    if "wam" in modes and isinstance(world, Cosmos3WorldModel):
        return Cosmos3JointPolicy(world.model)
    if "policy" in modes and isinstance(world, LatentFrameWorldModel):
        return LatentFramePolicy(world.model)
    return None


def _value(world: WorldModel) -> ValueModel | None:
    from cosmos_robot.policies.latent_frames import LatentFrameValueModel, LatentFrameWorldModel

    if "value" in world.contract.model.modes and isinstance(world, LatentFrameWorldModel):
        return LatentFrameValueModel(world.model)
    return None
