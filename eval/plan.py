"""``cosmos-robot plan``: one decision by search, looked at: every candidate, its values, what it imagined, and what
happened when the chosen one was run."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated, Any

import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from cosmos_robot import envs
from cosmos_robot.contract import require_fit
from cosmos_robot.envs.base import RobotEnv, execute
from cosmos_robot.errors import InputError
from cosmos_robot.eval.plan_pages import candidates, figure, write_page
from cosmos_robot.images import compose_canvas
from cosmos_robot.planning import load_planner
from cosmos_robot.planning.best_of_n import Planner
from cosmos_robot.planning.plan import Candidate, Plan
from cosmos_robot.types import Observation


@dataclass(frozen=True)
class PlanConfig:
    """Decide once by search, from the first moment of an environment, and show every candidate."""

    ckpt: str
    """Shipped name, folder or hub id of the checkpoint; random or zero plan without knowing anything."""
    env: str = "libero_object/0"
    """Environment."""
    plan: str = "best-of-8"
    """The search, such as best-of-8, quick-of-8 or best-of-8:futures=1,values=2,value_steps=1."""
    planning_ckpt: str | None = None
    """Checkpoint that imagines and scores, if not CKPT itself."""
    contract: str | None = None
    """Checkpoint whose contract random and zero act under."""
    init: int = 0
    """Init state."""
    seed: int = 0
    """Of the plain policy's candidate, from which the other seeds follow."""
    deadline_s: float | None = None
    """Seconds for the decision."""
    html: Path | None = None
    """File to draw the imagined futures in, with their scores, beside what happens when the chosen chunk is run."""
    device: str = "cpu"
    """Where the models compute."""
    executor: str = "in-process"
    """How candidates are worked out: in-process, threads:COUNT or ray:COUNT."""


def main_plan(config: Annotated[PlanConfig, tyro.conf.arg(name="")]) -> int:
    """Print the candidates of one decision. Exit status 1 if nothing was scored and the plain policy answered."""
    from cosmos_robot.backbone.cosmos3.folder import find_checkpoint

    if config.html and config.html.suffix != ".html":
        raise InputError(f"html: expected a file ending in .html, got {config.html}")
    contract = None if config.contract is None else find_checkpoint(config.contract).contract()
    chosen = {"contract": contract, "device": config.device, "executor": config.executor}
    planner = load_planner(config.ckpt, config.plan, config.planning_ckpt, **chosen)
    console = Console()
    robot = envs.speaking(config.env, planner.contract.robot.name)
    with contextlib.closing(planner), envs.make(config.env, **robot) as env:
        require_fit(planner.contract, env.robot)
        seen, _ = env.reset(seed=config.seed, options={"init_state": config.init})
        now = compose_canvas(planner.contract, seen.images)
        found = planner.plan(seen, config.seed, config.deadline_s)
        print_plan(found, console)
        if config.html:
            draw_plan(config.html, planner, seen, now, found, _after(env, planner, found))
            console.print(f"drawn: {config.html}", highlight=False, soft_wrap=True)
    return 0 if found.planned else 1


def print_plan(found: Plan, console: Console) -> None:
    """The table of candidates, and why the chosen one was chosen."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("candidate", "seed", "score", "values from", "to", "seconds", "", "why not"):
        table.add_column(heading, justify="left" if heading in ("", "why not") else "right")
    for candidate in found.candidates:
        table.add_row(*_cells(candidate, candidate.index == found.chosen.index))
    console.print(table)
    console.print(f"{found.why}; {found.seconds:.3f} s, diversity of commands {found.diversity:.4f}", highlight=False)


def _cells(candidate: Candidate, chosen: bool) -> tuple[str, ...]:
    values = candidate.values
    span = (f"{values.min():.3f}", f"{values.max():.3f}") if values.size else ("", "")
    score = f"{candidate.score:.4f}" if candidate.score == candidate.score else "none"
    same = "" if candidate.duplicate_of is None else f"the same as {candidate.duplicate_of}"
    mark = "chosen" if chosen else same
    return (
        str(candidate.index),
        str(candidate.seed),
        score,
        *span,
        f"{candidate.seconds:.3f}",
        mark,
        candidate.rejected,
    )


def _after(env: RobotEnv, planner: Planner, found: Plan) -> tuple[NDArray[Any], bool]:
    """The canvas after the whole chosen chunk, which is what a future shows, and whether that was a success."""
    result = execute(env, found.chunk.values)
    return compose_canvas(planner.contract, result.observation.images), result.success


def draw_plan(
    path: Path, planner: Planner, seen: Observation, now: NDArray[Any], found: Plan, after: tuple[NDArray[Any], bool]
) -> Path:
    """An HTML file with now, what happened, and each candidate's futures beside its values."""
    picture, success = after
    title = f"{planner.contract.model.name}: {seen.instruction}"
    happened = f"after the chosen chunk{', a success' if success else ''}"
    body = (
        f'<p class="score">{escape(found.why)}</p><section><h2>What happened</h2><div class="strip">'
        f"{figure(now, 'now')}{figure(picture, happened)}</div></section>{candidates(found)}"
    )
    return write_page(path, title, body)
