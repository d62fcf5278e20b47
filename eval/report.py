"""A report of episodes that one can look at: films, what the model saw, and actions over time, in one HTML file."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage

from cosmos_robot.contract import Contract, RobotSpec
from cosmos_robot.eval.entrants import Entrant
from cosmos_robot.eval.plots import plot_actions
from cosmos_robot.eval.protocol import EpisodeRules, Job
from cosmos_robot.eval.results import EpisodeRecord
from cosmos_robot.eval.runner import Listener
from cosmos_robot.images import compose_canvas
from cosmos_robot.types import ActionChunk, Image, Observation


@dataclass(frozen=True)
class Decision:
    """One answer of the policy, ``step`` control steps into the episode. canvas: None if the policy looks at none."""

    step: int
    canvas: Image | None
    chunk: NDArray[np.float64]
    seed: int


@dataclass(frozen=True)
class EpisodeTrace:
    """One episode with every decision."""

    record: EpisodeRecord
    decisions: tuple[Decision, ...]

    def executed(self, robot: RobotSpec) -> NDArray[np.float64]:
        """(steps, D): the rows that were run, clipped to the robot's range as the environment does."""
        ends = [d.step for d in self.decisions[1:]] + [self.record.steps]
        rows = np.concatenate([d.chunk[: end - d.step] for d, end in zip(self.decisions, ends, strict=True)])
        low = -np.inf if robot.action_low is None else robot.action_low
        high = np.inf if robot.action_high is None else robot.action_high
        return np.clip(rows, low, high)


@dataclass
class Tracer(Listener):
    """Keeps the decisions of every finished episode, in the order in which they ended."""

    contract: Contract
    looks: bool
    traces: list[EpisodeTrace] = field(default_factory=list)
    _open: dict[Job, list[Decision]] = field(default_factory=dict)

    def on_start(self, job: Job) -> None:
        self._open[job] = []

    def on_decision(self, job: Job, step: int, observation: Observation, chunk: ActionChunk, seed: int) -> None:
        canvas = compose_canvas(self.contract, observation.images) if self.looks else None
        self._open[job].append(Decision(step, canvas, chunk.values, seed))

    def on_episode(self, job: Job, record: EpisodeRecord) -> None:
        self.traces.append(EpisodeTrace(record, tuple(self._open.pop(job))))


