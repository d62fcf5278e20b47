"""Planners by name: a checkpoint's policy, world model and value as a search."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosmos_robot.contract import Contract
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.latent_frames.layout import VALUE
from cosmos_robot.planning.plan import PlannerSettings, read_plan

if TYPE_CHECKING:
    from cosmos_robot.planning.best_of_n import Planner
    from cosmos_robot.planning.evaluate import Evaluator, Onward
    from cosmos_robot.policies.base import Policy, ValueModel, WorldModel


def load_planner(
    ckpt: str | Path,
    plan: str | PlannerSettings,
    planning_ckpt: str | Path | None = None,
    *,
    contract: Contract | None = None,
    device: str = "cpu",
    executor: str = "in-process",
) -> Planner:
    """The search ``plan`` (such as ``best-of-8``, see ``read_plan``) with the models of a checkpoint.

    ckpt: whose policy proposes; ``random`` or ``zero`` under ``contract``, with a world and values that know nothing.
    planning_ckpt: whose world model and value judge, if not the same. executor: how candidates are worked out, see
    ``executors.made``. Raises as ``load_policy``, ``load_world_model``, ``load_value_model`` and ``best_of_n``.
    """
    from cosmos_robot.planning.best_of_n import Planner
    from cosmos_robot.planning.executors import made

    settings = read_plan(plan) if isinstance(plan, str) else plan
    make = partial(load_evaluator, str(ckpt), settings, planning_ckpt, contract=contract, device=device)
    evaluator = make()
    workers = made(executor, evaluator, make)
    return Planner(evaluator.policy, workers, settings, cameras=evaluator.cameras)


def load_evaluator(
    ckpt: str | Path,
    settings: PlannerSettings,
    planning_ckpt: str | Path | None = None,
    *,
    contract: Contract | None = None,
    device: str = "cpu",
) -> Evaluator:
    """The models of ``load_planner``, one copy of each checkpoint's weights."""
    from cosmos_robot.planning.evaluate import Evaluator
    from cosmos_robot.policies import FAKES, load_policy, load_value_model, load_world_model

    if settings.judge == "policy":
        return _self_judged(ckpt, settings, planning_ckpt, contract, device)
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
    policy = _stepped(policy or load_policy(ckpt, contract=contract, device=device), settings.policy_steps)
    worlds = [_stepped(world, steps) for steps in settings.steps_of("world")] if world else None
    values = [_stepped(value, steps) for steps in settings.steps_of("value")]
    onward = _onward(policy, world) if settings.depth > 1 else None
    return Evaluator(policy, _once(worlds), _once(values), settings, onward=onward)


def _self_judged(
    ckpt: str | Path, settings: PlannerSettings, planning_ckpt: object, contract: Contract | None, device: str
) -> Evaluator:
    from cosmos_robot.planning.evaluate import Evaluator
    from cosmos_robot.policies import load_policy
    from cosmos_robot.policies.base import SampledValue

    if planning_ckpt is not None:
        raise InputError("plan: with judge=policy no other checkpoint judges; leave the planning checkpoint out")
    policy = _stepped(load_policy(ckpt, contract=contract, device=device), settings.policy_steps)
    if VALUE not in policy.contract.model.frames:
        raise ContractError(
            f"plan: the policy of {policy.contract.model.name!r} samples no value beside its commands, so it cannot "
            "judge them; use a checkpoint with latent frames, or another judge"
        )
    return Evaluator(policy, None, SampledValue(policy.contract), settings)


def _shared(value: ValueModel) -> tuple[WorldModel, Policy] | None:
    """World model and policy over the weights that ``value`` has loaded, if one model is all three."""
    from cosmos_robot.policies.latent_frames import LatentFramePolicy, LatentFrameValueModel, LatentFrameWorldModel

    if not isinstance(value, LatentFrameValueModel):
        return None
    return LatentFrameWorldModel(value.model), LatentFramePolicy(value.model)


def _stepped(model: Any, steps: int | None) -> Any:
    """``model``, sampled with another number of steps. Raises InputError for one that takes no such number."""
    if steps is None:
        return model
    if not hasattr(model, "with_steps"):
        raise InputError(
            f"planner: {type(model).__name__} is not sampled in steps; drop policy_steps, world_steps and "
            "value_steps, or use a checkpoint with latent frames"
        )
    return model.with_steps(steps)


def _once(models: list[Any] | None) -> list[Any] | None:
    """Members that are sampled alike are one model, so that they share their calls."""
    if models is None:
        return None
    kept: dict[Any, Any] = {}
    return [kept.setdefault(getattr(m, "steps", None), m) for m in models]


def _onward(policy: Policy, world: WorldModel | None) -> Onward:
    from cosmos_robot.policies.latent_frames import LatentFramePolicy, LatentFrameWorldModel, onward_of

    if not isinstance(policy, LatentFramePolicy) or not isinstance(world, LatentFrameWorldModel):
        raise InputError(
            "plan: depth above 1 needs checkpoints with latent frames, which say what follows a future; got "
            f"{type(policy).__name__} and {type(world).__name__}. Use depth=1, or ``best_of_n`` with ``onward``"
        )
    return onward_of(policy.model, world.model)
