"""Does a world model order policies as the simulator does? Each policy runs from the same starts in both.

In the simulator a policy's score is its share of successes, each of which may come at any time; in the world model it
is the mean of the highest values that it reaches. Starts are pairs of a task and one of its initial states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from cosmos_robot import envs
from cosmos_robot.backbone.cosmos3.folder import find_checkpoint
from cosmos_robot.contract import Contract, require_fit
from cosmos_robot.envs.base import RobotEnv, execute
from cosmos_robot.envs.world_model import WorldModelEnv, require_usable
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.eval.exploration import NoisyPolicy
from cosmos_robot.eval.world_model_case import Models
from cosmos_robot.eval.world_model_seeds import seed_of
from cosmos_robot.eval.world_model_windows import unpredicted
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


@dataclass(frozen=True)
class Start:
    """An initial state ``init`` of the environment ``task``."""

    task: str
    init: int


def named(name: str) -> tuple[str, float | None]:
    """The policy and the strength of the noise in ``POLICY`` or ``POLICY~STRENGTH``. Raises InputError for a strength
    that is no number."""
    base, mark, strength = name.partition("~")
    try:
        return base, float(strength) if mark else None
    except ValueError as error:
        raise InputError(f"policy {name!r}: expected a number after '~', such as {base}~0.3") from error


def ranked_policy(name: str, contract: Contract, device: str = "cpu") -> Policy:
    """``zero``, ``random``, a checkpoint, or any of them with ``~STRENGTH`` behind it: see ``NoisyPolicy``. Raises
    ContractError for a checkpoint of another robot than ``contract``'s."""
    base, share = named(name)
    policy = load_policy(base, contract=contract) if base in FAKES else load_policy(base, device=device)
    require_fit(policy.contract, contract.robot)
    return policy if share is None else NoisyPolicy(policy, share)


def require_rankable(names: Sequence[str], contract: Contract, device: str = "cpu") -> None:
    """Raise InputError, UnknownNameError or ContractError, before any weights are loaded, for policies that cannot be
    ranked in the world model of ``contract``."""
    found = [named(name) for name in names]
    twice = sorted({name for name, policy in zip(names, found, strict=True) if found.count(policy) > 1})
    if twice:
        raise InputError(f"ranking: {', '.join(twice)} stands twice; expected different policies, name each once")
    if len(names) < LEAST_POLICIES:
        raise InputError(f"ranking: expected at least {LEAST_POLICIES} policies, got {list(names)}; name more")
    if "value" not in contract.model.modes:
        raise _no_value(contract)
    require_usable(contract, True)
    for name in names:
        _require_entrant(name, contract, device)


def _require_entrant(name: str, contract: Contract, device: str) -> None:
    base, share = named(name)
    if base in FAKES or base.startswith("tcp://"):
        ranked_policy(name, contract, device)
        return
    theirs = find_checkpoint(base).contract()
    if not {"policy", "wam"} & set(theirs.model.modes):
        raise ContractError(f"{name!r} is no policy: its contract's modes are {list(theirs.model.modes)}; leave it out")
    require_fit(theirs, contract.robot)
    reads = {place.camera for place in theirs.model.canvas.placements} if theirs.model.sees else set()
    shown = {place.camera for place in contract.model.canvas.placements} - set(unpredicted(contract))
    if reads - shown:
        raise ContractError(
            f"{name!r} looks at {sorted(reads - shown)}, of which {contract.model.name!r} predicts no picture, only of "
            f"{sorted(shown)}; leave it out"
        )
    if share is not None:
        NoisyPolicy(cast(Policy, SimpleNamespace(contract=theirs)), share)  # refuses by the contract, needs no weights


def _no_value(contract: Contract) -> ContractError:
    return ContractError(
        f"ranking needs a value: {contract.model.name!r} has none; evaluate a checkpoint with the mode 'value', or "
        "leave out --rank"
    )


