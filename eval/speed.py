"""What pictures cost the evaluator: the same episodes, with a picture of every camera drawn on every control step, and
with those alone that the policy looks at. In turns, so that a busy machine slows both alike.
"""

from __future__ import annotations

import sys
import tempfile
from json import dumps
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from cosmos_robot.errors import InputError
from cosmos_robot.eval.entrants import Entrant, open_entrant
from cosmos_robot.eval.libero import EvalConfig, make_protocol
from cosmos_robot.eval.protocol import EvalProtocol, Job
from cosmos_robot.eval.results import EpisodeRecord
from cosmos_robot.eval.runner import Filming, Listener, Runner, RunSettings


class Seconds(Listener):
    """Records of the episodes that were run."""

    def __init__(self) -> None:
        self.records: list[EpisodeRecord] = []

    def on_episode(self, job: Job, record: EpisodeRecord) -> None:
        self.records.append(record)


def measure(entrant: Entrant, protocol: EvalProtocol, rounds: int, settings: RunSettings) -> dict[str, Any]:
    """Run the episodes of ``protocol`` in ``rounds`` parts, each part without films and then with all frames kept.

    Seconds are those of episodes, resets included, without the building of environments. Both ways take the same
    decisions from the same seeds. Returns figures ready for JSON; ``ratio`` is how many times faster it is without.
    """
    jobs = protocol.jobs()
    if not 1 <= rounds <= len(jobs):
        raise InputError(f"rounds: expected 1 to {len(jobs)} (one episode each), got {rounds}")
    cameras = tuple(camera.name for camera in protocol.cameras)
    kept: dict[str, list[EpisodeRecord]] = {"as_read": [], "every_step": []}
    with tempfile.TemporaryDirectory() as folder:
        for part in range(rounds):
            for way, filming in (("as_read", None), ("every_step", Filming(Path(folder), cameras, every=1))):
                listener = Seconds()
                ways = RunSettings(settings.workers, filming, variables=settings.variables, factory=settings.factory)
                Runner(entrant.policy, protocol, ways, [listener]).run(jobs[part::rounds])
                kept[way] += listener.records
    figures = {way: _figures(records) for way, records in kept.items()}
    ratio = figures["every_step"]["seconds"] / figures["as_read"]["seconds"]
    return {"suite": protocol.suite, "policy": entrant.label, "cameras": list(cameras), **figures, "ratio": ratio}


def main_speed(
    ckpt: str = "tiny-libero",
    policy: Literal["checkpoint", "random", "zero"] = "checkpoint",
    suite: str = "libero_object",
    episodes: int = 6,
    steps: int = 80,
    rounds: int = 2,
    workers: int = 1,
    json: Path | None = None,
) -> None:
    """What pictures cost the evaluator: seconds of the same episodes with a picture of every camera on every control
    step, and with those alone that the policy looks at.

    Args:
        ckpt: checkpoint that drives.
        policy: the checkpoint, or a control that looks at nothing.
        suite: suite; its first task is run.
        episodes: how many, from init states 0, 1, ...
        steps: control steps of an episode.
        rounds: parts that are run in turns.
        workers: simulator processes.
        json: file to write the figures to; - for the standard output.
    """
    entrant = open_entrant(ckpt, kind=policy)
    config = EvalConfig(suite=suite, episodes=episodes)
    protocol = make_protocol(config, (0,), steps, entrant.policy.contract)
    figures = measure(entrant, protocol, rounds, RunSettings(workers))
    text = dumps(figures, indent=2) + "\n"
    if str(json) == "-":
        sys.stdout.write(text)
        return
    for way, words in (("as_read", "as the policy looks"), ("every_step", "on every step")):
        row = figures[way]
        Console().print(
            f"pictures {words}: {row['episodes_per_minute']:.1f} episodes/min, {row['steps']} steps", highlight=False
        )
    Console().print(f"ratio: {figures['ratio']:.2f}", highlight=False)
    if json:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(text)


def _figures(records: list[EpisodeRecord]) -> dict[str, Any]:
    seconds = sum(record.seconds for record in records)
    return {
        "episodes": len(records),
        "steps": sum(record.steps for record in records),
        "decisions": sum(record.decisions for record in records),
        "seconds": round(seconds, 2),
        "episodes_per_minute": 60 * len(records) / seconds,
    }
