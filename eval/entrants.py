"""Who is being evaluated: a checkpoint, its blind control, or a policy that only shows what chance gives."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cosmos_robot.errors import InputError
from cosmos_robot.eval.protocol import EvalProtocol
from cosmos_robot.eval.results import RunHeader, hash_folder
from cosmos_robot.policies import blind_control, load_policy

if TYPE_CHECKING:
    from cosmos_robot.backbone.cosmos3.folder import CheckpointFolder
    from cosmos_robot.policies.base import Policy

Control = Literal["blind", "random", "zero"]


@dataclass(frozen=True)
class Entrant:
    """A policy and what a result says about where it came from."""

    policy: Policy
    policy_name: str
    checkpoint: str | None
    checkpoint_sha256: str | None
    control: Control | None
    plan: str | None = None

    @property
    def label(self) -> str:
        """A short name for files."""
        name = self.checkpoint or self.policy_name
        return name if self.plan is None else f"{name}.{re.sub('[^A-Za-z0-9_.-]+', '-', self.plan)}"

    def header(self, protocol: EvalProtocol) -> RunHeader:
        """The head of a result of this entrant under ``protocol``."""
        return RunHeader(
            policy=self.policy_name,
            checkpoint=self.checkpoint,
            checkpoint_sha256=self.checkpoint_sha256,
            contract=self.policy.contract.model.name,
            control=self.control,
            protocol=protocol,
        )


def open_entrant(
    ckpt: str,
    *,
    kind: Literal["checkpoint", "random", "zero"] = "checkpoint",
    blind: bool = False,
    device: str = "cpu",
    threads: int = 1,
) -> Entrant:
    """Load checkpoint ``ckpt`` (or its blind control), or make a control policy that acts under its contract. The
    address ``tcp://HOST:PORT`` is a served checkpoint; whose weights it runs is not known here, so no hash is given.

    threads: of torch on a CPU, whose cores the simulators need too. Raises UnknownNameError with the nearest names,
    CheckpointError or ContractError.
    """
    from cosmos_robot.backbone.cosmos3.folder import find_checkpoint

    if ckpt.startswith("tcp://"):
        if kind != "checkpoint":
            raise InputError(f"--policy {kind} needs a checkpoint's contract; got the address {ckpt}")
        served = load_policy(ckpt, blind=blind)
        model = served.contract.model
        return Entrant(served, "served", model.name, None, None if model.sees else "blind")
    if kind != "checkpoint":
        if blind:
            raise InputError(f"--blind asks for a checkpoint's control, --policy {kind} for another; drop one of them")
        contract = find_checkpoint(ckpt).contract()
        return Entrant(load_policy(kind, contract=contract), kind, None, None, kind)
    if threads < 1:
        raise InputError(f"threads: expected at least 1, got {threads}")
    policy = load_policy(ckpt, blind=blind, device=device)
    _use_threads(threads)
    model = policy.contract.model
    found = find_checkpoint(blind_control(ckpt) if blind else ckpt)
    return Entrant(policy, model.backbone, found.name, hash_checkpoint(found), None if model.sees else "blind")


def open_planner(
    ckpt: str,
    plan: str,
    planning_ckpt: str | None = None,
    *,
    device: str = "cpu",
    threads: int = 1,
    executor: str = "in-process",
) -> Entrant:
    """The search ``plan``, such as ``best-of-8``, with the models of ``ckpt``, judged by ``planning_ckpt`` if given.
    A result names its settings in full, whatever ``plan`` calls them. Raises as ``load_planner``, and InputError for
    ``threads``."""
    from cosmos_robot.backbone.cosmos3.folder import find_checkpoint
    from cosmos_robot.planning import load_planner, read_plan
    from cosmos_robot.planning.policy import PlanningPolicy

    if threads < 1:
        raise InputError(f"threads: expected at least 1, got {threads}")
    settings = read_plan(plan)
    policy = PlanningPolicy(load_planner(ckpt, settings, planning_ckpt, device=device, executor=executor))
    _use_threads(threads)
    model, found = policy.contract.model, [find_checkpoint(name) for name in (ckpt, planning_ckpt) if name]
    hashes = "+".join(hash_checkpoint(folder) for folder in found)
    control: Control | None = None if model.sees else "blind"
    name = f"{model.backbone} {settings.text}" + (f" judged by {found[1].name}" if planning_ckpt else "")
    return Entrant(policy, name, found[0].name, hashes, control, plan)


def hash_checkpoint(found: CheckpointFolder) -> str:
    """SHA-256 over the contract and every part, wherever it lies: the same for a copy under another name."""
    digest = hashlib.sha256(found.contract_file.read_bytes())
    for name, part in sorted(found.parts.items()):
        digest.update(f"{name} {hash_folder(part)}\n".encode())
    return digest.hexdigest()


def _use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