class Arena:
    """Runs ranked policies. Models, policies and environments are loaded when first needed; of environments one is
    open at a time."""

    def __init__(self, make: Callable[[], Models], device: str, steps: int, seed: int):
        self._make, self._device, self._steps, self._seed = make, device, steps, seed
        self._models: Models | None = None
        self._policies: dict[str, Policy] = {}
        self._env: RobotEnv | None = None
        self._task = ""

    def run(self, name: str, start: Start) -> dict[str, Any]:
        """``run_both`` of the policy called ``name``."""
        self._models = self._models or self._make()
        if name not in self._policies:
            self._policies[name] = ranked_policy(name, self._models.contract, self._device)
        env = self._env_of(start.task, self._models.contract)
        return run_both(self._policies[name], env, self._models, start, self._steps, self._seed)

    def close(self) -> None:
        """Close the environment that is open."""
        if self._env is not None:
            self._env.close()
        self._env = None

    def _env_of(self, task: str, contract: Contract) -> RobotEnv:
        if self._env is None or self._task != task:
            self.close()
            speaking = envs.speaking(task, contract.robot.name)
            self._env, self._task = envs.make(task, step_budget=self._steps, **speaking), task
            require_fit(contract, self._env.robot)
        return self._env


def run_both(
    policy: Policy, simulator: RobotEnv, models: Models, start: Start, steps: int, seed: int
) -> dict[str, Any]:
    """One policy from one start: success in the simulator, which stops there, and in the world model the highest value
    of any of its decisions. The noise of both follows from ``seed`` and the start.

    Raises ContractError without a value model, and for a policy of another robot.
    """
    if models.value is None:
        raise _no_value(models.contract)
    require_fit(policy.contract, simulator.robot)
    base = seed_of(seed, start.task, start.init)
    seen, _ = simulator.reset(seed=base, options={"init_state": start.init} if simulator.init_state_count else {})
    first = Observation({name: seen.images[name].copy() for name in models.world.cameras}, seen.state, seen.instruction)
    success = _run(policy, simulator, steps, base)
    inside = WorldModelEnv(
        models.world, [first], step_budget=steps, value=models.value, success_at=2.0, unpredicted_state="hold"
    )
    values: list[float] = []
    with inside:
        inside.reset(seed=base, options={"init_state": 0})
        _run(policy, inside, steps, base, lambda: values.append(float(inside.value_now or 0)))
    return {"success": success, "value": max(values)}


def _run(policy: Policy, env: RobotEnv, steps: int, seed: int, decided: Callable[[], None] | None = None) -> bool:
    """Whether the policy succeeds. decided: called after each decision was carried out."""
    taken, success, number = 0, False, 0
    while env.running and taken < steps:
        chunk = policy.act([env.observe()], [seed_of(seed, number)])[0]
        rows = chunk.values[: min(policy.contract.model.execute, steps - taken)]
        result = execute(env, rows)
        taken, success, number = taken + result.steps, result.success, number + 1
        if decided is not None:
            decided()
    return success


def rank(
    names: Sequence[str], score: Callable[[str, Start], dict[str, Any]], starts: Sequence[Start]
) -> dict[str, Any]:
    """Score every policy from every start and say how alike the orders are. score: (policy, start) to what ``run_both``
    returns."""
    rows = [[score(name, start) for name in names] for start in starts]  # task by task, so that each is made once
    found = dict(zip(names, zip(*rows, strict=True), strict=True))
    simulated = np.array([[float(s["success"]) for s in found[name]] for name in names])
    imagined = np.array([[float(s["value"]) for s in found[name]] for name in names])
    table = {
        name: {"success_rate": float(a.mean()), "mean_value": float(b.mean())}
        for name, a, b in zip(names, simulated, imagined, strict=True)
    }
    tasks = list(dict.fromkeys(start.task for start in starts))
    return {"agreement": asdict(rank_agreement(simulated, imagined)), "tasks": tasks, "policies": table}


def _spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    x, y = rankdata(a), rankdata(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / scale) if scale > 0 else None
