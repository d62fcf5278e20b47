"""Does a world model order policies as the simulator does? Each policy runs from the same starts in both.

In the simulator a policy's score is its share of successes; in the world model it is the value of where it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from cosmos_robot.contract import Contract
from cosmos_robot.envs.base import RobotEnv, execute
from cosmos_robot.envs.world_model import WorldModelEnv
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.eval.exploration import NoisyPolicy
from cosmos_robot.eval.world_model_case import Models
from cosmos_robot.policies import FAKES, load_policy
from cosmos_robot.policies.base import Policy
from cosmos_robot.types import Observation

LEAST_POLICIES = 3


@dataclass(frozen=True)
class RankAgreement:
    """spearman: rank correlation of the policies' mean scores; None where all policies of one side score the same.
    low, high: 95 % percentile interval of the bootstrap over starts. undefined: share of draws without a correlation,
    which are left out of the interval. best_agrees: whether the model's best is among the simulator's best."""

    spearman: float | None
    low: float | None
    high: float | None
    undefined: float
    best_agrees: bool
    policies: int
    starts: int


def rank_agreement(
    simulated: NDArray[np.float64], imagined: NDArray[np.float64], *, seed: int = 0, draws: int = 2000
) -> RankAgreement:
    """How alike two sides order K policies by their scores (K, N) on the same N starts (Spearman 1904; ties have mean
    ranks). Starts are drawn anew, the same for all policies and both sides, since they are the sample. Raises
    InputError for other shapes, fewer than three policies or scores that are no number."""
    a, b = np.asarray(simulated, np.float64), np.asarray(imagined, np.float64)
    if a.shape != b.shape or a.ndim != 2 or len(a) < LEAST_POLICIES or a.shape[1] < 1:
        raise InputError(
            f"ranking: expected scores (K, N) of at least {LEAST_POLICIES} policies on both sides, got {a.shape} and "
            f"{b.shape}; name more policies"
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InputError("ranking: a score is no number; leave that policy out on both sides")
    found = _spearman(a.mean(axis=1), b.mean(axis=1))
    rng, sampled = np.random.default_rng(seed), []
    for _ in range(draws):
        chosen = rng.integers(a.shape[1], size=a.shape[1])
        sampled.append(_spearman(a[:, chosen].mean(axis=1), b[:, chosen].mean(axis=1)))
    defined = [s for s in sampled if s is not None]
    low, high = np.quantile(defined, [0.025, 0.975]) if defined else (None, None)
    tops = a.mean(axis=1)
    return RankAgreement(
        spearman=found,
        low=None if low is None else float(low),
        high=None if high is None else float(high),
        undefined=1 - len(defined) / draws,
        best_agrees=bool(tops[int(b.mean(axis=1).argmax())] == tops.max()),
        policies=len(a),
        starts=a.shape[1],
    )


def ranked_policy(name: str, contract: Contract, device: str = "cpu") -> Policy:
    """``zero``, ``random``, a checkpoint, or any of them with ``~STRENGTH`` behind it: see ``NoisyPolicy``."""
    base, _, strength = name.partition("~")
    policy = load_policy(base, contract=contract) if base in FAKES else load_policy(base, device=device)
    if not strength:
        return policy
    try:
        share = float(strength)
    except ValueError as error:
        raise InputError(f"policy {name!r}: expected a number after '~', such as {base}~0.3") from error
    return NoisyPolicy(policy, share)


def run_both(policy: Policy, simulator: RobotEnv, models: Models, init: int, steps: int, seed: int) -> dict[str, Any]:
    """One policy from one start: success in the simulator, and the value of where it ends in the world model.

    Raises ContractError without a value model.
    """
    if models.value is None:
        raise ContractError(
            f"ranking needs a value: {models.contract.model.name!r} has none; evaluate a checkpoint "
            "with the mode 'value', or leave out --rank"
        )
    options = {"init_state": init} if simulator.init_state_count else {}
    seen, _ = simulator.reset(seed=seed + init, options=options)
    start = Observation({name: seen.images[name].copy() for name in models.world.cameras}, seen.state, seen.instruction)
    success = _run(policy, simulator, steps, seed)
    inside = WorldModelEnv(
        models.world, [start], step_budget=steps, value=models.value, success_at=2.0, unpredicted_state="hold"
    )
    with inside:
        inside.reset(seed=seed + init, options={"init_state": 0})
        _run(policy, inside, steps, seed)
        value = inside.value_now
    return {"success": success, "value": value}


def _run(policy: Policy, env: RobotEnv, steps: int, seed: int) -> bool:
    taken, success, number = 0, False, 0
    while env.running and taken < steps:
        noise = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        chunk = policy.act([env.observe()], [noise])[0]
        rows = chunk.values[: min(policy.contract.model.execute, steps - taken)]
        result = execute(env, rows)
        taken, success, number = taken + result.steps, result.success, number + 1
    return success


def rank(names: Sequence[str], score: Callable[[str, int], dict[str, Any]], starts: Sequence[int]) -> dict[str, Any]:
    """Score every policy from every start and say how alike the orders are. score: (policy, start) to what ``run_both``
    returns."""
    found = {name: [score(name, start) for start in starts] for name in names}
    simulated = np.array([[float(s["success"]) for s in found[name]] for name in names])
    imagined = np.array([[float(s["value"]) for s in found[name]] for name in names])
    table = {
        name: {"success_rate": float(a.mean()), "mean_value": float(b.mean())}
        for name, a, b in zip(names, simulated, imagined, strict=True)
    }
    return {"agreement": asdict(rank_agreement(simulated, imagined)), "policies": table}


def _spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    x, y = rankdata(a), rankdata(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / scale) if scale > 0 else None
