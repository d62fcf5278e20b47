"""Decisions by search as pictures: what each candidate was imagined to lead to, its values, and what happened."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cosmos_robot.contract import Contract
from cosmos_robot.eval.protocol import Job
from cosmos_robot.eval.report import STYLE, png
from cosmos_robot.eval.results import EpisodeRecord
from cosmos_robot.eval.runner import Listener
from cosmos_robot.images import compose_canvas
from cosmos_robot.planning.plan import Candidate, Plan
from cosmos_robot.types import ActionChunk, Observation

SHOWN = 24
"""Decisions of a run that are drawn, one of an episode."""
SPREAD = 5
"""Episode after episode a later decision is drawn, from the first to this one, then again from the first."""


@dataclass
class _Drawn:
    """A decision that is being drawn. after: how the picture after it is called, and the picture."""

    job: Job
    number: int
    instruction: str
    now: NDArray[Any]
    plan: Plan
    after: tuple[str, NDArray[Any]] | None = None


class PlanGallery(Listener):
    """Draws one decision of each episode, up to ``SHOWN``: its candidates' futures, and what then happened.

    ``offer`` is told of every plan by the policy that made it; the episode's next picture is what happened.
    """

    def __init__(self, contract: Contract, execute: int):
        self.contract, self.execute = contract, execute
        self._plans: dict[int, Plan] = {}
        self._numbers: dict[Job, int] = {}
        self._open: dict[Job, _Drawn] = {}
        self._episodes = 0
        self._sections: list[str] = []

    def offer(self, seed: int, plan: Plan) -> None:
        """A plan, before ``on_decision`` hears of its chunk."""
        if len(self._sections) + len(self._open) < SHOWN:
            self._plans[seed] = plan

    def on_start(self, job: Job) -> None:
        self._numbers[job] = 0
        self._open.pop(job, None)

    def on_decision(self, job: Job, step: int, observation: Observation, chunk: ActionChunk, seed: int) -> None:
        number, plan = self._numbers[job], self._plans.pop(seed, None)
        self._numbers[job] = number + 1
        drawn = self._open.get(job)
        if drawn and drawn.after is None:
            rows = min(self.execute, len(drawn.plan.chunk.values))
            words = f"what happened, after {rows} of {len(drawn.plan.chunk.values)} rows"
            drawn.after = words, compose_canvas(self.contract, observation.images)
        if plan is not None and drawn is None and number == self._episodes % SPREAD:
            now = compose_canvas(self.contract, observation.images)
            self._open[job] = _Drawn(job, number, observation.instruction, now, plan)

    def on_episode(self, job: Job, record: EpisodeRecord) -> None:
        self._episodes += 1
        drawn = self._open.pop(job, None)
        if drawn is not None:
            self._sections.append(_decision(drawn, record.success))

    def write(self, path: Path) -> Path | None:
        """The page of what was drawn; None, and no file, if nothing was."""
        if not self._sections:
            return None
        note = (
            f"{len(self._sections)} of this run's decisions, at most one of an episode. A future is the moment after a "
            "whole chunk, as the model imagines it; its values say how likely it thinks success from there."
        )
        return write_page(path, "Decisions by search", f"<p>{note}</p>" + "".join(self._sections))


def write_page(path: Path, title: str, body: str) -> Path:
    """A self-contained HTML file."""
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)
    return path


def candidates(found: Plan, most: int | None = None) -> str:
    """Every candidate with its futures, ``most`` of each, and their values."""
    return "".join(_candidate(c, c.index == found.chosen.index, most) for c in found.candidates)


def figure(image: NDArray[Any], words: str) -> str:
    """A picture inside the page."""
    return (
        f'<figure><img alt="{escape(words)}" src="data:image/png;base64,{png(image)}">'
        f"<figcaption>{escape(words)}</figcaption></figure>"
    )


def _decision(drawn: _Drawn, success: bool) -> str:
    job, badge = drawn.job, '<span class="good">success</span>' if success else '<span class="bad">failure</span>'
    after = drawn.after or ("the episode ended before the next decision", None)
    picture = "" if after[1] is None else figure(after[1], after[0])
    words = "" if after[1] is not None else f"<p>{after[0]}</p>"
    best = drawn.plan.chosen
    chosen = "".join(
        figure(future.frames[-1], f"imagined for the chosen one, mean value {row.mean():.3f}")
        for future, row in zip(best.futures[:1], best.values, strict=False)
    )
    return (
        f"<section><h2>{escape(job.env_name)} init {job.init}, decision {drawn.number} {badge}</h2>"
        f"<p>{escape(drawn.instruction)}: {escape(drawn.plan.why)} ({escape(drawn.plan.settings)})</p>{words}"
        f'<div class="strip">{figure(drawn.now, "now")}{chosen}{picture}</div>{candidates(drawn.plan, 1)}</section>'
    )


def _candidate(candidate: Candidate, chosen: bool, most: int | None) -> str:
    score = f"{candidate.score:.4f}" if candidate.score == candidate.score else "no score"
    badge = '<span class="good">chosen</span>' if chosen else ""
    pictures = "".join(
        figure(future.frames[-1], "values " + ", ".join(f"{v:.3f}" for v in row))
        for future, row in zip(candidate.futures[:most], candidate.values, strict=False)  # Q(s, a) has no future
    )
    note = candidate.rejected
    if candidate.duplicate_of is not None:
        note = f"the same commands as candidate {candidate.duplicate_of}"
    return (
        f"<section><h2>{candidate.index}. {score} {badge}</h2><p>seed {candidate.seed} {escape(note)}</p>"
        f'<div class="strip">{pictures}</div></section>'
    )
