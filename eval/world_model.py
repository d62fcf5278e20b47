"""Is a world model any good, and for which decisions? Windows of episodes, predicted and compared with what happened.

    python eval/world_model.py --ckpt CHECKPOINT --env libero_object --json out.json

is the same as ``cosmos-robot eval-world-model ...``.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # As in libero.py: what lies beside this script must not hide the modules of others.
    _here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != _here]

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from cosmos_robot.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from cosmos_robot.contract import Contract
    from cosmos_robot.eval.world_model_log import WindowLog
    from cosmos_robot.eval.world_model_models import ModelsSpec
    from cosmos_robot.eval.world_model_session import SessionSettings
    from cosmos_robot.eval.world_model_sources import Source

DASH = Path("-")


@dataclass(frozen=True)
class WorldModelConfig:
    """Evaluate a world model on recorded episodes (--data) or in a simulator (--env). A killed run resumes."""

    ckpt: str
    """Shipped name, folder or hub id of the checkpoint; still is a model in which nothing moves."""
    env: str | None = None
    """Suite or environment, such as libero_object or libero_object/3, to drive now."""
    data: Path | None = None
    """Dataset of recorded episodes, instead of a simulator."""
    tasks: tuple[int, ...] = ()
    """Task indices of the suite; all when none is given."""
    episodes: int | None = None
    """Episodes per task, or of the dataset; when not given, 2 per task and 10 in all."""
    first_episode: int = 0
    """First init state, or first episode of the dataset."""
    numbers: tuple[int, ...] = ()
    """Episodes of the dataset, such as those held out in training, instead of --episodes from --first-episode."""
    driver: str = "expert"
    """Who drives in the simulator: expert (LIBERO's demonstrator), random, or a policy by name."""
    steps: int = 200
    """Control steps after which an episode is ended."""
    windows: int = 4
    """Windows per episode, evenly spread over it and never over each other; fewer where it is short."""
    chunks: int = 1
    """Chunks of a rollout; the commands are falsified in the first."""
    carry: Literal["pixels", "latent"] = "pixels"
    """What a chunk of a rollout sees of the one before."""
    probed: int = 2
    """Windows per episode, spread over it, that are tried with other scales and exchanged cameras, too."""
    outcomes: bool = False
    """Run the falsified commands in the simulator, too, and see which outcome each prediction is nearest to."""
    inverse_ckpt: str | None = None
    """Checkpoint that reads commands off predicted videos, if not CKPT itself."""
    contract: str | None = None
    """Checkpoint under whose contract still works."""
    untrained: bool = True
    """Also predict with the checkpoint's weights shuffled, as a control."""
    gamma: float = 0.99
    """Discount per control step that the values were trained with; 0.99 is the published one."""
    rank: tuple[str, ...] = ()
    """Policies to rank in the simulator and in the model: zero, random, checkpoints, each with ~0.3 for noise."""
    rank_starts: int = 5
    """Init states of each task that each ranked policy starts from."""
    rank_steps: int = 200
    """Control steps of a ranked policy."""
    json: Path | None = None
    """Result file, or - to print it; runs/world_model/CKPT.SOURCE.json when not given. The report is beside it."""
    filmed: int = 4
    """Episodes whose first window is filmed for the report."""
    seed: int = 0
    """From which noise, shuffles and drivers follow."""
    workers: int = 1
    """Processes, each with models and a simulator of its own."""
    device: str = "cpu"
    """Where the models compute."""
    threads: int = 1
    """Threads of the models' computations on CPU."""
    fresh: bool = False
    """Discard what an earlier run left in the result file's log."""


def main_world_model(config: Annotated[WorldModelConfig, tyro.conf.arg(name="")]) -> int:
    """Measure, say what came of it, and write JSON and HTML."""
    import json

    from rich.console import Console

    from cosmos_robot.eval.results import write_result
    from cosmos_robot.eval.world_model_models import ModelsSpec
    from cosmos_robot.eval.world_model_report import print_result, write_report

    make = ModelsSpec(
        config.ckpt, config.contract, config.inverse_ckpt, config.untrained, config.device, config.threads
    )
    contract = make.contract_of()
    source = open_source(config)
    require_possible(config, contract)
    result = result_path(config)
    console = Console(stderr=config.json == DASH)
    films = result.with_suffix(".films") if config.filmed else None
    content = evaluate(config, make, contract, source, result, films)
    write_result(result, content)
    report = write_report(result.with_suffix(".html"), content, films)
    print_result(content, console)
    console.print(f"result: {result}\nreport: {report}", highlight=False, soft_wrap=True)
    if config.json == DASH:
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    return 0


def evaluate(
    config: WorldModelConfig,
    make: ModelsSpec,
    contract: Contract,
    source: Source,
    result: Path,
    films: Path | None,
) -> dict[str, Any]:
    """Measure what is left of the run, rank policies if asked to, and return the content of the result file."""
    from rich.console import Console

    from cosmos_robot.eval.world_model_faults import shortfalls
    from cosmos_robot.eval.world_model_log import WindowLog, log_path
    from cosmos_robot.eval.world_model_measure import MeasureSettings
    from cosmos_robot.eval.world_model_report import unfilmed
    from cosmos_robot.eval.world_model_session import SessionSettings, measure_all

    chosen = MeasureSettings(config.chunks, config.carry, config.seed, config.outcomes)
    settings = SessionSettings(chosen, config.windows, config.probed, config.filmed, films, config.workers)
    header = run_header(config, settings, contract, source)
    log, told = WindowLog(log_path(result), header, fresh=config.fresh), Console(stderr=True)
    try:
        for warning in shortfalls(len(source.names()), settings.windows, settings.probed):
            told.print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
        records = measure_all(make, source, settings, log, told)
        ranking = rank_policies(config, make, log, told) if config.rank else None
    finally:
        log.close()
        source.close()
    absent = absences(config, make, contract)
    gone = unfilmed(records, source.names()[: config.filmed], films)
    if gone:
        absent["films"] = f"{gone} episodes were measured without films, or theirs are gone; --fresh makes them again"
    for name in ("joint", "outcomes") if config.env else ():
        wanted = name not in absent and (name == "joint" or config.outcomes)
        if wanted and not any(record.get(name) for record in records):
            absent[name] = "this simulator cannot go back to a moment, to run other commands from it"
    header |= {"gamma": config.gamma, "cut_at": cut_at(config)}
    return summary(header, records, ranking, absent)


def summary(
    header: dict[str, Any], records: list[dict[str, Any]], ranking: dict[str, Any] | None, absent: dict[str, str]
) -> dict[str, Any]:
    """The content of a result: what the run was, what can be said, what could not be measured and why, the records."""
    from cosmos_robot.eval import world_model_verdicts as verdicts
    from cosmos_robot.eval.calibration import GAMMA
    from cosmos_robot.eval.world_model_faults import faults
    from cosmos_robot.eval.world_model_metrics import plain

    has_state = any(record.get("state") for record in records)
    methods = [m for m in ("last", "mean", "untrained") if m in records[0]["frames"][0]]
    content = {
        **header,
        "episodes": len({record["run"] for record in records}),
        "windows": len(records),
        "verdict": verdicts.following(records).facts(),
        "gripper_verdict": verdicts.gripper(records).facts(),
        "state_verdict": verdicts.following(records, "state").facts() if has_state else None,
        "faults": [asdict(fault) for fault in faults(records)],
        "not_finite": verdicts.not_finite(records),
        "overall": verdicts.overall(records),
        "better_where_it_moves_than": {m: asdict(verdicts.better_than(records, m)) for m in methods},
        "scores": verdicts.scores(records),
        "states": verdicts.states(records),
        "path": verdicts.paths(records),
        "inverse": verdicts.recovered(records),
        "joint": verdicts.agreement(records),
        "pairing": verdicts.pairing(records),
        "value_calibration": verdicts.values(records, header.get("gamma", GAMMA), header.get("cut_at")),
        "ranking": ranking,
        "measures": {
            "psnr": "mean over windows of each frame's, identical pictures as 60 dB",
            "ssim": "Wang et al. 2004, Gaussian window of 11 pixels, computed here",
            "moving_psnr": "over pixels that differ from the first true picture by more than 16 levels, from 16 on",
            "intervals": "95 %: Wilson over the effective number of windows (Korn and Graubard 1998), by episode",
        },
        "not_available": absent,
        "records": records,
    }
    return plain(content)


def states_at_joints(chunks: int, contract: Contract) -> str | None:
    """Whose states the later chunks of a rollout are given: ``predicted``, or ``recorded`` where the model reads one
    and predicts none; None where no state is needed."""
    if chunks == 1:
        return None
    if "future state" in contract.model.frames:
        return "predicted"
    return "recorded" if contract.reads_state else None


def run_header(
    config: WorldModelConfig, settings: SessionSettings, contract: Contract, source: Source
) -> dict[str, Any]:
    """What a run is: windows of runs whose headers differ are not mixed."""
    from cosmos_robot import __version__
    from cosmos_robot.eval.world_model_models import checkpoint_hash

    live = {"driver": config.driver, "steps": config.steps, "tasks": list(config.tasks)} if config.env else {}
    live |= {"driver_sha256": checkpoint_hash(config.driver)} if config.env else {}
    return {
        "version": __version__,
        "checkpoint": config.ckpt,
        "checkpoint_sha256": checkpoint_hash(config.ckpt),
        "contract": contract.model.name,
        "contract_sha256": hashlib.sha256(contract.model_dump_json().encode()).hexdigest(),
        "inverse_checkpoint": config.inverse_ckpt,
        "inverse_checkpoint_sha256": checkpoint_hash(config.inverse_ckpt),
        "source": str(config.env or config.data),
        "records_version": 2,
        "data_fingerprint": source.fingerprint(contract),
        "episodes_asked": episodes_asked(config),
        "first_episode": config.first_episode,
        **({"numbers": list(config.numbers)} if config.numbers else {}),
        **live,
        "windows_per_episode": settings.windows,
        "probed_per_episode": settings.probed,
        "untrained": config.untrained,
        "states_at_joints": states_at_joints(config.chunks, contract),
        **asdict(settings.measure),
    }


def require_possible(config: WorldModelConfig, contract: Contract) -> None:
    """Raise InputError or ContractError for what could only fail once much was measured."""
    from cosmos_robot.eval.world_model_ranking import require_rankable
    from cosmos_robot.eval.world_model_windows import unpredicted
    from cosmos_robot.policies import FAKE_WORLDS

    missing = unpredicted(contract)
    if config.chunks > 1 and missing:
        raise InputError(
            f"{contract.model.name!r} predicts no picture of {', '.join(missing)}, so that a second chunk would see "
            f"black there; expected --chunks 1, got {config.chunks}"
        )
    if config.rank:
        if config.ckpt in FAKE_WORLDS:
            raise InputError(f"--rank needs a value, {config.ckpt!r} has none; name a checkpoint, or drop --rank")
        require_rankable(config.rank, contract, config.device)


def open_source(config: WorldModelConfig) -> Source:
    """Where the episodes come from. Raises InputError unless exactly one of --env and --data is given."""
    from cosmos_robot.eval.world_model_sources import Live, Recorded

    if (config.env is None) == (config.data is None):
        raise InputError("pass either --env, a suite or environment to drive, or --data, a dataset of episodes")
    if config.numbers and (config.data is None or config.episodes is not None or config.first_episode):
        raise InputError("--numbers are episodes of --data, instead of --episodes and --first-episode; drop either")
    episodes = episodes_asked(config)
    if episodes < 1 or config.first_episode < 0:
        raise InputError(f"episodes: expected at least 1, from 0, got {episodes} from {config.first_episode}")
    if not 0 < config.gamma <= 1:
        raise InputError(f"gamma: expected a number above 0, at most 1, got {config.gamma}; the published one is 0.99")
    if config.data is not None:
        if config.rank or config.tasks:
            raise InputError("--rank and --tasks are about a simulator; name it with --env instead of --data")
        return Recorded(config.data, episodes, config.first_episode, config.numbers)
    names = env_names(config)
    return Live(names, episodes, config.driver, config.first_episode, config.steps, config.seed)


def episodes_asked(config: WorldModelConfig) -> int:
    """--episodes, or as many as --numbers names; without them 2 per task, or as many as bring all tasks to 10, so that
    something can be said."""
    if config.numbers:
        return len(config.numbers)
    if config.episodes is not None:
        return config.episodes
    tasks = len(env_names(config)) if config.env else 1
    return max(2, -(-10 // tasks))


def cut_at(config: WorldModelConfig) -> int | None:
    """Control steps at which --steps ends an episode that might have gone on; None for recordings, and where the
    suite's own budget is over by then."""
    from cosmos_robot.eval.suites import suite_rules

    if config.env is None:
        return None
    budget = suite_rules(config.env.split("/")[0]).budget
    return None if budget is not None and config.steps >= budget else config.steps


def env_names(config: WorldModelConfig) -> tuple[str, ...]:
    """The environments of --env and --tasks."""
    from cosmos_robot.eval.session import suite_tasks

    env = str(config.env)
    if "/" in env:
        if config.tasks:
            raise InputError(f"--env {env} is one task already; drop --tasks, or name the suite")
        return (env,)
    return tuple(f"{env}/{task}" for task in suite_tasks(env, config.tasks))


def result_path(config: WorldModelConfig) -> Path:
    """Where the result goes. Raises InputError for a path that is none for JSON."""
    if config.json is None or config.json == DASH:
        source = str(config.env or Path(str(config.data)).name).replace("/", "-")
        return Path("runs/world_model") / f"{Path(config.ckpt).name}.{source}.json"
    if config.json.suffix != ".json":
        raise InputError(f"the result should be a file ending in .json, or -, got {config.json}")
    return config.json


def absences(config: WorldModelConfig, make: ModelsSpec, contract: Contract) -> dict[str, str]:
    """What is not measured, and why."""
    from cosmos_robot.eval.world_model_windows import unpredicted
    from cosmos_robot.policies import FAKE_WORLDS

    modes = f"its contract's modes are {', '.join(contract.model.modes)}"
    absent = {"lpips": "no package with a trained model for it is a part of this one"}
    if make.inverse_ckpt is None and "inverse_dynamics" not in contract.model.modes:
        absent["inverse"] = f"{modes}; a checkpoint that reads videos can be named with --inverse-ckpt"
    foresees = "wam" if not contract.model.frames else "policy"
    if foresees not in contract.model.modes or config.ckpt in FAKE_WORLDS:
        absent["joint"] = f"{modes}, none of which imagines a video with its own commands"
    elif config.data is not None:
        absent["joint"] = "a recording cannot run the commands that came with a video; name a simulator with --env"
    if "value" not in contract.model.modes:
        absent["value_calibration"] = f"{modes}, none of which says how good a future is"
    for camera in unpredicted(contract):
        absent[f"pictures of {camera}"] = "the model predicts no future picture of it"
    if "future state" not in contract.model.frames:
        absent["states"] = "the model predicts no state"
    if not config.outcomes:
        absent["pairing"] = "left out; --outcomes runs the falsified commands in the simulator"
    if not config.rank:
        absent["ranking"] = "left out; --rank names the policies"
    return absent


def rank_policies(config: WorldModelConfig, make: ModelsSpec, log: WindowLog, console: Console) -> dict[str, Any]:
    """Rank the policies of --rank from the first init states of all tasks; episodes that are in the log are not run
    again, unless their checkpoint changed."""
    from cosmos_robot.eval.world_model_models import checkpoint_hash
    from cosmos_robot.eval.world_model_ranking import Arena, Start, named, rank

    inits = range(config.first_episode, config.first_episode + config.rank_starts)
    starts = [Start(task, init) for task in env_names(config) for init in inits]
    weights = {name: checkpoint_hash(named(name)[0]) for name in config.rank}
    arena, total, told = Arena(make, config.device, config.rank_steps, config.seed), len(starts) * len(weights), 0

    def score(name: str, start: Start) -> dict[str, Any]:
        nonlocal told
        told += 1
        mark = "" if weights[name] is None else f" ({str(weights[name])[:16]})"
        key = f"rank: {name}{mark} from {start.task} init {start.init}, {config.rank_steps} steps"
        if key not in log.lines:
            found = arena.run(name, start)
            log.append({"key": key, **found})
            outcome = "success" if found["success"] else "failure"
            words = f"{told}/{total} {key}: {outcome}, value {found['value']:.3f}"
            console.print(words, highlight=False, soft_wrap=True)
        return log.lines[key]

    try:
        return rank(config.rank, score, starts)
    finally:
        arena.close()


if __name__ == "__main__":
    from cosmos_robot.cli import main

    sys.exit(main(["eval-world-model", *sys.argv[1:]]))
