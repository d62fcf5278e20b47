"""Planning against plain policy on the same episodes: init states, seeds and rules alike."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from cosmos_robot.eval.calibration import Calibration, calibrate, discounted, plot_calibration
from cosmos_robot.eval.compare import compare_results, print_comparison
from cosmos_robot.eval.protocol import Job
from cosmos_robot.eval.results import EpisodeRecord, read_result, write_result
from cosmos_robot.eval.runner import Listener
from cosmos_robot.eval.statistics import bootstrap_difference
from cosmos_robot.planning.plan import read_plan
from cosmos_robot.policies.base import Policy
from cosmos_robot.types import ActionChunk, Observation

STYLE = (
    ".panel{fill:#fafafa;stroke:#ccc}.zero{stroke:#999;fill:none;stroke-dasharray:4}.executed{stroke:#c33;fill:none;"
    "stroke-width:2}.predicted{stroke:#c33;opacity:.5}.count{fill:#88a}text{font:11px sans-serif}"
    ".bound{text-anchor:end}.tick{text-anchor:middle}"
)


class Timed(Policy):
    """A policy whose decisions are counted and timed, by the clock. A batch counts its decisions together."""

    def __init__(self, policy: Policy):
        self.policy, self.contract = policy, policy.contract
        self.decisions, self.seconds = 0, 0.0

    @property
    def cameras(self) -> tuple[str, ...]:
        return self.policy.cameras

    @property
    def cost(self) -> dict[str, float | int | None]:
        """Decisions of this process, and seconds of each on average."""
        return {"decisions": self.decisions, "seconds": self.seconds / self.decisions if self.decisions else None}

    def _act(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[ActionChunk]:
        began = time.perf_counter()
        chunks = self.policy.act(observations, seeds)
        self.seconds += time.perf_counter() - began
        self.decisions += len(chunks)
        return chunks

    def _continue(
        self, observations: Sequence[Observation], seeds: Sequence[int], committed: Sequence[NDArray[np.float64]]
    ) -> list[ActionChunk]:
        return self.policy.act(observations, seeds, committed)


@dataclass(frozen=True)
class Decision:
    """What a search said about one decision. value: of what was chosen, None without one. base_value: of the plain
    policy's own. spread: standard deviation of the candidates' scores. diversity: of their commands. settings: of the
    search, in full. steps_left: control steps from the moment that the values are of, the end of the last chunk that
    was imagined, to the end of the episode; 0 where that came before, None in logs of earlier versions."""

    task: int
    init: int
    number: int
    chosen: int
    planned: bool
    value: float | None
    base_value: float | None
    spread: float
    diversity: float
    distinct: int
    candidates: int
    seconds: float
    success: bool
    settings: str = ""
    steps_left: int | None = None


class PlanLog(Listener):
    """Keeps what each search of an episode said, with the episode's outcome, in a JSONL file beside the result."""

    def __init__(self, path: Path, fresh: bool = False):
        self.path = path
        self._running: dict[Job, list[dict[str, Any]]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)

    def on_start(self, job: Job) -> None:
        self._running[job] = []

    def on_decision(self, job: Job, step: int, observation: Observation, chunk: ActionChunk, seed: int) -> None:
        plan = chunk.info.get("plan")
        if isinstance(plan, dict):
            depth = read_plan(plan["settings"]).depth if plan["settings"] else 1
            self._running[job].append(plan | {"valued_at": step + depth * len(chunk)})

    def on_episode(self, job: Job, record: EpisodeRecord) -> None:
        plans = self._running.pop(job, [])
        with self.path.open("a") as file:
            for number, plan in enumerate(plans):
                file.write(json.dumps(asdict(_decision(job, number, plan, record))) + "\n")

    def decisions(self) -> list[Decision]:
        """All that the file holds, the last of those that were made twice."""
        if not self.path.exists():
            return []
        found = [Decision(**json.loads(line)) for line in self.path.read_text().splitlines() if line.endswith("}")]
        return list({(d.task, d.init, d.number): d for d in found}.values())


def _decision(job: Job, number: int, plan: dict[str, Any], record: EpisodeRecord) -> Decision:
    candidates = plan["candidates"]
    scores = [c["score"] for c in candidates if c["score"] is not None]
    return Decision(
        task=job.task,
        init=job.init,
        number=number,
        chosen=plan["chosen"],
        planned=plan["planned"],
        value=candidates[plan["chosen"]]["score"] if plan["planned"] else None,
        base_value=candidates[0]["score"],
        spread=float(np.std(scores)) if scores else 0.0,
        diversity=plan["diversity"],
        distinct=sum(c["duplicate_of"] is None for c in candidates),
        candidates=len(candidates),
        seconds=plan["seconds"],
        success=record.success,
        settings=plan["settings"],
        steps_left=max(0, record.steps - plan["valued_at"]),
    )


