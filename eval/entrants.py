"""Who is being evaluated: a checkpoint, its blind control, or a policy that only shows what chance gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cosmos_robot.eval.protocol import EvalProtocol
from cosmos_robot.eval.results import RunHeader

if TYPE_CHECKING:
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
