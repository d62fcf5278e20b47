"""Planners by name: a checkpoint's policy, world model and value as a search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cosmos_robot.contract import Contract
from cosmos_robot.errors import InputError
from cosmos_robot.planning.plan import PlannerSettings, read_plan

if TYPE_CHECKING:
    from cosmos_robot.planning.best_of_n import Planner
    from cosmos_robot.policies.base import Policy, ValueModel, WorldModel


def load_planner(
    ckpt: str | Path,
    plan: str | PlannerSettings,
    planning_ckpt: str | Path | None = None,
    *,
    contract: Contract | None = None,
    device: str = "cpu",
) -> Planner:
    """The search ``plan`` (such as ``best-of-8``, see ``read_plan``) with the models of a checkpoint.

    ckpt: whose policy proposes; ``random`` or ``zero`` under ``contract``, with a world and values that know nothing.
    planning_ckpt: whose world model and value judge, if not the same. Raises as ``load_policy``, ``load_world_model``,
    ``load_value_model`` and ``best_of_n``.
    """
    from cosmos_robot.planning.best_of_n import best_of_n
    from cosmos_robot.policies import FAKES, load_policy, load_value_model, load_world_model

    settings = read_plan(plan) if isinstance(plan, str) else plan
    if settings.depth > 1:
        raise InputError(f"plan: depth={settings.depth} needs to be told what follows a future; use ``best_of_n``")
    judge = planning_ckpt or ckpt
    fake = judge in FAKES
    value = load_value_model("random" if fake else judge, reads=settings.reads, contract=contract, device=device)
    shared = None if fake else _shared(value)
    world = policy = None
    if settings.reads != "q_value":
        own = shared and shared[0]
        world = own or load_world_model("still" if fake else judge, contract=contract, device=device)
    if planning_ckpt is None:
        policy = shared and shared[1]
    return best_of_n(policy or load_policy(ckpt, contract=contract, device=device), world, value, settings)


def _shared(value: ValueModel) -> tuple[WorldModel, Policy] | None:
    """World model and policy over the weights that ``value`` has loaded, if one model is all three."""
    from cosmos_robot.policies.latent_frames import LatentFramePolicy, LatentFrameValueModel, LatentFrameWorldModel

    if not isinstance(value, LatentFrameValueModel):
        return None
    return LatentFrameWorldModel(value.model), LatentFramePolicy(value.model)