def limits(decisions: Sequence[Decision]) -> dict[str, Any]:
    """What bounds a search: whether its values are the discounted returns, and whether its candidates differ."""
    valued = [d for d in decisions if d.value is not None]
    calibration, base = value_calibration(decisions), value_calibration(decisions, "base_value")
    found: dict[str, Any] = {
        "decisions": len(decisions),
        "planned": sum(d.planned for d in decisions),
        "chose_another": sum(d.planned and d.chosen != 0 for d in decisions),
        "mean_gain_in_value": _mean([d.value - d.base_value for d in valued if d.base_value is not None]),
        "mean_spread_of_scores": _mean([d.spread for d in decisions]),
        "mean_diversity_of_commands": _mean([d.diversity for d in decisions]),
        "mean_distinct_candidates": _mean([d.distinct for d in decisions]),
        "mean_seconds": _mean([d.seconds for d in decisions]),
    }
    found["values_without_steps_left"] = sum(d.steps_left is None for d in valued)
    if calibration:
        found["calibration"] = calibration.facts()
    if base:
        found["calibration_of_the_plain_candidate"] = base.facts()
    return found


def value_calibration(decisions: Sequence[Decision], which: str = "value") -> Calibration | None:
    """The values of decisions against the discounted returns from the moments they are of, with intervals over
    episodes; None where no decision has both. which: ``value`` or ``base_value``."""
    told = [d for d in decisions if getattr(d, which) is not None and d.steps_left is not None]
    if not told:
        return None
    returns = [discounted(d.success, d.steps_left) for d in told if d.steps_left is not None]
    episodes = [(d.task, d.init) for d in told]
    return calibrate([getattr(d, which) for d in told], returns, [d.success for d in told], episodes)


def paired_report(
    planned: Path, plain: Path, decisions: Sequence[Decision], cost: dict[str, Any], console: Console
) -> dict[str, Any]:
    """Compare two results of the same episodes, print the table and what limits the search, and write
    ``<planned>.paired.json`` and, with values, ``<planned>.calibration.svg``. Raises as ``compare_results``."""
    found = compare_results(planned, plain)
    (_, first), (_, second) = read_result(planned), read_result(plain)
    other = {r.key: r.success for r in second}
    pairs = [(r.success, other[r.key]) for r in first if r.key in other]
    interval = bootstrap_difference(pairs, [r.task for r in first if r.key in other])
    bounds = limits(decisions)
    content = found | {
        "a": f"planning: {found['a']}",
        "b": f"plain policy: {found['b']}",
        "total": asdict(found["total"]),
        "per_task": {task: asdict(comparison) for task, comparison in found["per_task"].items()},
        "bootstrap_ci95": list(interval),
        "cost": cost,
        "limits": bounds,
    }
    print_comparison(found | {"a": content["a"], "b": content["b"]}, console)
    console.print(f"bootstrap within tasks, 95 %: {interval[0]:+.3f} to {interval[1]:+.3f}", highlight=False)
    for name, figures in cost.items():
        if figures["seconds"] is not None:
            console.print(f"{name}: {figures['seconds']:.3f} s a decision over {figures['decisions']}", highlight=False)
    _print_limits(bounds, console)
    write_result(planned.with_suffix(".paired.json"), content)
    calibration = value_calibration(decisions)
    if calibration:
        drawing = plot_calibration(calibration)
        drawing = drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        drawing = drawing.replace(">", f"><style>{STYLE}</style>", 1)
        planned.with_suffix(".calibration.svg").write_text(drawing)
    return content


def _print_limits(bounds: dict[str, Any], console: Console) -> None:
    console.print(
        f"search: {bounds['planned']} of {bounds['decisions']} decisions planned, {bounds['chose_another']} chose "
        f"another candidate than the plain policy's",
        highlight=False,
    )
    calibration = bounds.get("calibration")
    if calibration:
        ranking = "none, all went one way" if calibration["auroc"] is None else f"{calibration['auroc']:.3f}"
        console.print(
            f"values: ECE {calibration['ece']:.3f}, AUROC {ranking}; candidates: spread of scores "
            f"{bounds['mean_spread_of_scores']:.4f}, of commands {bounds['mean_diversity_of_commands']:.4f}",
            highlight=False,
        )


def _mean(values: Sequence[float]) -> float | None:
    found = float(np.mean(values)) if values else math.nan
    return None if math.isnan(found) else found
