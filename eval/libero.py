"""Score a policy on a LIBERO or LIBERO-PRO suite.

    python eval/libero.py --ckpt tiny-libero --suite libero_object --episodes 10 --json out.json

is the same as ``cosmos-robot eval ...``.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # The folder of a script comes first on the path, and this one's libero.py and statistics.py would hide the
    # simulator and a standard module, here and in every worker.
    _here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != _here]

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from cosmos_robot.contract import Contract
from cosmos_robot.errors import InputError

if TYPE_CHECKING:
    from cosmos_robot.eval.protocol import EvalProtocol
    from cosmos_robot.policies.base import Policy


@dataclass(frozen=True)
class EvalConfig:
    """Score a policy on a LIBERO suite, with Wilson 95 % intervals. A killed or interrupted run resumes."""

    ckpt: str = "tiny-libero"
    """Shipped name, folder or hub id of the checkpoint; also the contract that a control policy works under."""
    suite: str = "libero_object"
    """Suite, for instance libero_spatial or libero_object_swap."""
    tasks: tuple[int, ...] = ()
    """Task indices; all of the suite when none is given."""
    episodes: int = 10
    """Episodes per task, from init states init_offset, init_offset + 1, ..."""
    init_offset: int = 0
    """First init state."""
    json: Path | None = None
    """Result file; runs/eval/POLICY.SUITE.json when not given. Finished episodes are kept beside it."""
    policy: Literal["checkpoint", "random", "zero"] = "checkpoint"
    """The checkpoint, or a control: random actions, or none."""
    blind: bool = False
    """Score the checkpoint's blind control, CKPT-blind, trained and run without pictures."""
    videos: Path | None = None
    """Folder for films of every episode."""
    video_every: int = 2
    """Control steps per film frame; each frame costs two pictures."""
    settle_steps: int = 10
    """Steps of no motion before the policy acts."""
    max_steps: int | None = None
    """Step budget; the suite's published one when not given."""
    settle_counts: bool = False
    """Count settle steps in the budget."""
    prompt_source: Literal["scene", "name"] = "scene"
    """Take the instruction from the scene file or from the task's name."""
    execute: int | None = None
    """Rows run per decision; the contract's when not given."""
    seed: int = 0
    """From which the seed of every reset and every decision is derived."""
    one_at_a_time: bool = False
    """Compute decisions singly: outcomes then do not depend on which episodes wait together."""
    workers: int = 3
    """Simulator processes. One more than there are cores keeps them busy while the policy computes."""
    threads: int = 1
    """Threads of the policy's computations on CPU."""
    fresh: bool = False
    """Discard what an earlier run left in the result file and its episode log."""


def main_eval(config: Annotated[EvalConfig, tyro.conf.arg(name="")]) -> int:
    """Run one evaluation, print its table, write its JSON. Exit status 1 if an episode could not be run."""
    from rich.console import Console

    from cosmos_robot.eval.results import RunHeader
    from cosmos_robot.eval.runner import Filming, RunSettings
    from cosmos_robot.eval.session import evaluate, print_result

    console = Console(stderr=True)
    protocol_of = _check(config)
    policy, identity = open_policy(config.ckpt, kind=config.policy, blind=config.blind, threads=config.threads)
    header = RunHeader(**identity, protocol=protocol_of(policy.contract))
    cameras = tuple(camera.name for camera in policy.contract.robot.cameras)
    filming = Filming(config.videos, cameras, config.video_every) if config.videos else None
    label = identity["checkpoint"] if config.policy == "checkpoint" else config.policy
    result = config.json or Path("runs/eval") / f"{Path(label).name}.{config.suite}.json"
    content = evaluate(
        policy, header, result, RunSettings(config.workers, filming), fresh=config.fresh, console=console
    )
    out = Console()
    print_result(content, out)
    out.print(f"result: {result}", highlight=False, soft_wrap=True)
    return 1 if content["errors"] else 0
