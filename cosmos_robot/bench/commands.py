"""``cosmos-robot bench policy|candidates|plan|encode|train-step|serve|loop|rendering``: figures to see or as JSON."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from typing import Any, Literal

from cosmos_robot.errors import InputError

SCREEN = Path("-")


def rendering(
    env: str = "libero_object/0", steps: int = 200, episodes: int = 3, length: int = 110, json: Path | None = None
) -> None:
    """What pictures cost an environment: control steps per second without them, with them now and then, and on every
    step; episodes per minute with pictures once per decision and on every step.

    Args:
        env: name of the environment.
        steps: control steps of each measurement.
        episodes: episodes of each measurement.
        length: control steps of an episode.
        json: file to write the figures to, - for the screen.
    """
    from cosmos_robot.bench.rendering import report
    from cosmos_robot.envs import make

    if min(steps, episodes, length) < 1:
        raise InputError(f"expected steps, episodes and length of at least 1, got {steps}, {episodes} and {length}")
    _check(json)
    with make(env) as world:
        figures = report(world, steps, episodes, length)
    if json != SCREEN:
        _show_rendering(env, figures)
    _write(figures, json)


def policy(
    shape: Literal["tiny", "nano-slice"] = "tiny",
    repeats: int = 5,
    dtype: Literal["float32", "bfloat16"] | None = None,
    threads: int | None = None,
    json: Path | None = None,
) -> None:
    """One policy chunk of ours against diffusers: same weights, picture, text and noise, in turns.

    Args:
        shape: tiny is a whole policy of about 10 M parameters against the pipeline; nano-slice is two layers of
            Cosmos3-Nano's widths in DROID's layout against the forward (minutes, and 6 GB of memory).
        repeats: timed turns (tiny only; nano-slice compares each of its four steps).
        dtype: of weights and products; float32 for tiny, bfloat16 for nano-slice unless given.
        threads: of torch; one for tiny, so that other jobs on the machine disturb the turns least, and as many as
            torch takes itself for nano-slice unless given.
        json: file to write the figures to, - for the screen.
    """
    _prepare(threads if threads or shape == "nano-slice" else 1, json)
    if shape == "nano-slice":
        import torch

        from cosmos_robot.bench.forward import DROID, slice_report
        from cosmos_robot.contract.library import load_contract

        figures = slice_report(load_contract(DROID), getattr(torch, dtype or "bfloat16"), progress=_say)
    else:
        if dtype == "bfloat16":
            raise InputError("bench policy --shape tiny compares in float32; bfloat16 is for nano-slice")
        from cosmos_robot.bench.policy import policy_report
        from cosmos_robot.bench.subjects import bench_contract

        figures = policy_report(_joint_policy, bench_contract(), repeats, _say)
    _report(figures, json)


def candidates(n: int = 8, repeats: int = 3, threads: int = 1, json: Path | None = None) -> None:
    """Several candidate chunks of one observation, as one batch, against as many pipeline calls; and peak memory.

    Args:
        n: candidates.
        repeats: timed turns.
        threads: of torch; one, so that other jobs on the machine disturb the turns least.
        json: file to write the figures to, - for the screen.
    """
    _prepare(threads, json)
    from cosmos_robot.bench.policy import candidates_report
    from cosmos_robot.bench.subjects import bench_contract

    _report(candidates_report(_joint_policy, bench_contract(), n, repeats, _say), json)


def plan(
    n: int = 8,
    futures: int = 3,
    values: int = 5,
    side: int = 32,
    steps: int = 5,
    repeats: int = 3,
    threads: int = 1,
    json: Path | None = None,
) -> None:
    """One decision by search as three batches, against the same search one candidate at a time and against the
    published order of calls.

    Args:
        n: candidates.
        futures: imagined for each.
        values: of each future.
        side: pixels of a camera, a multiple of 16 from 32; the released models have 224.
        steps: of the sampler.
        repeats: timed turns.
        threads: of torch; one, so that other jobs on the machine disturb the turns least.
        json: file to write the figures to, - for the screen.
    """
    _prepare(threads, json)
    if side < 32 or side % 16:
        raise InputError(f"bench plan: side must be a multiple of 16 from 32, got {side}")
    from cosmos_robot.bench.plan import plan_checkpoint, plan_contract, plan_report
    from cosmos_robot.planning.plan import PlannerSettings

    checkpoint = plan_checkpoint(plan_contract(side, steps))
    settings = PlannerSettings(n=n, futures=futures, values=values, aggregation="average")
    _report(plan_report(_searches(checkpoint, settings), checkpoint, (n, futures, values), repeats, _say), json)


def _searches(checkpoint: Any, settings: Any) -> Any:
    """One decision of ``settings`` with the models of a checkpoint, in three orders of calls."""
    from dataclasses import replace

    import numpy as np

    from cosmos_robot.bench.plan import Searches, plan_observation
    from cosmos_robot.planning.best_of_n import best_of_n
    from cosmos_robot.planning.ensembles import published_order
    from cosmos_robot.policies.cosmos_policy import cosmos_policy_model
    from cosmos_robot.policies.latent_frames import LatentFramePolicy, LatentFrameValueModel, LatentFrameWorldModel

    seen = plan_observation(checkpoint.contract)

    def models() -> Any:
        model = cosmos_policy_model(checkpoint)
        return LatentFramePolicy(model), LatentFrameWorldModel(model), LatentFrameValueModel(model)

    shared = models()

    def scores(batch: int | None) -> Any:
        planner = best_of_n(*shared, replace(settings, batch=batch))
        return lambda: np.array([c.score for c in planner.plan(seen, 0).candidates])

    return Searches(scores(None), scores(1), lambda: published_order(models, settings, seen, 0))


def encode(repeats: int = 5, vae_width: int = 16, threads: int = 1, json: Path | None = None) -> None:
    """The first frame alone through the autoencoder, against the whole clip that the pipeline encodes.

    Args:
        repeats: timed turns.
        vae_width: channels that the random autoencoder starts with; 160 in the released one.
        threads: of torch; one, so that other jobs on the machine disturb the turns least.
        json: file to write the figures to, - for the screen.
    """
    _prepare(threads, json)
    from cosmos_robot.bench.policy import encode_report
    from cosmos_robot.bench.subjects import bench_contract

    _report(encode_report(bench_contract(), repeats, vae_width, _say), json)


def train_step(
    batch: int = 16, instructions: int = 4, repeats: int = 5, threads: int = 1, json: Path | None = None
) -> None:
    """Loss and gradients of one batch, against diffusers' packed forward sample by sample.

    Args:
        batch: samples.
        instructions: distinct texts among them.
        repeats: timed turns.
        threads: of torch; one, so that other jobs on the machine disturb the turns least.
        json: file to write the figures to, - for the screen.
    """
    _prepare(threads, json)
    from cosmos_robot.bench.train_step import train_step_report

    _report(train_step_report(batch, instructions, repeats, _say), json)


def serve(clients: int = 4, requests: int = 150, hz: float = 15.0, turns: int = 2, json: Path | None = None) -> None:
    """Round trips of DROID's observation to a server whose model does nothing, ours against openpi's.

    Args:
        clients: how many ask at once, each a process.
        requests: of each client and turn.
        hz: how often each client asks; 0 for as fast as it can.
        turns: how often each side is measured.
        json: file to write the figures to, - for the screen.
    """
    _check(json)
    from cosmos_robot.bench.serving import Load, serving_report

    _report(serving_report(Load(clients, requests, hz, turns), _say), json)


def loop(
    robot: str = "franka-sim",
    hz: float | None = None,
    latency_ms: str = "250",
    drop: float = 0.0,
    seconds: float = 30.0,
    strategy: Literal["sync", "latest", "blend", "ensemble", "rtc"] = "rtc",
    rows: int = 32,
    execute: int = 16,
    seed: int = 0,
    host: str | None = None,
    json: Path | None = None,
) -> None:
    """The control loop on a robot, driven by a policy whose path is known through a slow network. The robot moves.

    Args:
        robot: name of the robot.
        hz: rate of commands, the robot's own unless given.
        latency_ms: time to an answer, or SHORTEST:LONGEST to draw it evenly between.
        drop: share of answers that never come.
        seconds: how long to drive.
        strategy: how chunks are joined. rtc sends the commands that will be used up meanwhile along with the question,
            so that chunks join without a seam whatever the delay.
        rows: of a chunk.
        execute: rows of a chunk to use before the next should take over.
        seed: of delays and of a simulated scene.
        host: address of a real robot's controller.
        json: file to write the figures to, - for the screen.
    """
    _check(json)
    from cosmos_robot.hardware.robots import Setup, make_robot
    from cosmos_robot.hardware.trial import Network, run_trial
    from cosmos_robot.serve.service import take_short_turns

    network = Network(_latency(latency_ms), drop, seed)
    take_short_turns()
    driven = make_robot(robot, Setup(host=host, rate_hz=hz, seed=seed))
    figures = run_trial(driven, network, seconds, strategy, rows, execute)
    settings = {
        "robot": robot,
        "hz": driven.robot.rate_hz,
        "strategy": strategy,
        "latency_ms": latency_ms,
        "drop": drop,
    }
    _report({"bench": "loop", **settings, **figures}, json)


def _latency(words: str) -> tuple[float, float]:
    try:
        low, _, high = words.partition(":")
        return float(low) / 1e3, float(high or low) / 1e3
    except ValueError:
        raise InputError(f"latency_ms: expected milliseconds, or SHORTEST:LONGEST, got {words!r}") from None


def _joint_policy(checkpoint: Any) -> Any:
    from cosmos_robot.policies.cosmos3 import Cosmos3JointPolicy

    return Cosmos3JointPolicy(checkpoint)


def _prepare(threads: int | None, json: Path | None) -> None:
    _check(json)
    if threads is not None:
        if threads < 1:
            raise InputError(f"expected at least 1 thread, got {threads}")
        import torch

        torch.set_num_threads(threads)


def _check(json: Path | None) -> None:
    if json and json != SCREEN:
        json.parent.mkdir(parents=True, exist_ok=True)


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")


def _report(figures: dict[str, Any], json: Path | None) -> None:
    if json != SCREEN:
        from rich.console import Console
        from rich.table import Table

        table = Table("figure", "value", box=None, title=f"bench {figures['bench']}")
        for name, value in _flat(figures):
            table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
        Console().print(table)
    _write(figures, json)


def _flat(figures: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in figures.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            rows.append((prefix + name, value))
    return rows


def _show_rendering(env: str, figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("pictures of all cameras", "control steps/s", "episodes/min", "pictures drawn", title=env, box=None)
    for row in figures["control"]:
        when = {0: "none", 1: "every step"}.get(row["every"], f"every {row['every']} steps")
        table.add_row(when, f"{row['steps_per_second']:.1f}", "", str(row["pictures"]))
    for row in figures["episodes"]:
        when = "every step" if row["every"] == 1 else f"every {row['every']} steps"
        table.add_row(f"{when}, with resets", "", f"{row['episodes_per_minute']:.1f}", str(row["pictures"]))
    Console().print(table)


def _write(figures: dict[str, Any], json: Path | None) -> None:
    text = dumps(figures, indent=2) + "\n"
    if json == SCREEN:
        sys.stdout.write(text)
    elif json:
        json.write_text(text)