def write_report(
    path: Path, entrant: Entrant, rules: EpisodeRules, traces: Sequence[EpisodeTrace], films: Path, title: str
) -> Path:
    """Write a self-contained HTML file (pictures and films inside it) and return its path.

    films: folder in which the records' films lie.
    """
    robot = entrant.policy.contract.robot
    episodes = "".join(_episode(i, trace, robot, films) for i, trace in enumerate(traces, start=1))
    page = (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body><main>"
        f"<h1>{escape(title)}</h1>{_summary(entrant, rules, traces)}{episodes}</main></body></html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)
    return path


def _summary(entrant: Entrant, rules: EpisodeRules, traces: Sequence[EpisodeTrace]) -> str:
    successes = sum(trace.record.success for trace in traces)
    packages = ", ".join(f"{name} {version}" for name, version in rules.versions.packages.items() if version)
    sha = f", sha256 {entrant.checkpoint_sha256[:12]}" if entrant.checkpoint_sha256 else ""
    facts = {
        "policy": entrant.policy_name + (f" ({entrant.control} control)" if entrant.control else ""),
        "checkpoint": (entrant.checkpoint or "none") + sha,
        "contract": entrant.policy.contract.model.name,
        "rules": f"{rules.settle_steps} settle steps, at most {rules.budget} steps, {rules.execute} rows per decision, "
        f"seed {rules.seed}",
        "software": f"Python {rules.versions.python}, {packages}, pictures by {rules.versions.gl}",
    }
    rows = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
    links = "".join(
        f'<tr><td><a href="#episode-{i}">{i}</a></td><td>{escape(_name(t.record))}</td>'
        f"<td>{escape(t.record.instruction)}</td><td>{_badge(t.record)}</td><td>{t.record.steps}</td></tr>"
        for i, t in enumerate(traces, start=1)
    )
    return (
        f'<p class="score">success: {successes}/{len(traces)}</p><dl>{rows}</dl>'
        f"<table><thead><tr><th></th><th>episode</th><th>instruction</th><th>outcome</th><th>steps</th></tr></thead>"
        f"<tbody>{links}</tbody></table>"
    )


def _episode(number: int, trace: EpisodeTrace, robot: RobotSpec, films: Path) -> str:
    record = trace.record
    film = ""
    if record.film:
        data = base64.b64encode((films / record.film).read_bytes()).decode()
        cameras = " and ".join(camera.name for camera in robot.cameras)
        film = (
            f'<figure><video controls muted loop playsinline preload="metadata" src="data:video/mp4;base64,{data}">'
            f"</video><figcaption>Film: {escape(cameras)}, as the robot delivers them</figcaption></figure>"
        )
    plot = plot_actions(robot, [(d.step, d.chunk) for d in trace.decisions], trace.executed(robot))
    seconds = record.steps / robot.rate_hz
    return (
        f'<section id="episode-{number}"><h2>{number}. {escape(record.instruction)} {_badge(record)}</h2>'
        f"<p>{escape(_name(record))}: {record.steps} steps ({seconds:.1f} s), {record.decisions} decisions</p>"
        f"{film}<h3>What the model saw</h3>{_canvases(trace, robot)}"
        f"<h3>Actions over time</h3><figure>{plot}<figcaption><span class='key executed-key'></span> run "
        "<span class='key predicted-key'></span> predicted at each decision (vertical lines)</figcaption></figure>"
        "</section>"
    )


def _canvases(trace: EpisodeTrace, robot: RobotSpec) -> str:
    if all(d.canvas is None for d in trace.decisions):
        return "<p>Nothing: this policy does not look at pictures.</p>"
    pictures = "".join(
        f'<figure><img alt="canvas at step {d.step}" src="data:image/png;base64,{png(d.canvas)}">'
        f"<figcaption>step {d.step}, {d.step / robot.rate_hz:.1f} s</figcaption></figure>"
        for d in trace.decisions
    )
    return f'<div class="strip">{pictures}</div>'


def _name(record: EpisodeRecord) -> str:
    return f"{record.suite}/{record.task}, init state {record.init}"


def _badge(record: EpisodeRecord) -> str:
    return f'<span class="{"good" if record.success else "bad"}">{"success" if record.success else "failure"}</span>'


def png(image: Image) -> str:
    """A picture as the text of a PNG in base64."""
    buffer = io.BytesIO()
    PILImage.fromarray(image).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


STYLE = """
:root { color-scheme: light; --ink: #1d2329; --soft: #69737d; --line: #dfe3e8; --run: #1f6feb; --guess: #e3963e; }
body { margin: 0; background: #f4f6f8; color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
section, dl, table { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 1rem; }
section { margin-top: 1.5rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 0; } h3 { font-size: 0.95rem; margin-bottom: 0.4rem; }
.score { font-size: 1.25rem; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; box-sizing: border-box; }
th, td { text-align: left; padding: 0.2rem 0.6rem; }
figure { margin: 0; } figcaption { color: var(--soft); font-size: 0.85rem; }
video { width: 100%; max-width: 40rem; background: #000; border-radius: 4px; }
.strip { display: flex; gap: 0.6rem; overflow-x: auto; padding-bottom: 0.5rem; }
.strip img { width: 192px; display: block; image-rendering: pixelated; border-radius: 4px; }
.good, .bad { font-size: 0.8rem; font-weight: 600; padding: 0.1rem 0.5rem; border-radius: 1rem; }
.good { background: #d9f2e1; color: #10602f; } .bad { background: #fbe0dd; color: #8f1d12; }
svg.actions { width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink); }
svg .name { text-anchor: end; } svg .bound { text-anchor: end; font-size: 8px; fill: var(--soft); }
svg .tick { text-anchor: middle; fill: var(--soft); }
svg .panel { fill: #fafbfc; stroke: var(--line); } svg .zero, svg .decision { stroke: var(--line); }
svg polyline { fill: none; } svg .predicted { stroke: var(--guess); stroke-width: 1; opacity: 0.8; }
svg .executed { stroke: var(--run); stroke-width: 1.8; }
.key { display: inline-block; width: 1.5rem; height: 3px; vertical-align: middle; margin-left: 0.6rem; }
.executed-key { background: var(--run); } .predicted-key { background: var(--guess); }
"""
