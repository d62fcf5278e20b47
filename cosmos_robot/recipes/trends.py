"""Two trends of the Cosmos 3 report at this package's scale, on PushT, each with seeds, intervals and controls.

``trends-joint`` (report, appendix E.4): one model trained as forward dynamics, inverse dynamics and policy together,
against three trained as one of them, at equal steps for each mode. ``trends-adaptation`` (report, table 20): how fast a
checkpoint that saw other embodiments becomes a policy, against the same network with fresh weights.

Both adapt the autoencoder of ``tiny-libero`` to PushT first (as shipped it shows such pictures at 13 dB); every arm has
this one and keeps it. They make their data, train run after run, measure, and go on where they were stopped. What they
find lies in ``trends-*.json`` and, as tables, in ``trends-*.md``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from cosmos_robot.backbone.cosmos3.layout import PlanMode
from cosmos_robot.backbone.cosmos3.load import Checkpoint, load_checkpoint, save_checkpoint
from cosmos_robot.backbone.cosmos3.sharpness import with_finer_places
from cosmos_robot.backbone.cosmos3.untrained import untrained_contract
from cosmos_robot.contract import Box, Contract, Placement
from cosmos_robot.data.collect import collect
from cosmos_robot.data.episodes import Episode, executed_commands
from cosmos_robot.envs.pusht import PUSHT, STEP_BUDGET, PushTEnv
from cosmos_robot.envs.pusht_demos import DEMONSTRATOR, STRIDE, pusht_jobs
from cosmos_robot.errors import InputError
from cosmos_robot.eval.statistics import student_mean
from cosmos_robot.images import compose_canvas
from cosmos_robot.policies.cosmos3 import Cosmos3InverseModel, Cosmos3Policy, Cosmos3WorldModel
from cosmos_robot.policies.cosmos3_model import Cosmos3Model
from cosmos_robot.recipes import check_run
from cosmos_robot.recipes.adapted import adapt_tokenizer
from cosmos_robot.training.cache import EpisodeList, StoredEpisodes
from cosmos_robot.training.config import plain
from cosmos_robot.training.model_config import ModelTraining, PostTraining, Stream
from cosmos_robot.training.model_trainer import train_model
from cosmos_robot.training.session import write_atomic
from cosmos_robot.types import ActionChunk, Clip, Observation

START: Final = "tiny-libero"
SIDE: Final = 96
CHUNK, EXECUTE, GAP = 16, 8, 4
SEEDS: Final = (0, 1, 2)
DEMOS, STEPS, BATCH, EPISODES, WINDOWS = 60, 200, 32, 20, 48
TOKENIZER_STEPS: Final = 400
THREADS = 2
POINTS: Final = (0.25, 0.5, 1.0)
"""Shares of the steps after which adaptation is measured; in closed loop after the last."""
HELD_OUT_EVERY: Final = 10
MODES: Final[tuple[PlanMode, ...]] = ("policy", "forward_dynamics", "inverse_dynamics")
RECIPE: Final = PostTraining(lr=4e-4, head_factor=1.0, warmup=50, trainable="all", schedule="linear")
MEASURES: Final = {
    "coverage": "coverage", "policy_error": "policy error, px", "fd_latents": "FD error of latents",
    "fd_psnr": "FD PSNR, dB", "id_error": "ID error, px",
}  # fmt: skip


def joint(
    out: Path, *, until: str | None = None, workers: int = 2, scale: float = 1.0, corrections: bool = False
) -> None:
    """Joint against single-mode training; a table with a row for each arm and a control. ``scale`` multiplies
    demonstrations, steps and closed-loop episodes."""
    _require_plain(until, corrections, scale)
    demos = record(out, workers, scale)
    start = finer_start(out, adapted_start(out, demos, scale))
    steps = max(1, round(STEPS * scale))
    arms: dict[str, tuple[tuple[PlanMode, ...], int]] = {"joint": (MODES, steps * len(MODES))}
    arms |= {mode: ((mode,), steps) for mode in MODES}
    results: dict[str, list[dict[str, float]]] = {arm: [] for arm in arms}
    for seed in SEEDS:
        for arm, (modes, count) in arms.items():
            run = out / f"{arm}-{seed}"
            results[arm].append(_once(run, lambda a=(run, modes, count, seed): _measured(a, start, demos, scale)))
    results["control"] = [_once(out / "control", lambda: controls(start, demos, _episodes(scale)))]
    results["autoencoder"] = [_once(out / "ceiling", lambda: ceiling(start, demos))]
    table = {arm: {name: student_mean([r[name] for r in found if name in r]) for name in MEASURES}
             for arm, found in results.items()}  # fmt: skip
    report = {
        "trend": "joint",
        "steps_per_mode": steps,
        "seeds": SEEDS,
        "scale": scale,
        "runs": results,
        "table": table,
    }
    _write(out / "trends-joint", report, _rows(table))


def adaptation(
    out: Path, *, until: str | None = None, workers: int = 2, scale: float = 1.0, corrections: bool = False
) -> None:
    """A policy of a new robot from ``tiny-libero``, which saw another, and from fresh weights: error and coverage
    against steps."""
    _require_plain(until, corrections, scale)
    demos = record(out, workers, scale)
    start = adapted_start(out, demos, scale)
    steps = max(1, round(STEPS * scale))
    points = list(dict.fromkeys(max(1, round(steps * share)) for share in POINTS))
    results: dict[str, list[dict[str, float]]] = {"tiny-libero": [], "fresh": []}
    for seed in SEEDS:
        for arm, found in results.items():
            run = out / f"adapt-{arm}-{seed}"
            found.append(_once(run, lambda a=(run, arm, seed): _curve(*a, start, demos, points, scale)))
    control = _once(out / "control", lambda: controls(start, demos, _episodes(scale)))
    table = {arm: {name: student_mean([r[name] for r in found]) for name in found[0]} for arm, found in results.items()}
    report = {"trend": "adaptation", "steps": points, "seeds": SEEDS, "scale": scale, "runs": results, "table": table,
              "control": control}  # fmt: skip
    _write(
        out / "trends-adaptation", report, _rows(table | {"control": {"coverage": student_mean([control["coverage"]])}})
    )


def record(out: Path, workers: int, scale: float) -> Path:
    """The demonstrations, recorded if they are not there. Raises InputError where ``out`` has runs of other
    settings."""
    _require_same(out, scale)
    demos = out / "demos"
    if not demos.exists():
        collect(pusht_jobs(max(HELD_OUT_EVERY + 1, round(DEMOS * scale))), DEMONSTRATOR, PUSHT, demos, stride=STRIDE,
                workers=workers)  # fmt: skip
    return demos


def adapted_start(out: Path, demos: Path, scale: float) -> Path:
    """``tiny-libero`` with its autoencoder fine-tuned on the demonstrations that are not held out."""
    folder, made = out / "tokenizer", contract(MODES)
    if not (folder / "start").exists():
        stored = StoredEpisodes(demos, made)
        seen = EpisodeList([stored[e] for e in range(len(stored)) if e % HELD_OUT_EVERY])
        adapt_tokenizer(folder, START, made, demos, [seen], out / "cache", steps=max(2, round(TOKENIZER_STEPS * scale)),
                        threads=THREADS)  # fmt: skip
    return folder / "start"


def finer_start(out: Path, start: Path) -> Path:
    """``start`` with places fine enough to copy a picture by; without, forward dynamics learns none of it in so few
    steps. What ``tiny-libero`` had learned is disturbed for every arm alike."""
    folder = out / "finer"
    if not folder.exists():
        begun = load_checkpoint(start, dtype=torch.float32)
        save_checkpoint(folder, transformer=with_finer_places(begun.transformer), vae=begun.vae,
                        tokenizer=begun.tokenizer, contract=begun.contract)  # fmt: skip
    return folder


def contract(modes: Sequence[PlanMode]) -> Contract:
    """PushT seen whole; five pictures and sixteen commands a chunk."""
    plain = untrained_contract(PUSHT, "pusht", CHUNK, EXECUTE)
    camera = PUSHT.cameras[0]
    whole = Placement(
        camera=camera.name, crop=Box(top=0, left=0, height=camera.height, width=camera.width),
        to=Box(top=0, left=0, height=SIDE, width=SIDE),
    )  # fmt: skip
    canvas = plain.model.canvas.model_copy(update={"height": SIDE, "width": SIDE, "placements": (whole,)})
    changes = {
        "fps": float(PUSHT.rate_hz // GAP),
        "canvas": canvas,
        "domain_id": 4,
        "domain_name": "pusht",
        "actions_per_frame": GAP,
        "modes": tuple(modes),
    }
    return Contract(robot=PUSHT, model=plain.model.model_copy(update=changes))


def training(run: Path, start: Path, modes: Sequence[PlanMode], steps: int, seed: int) -> ModelTraining:
    """One run; latents lie in ``cache`` beside it. Every arm reads the same samples: pictures are encoded for any mode,
    once for all."""
    stream = Stream(name="pusht", contract=contract(modes), modes=dict.fromkeys(modes, 1.0), stride=STRIDE, every=2)
    return ModelTraining(
        out=run, streams=(stream,), start=str(start), cache=run.parent / "cache", steps=steps, batch=BATCH, seed=seed,
        recipe=RECIPE, validation_every=HELD_OUT_EVERY, validation_samples=WINDOWS, validate_seconds=1e9,
        threads=THREADS,
    )  # fmt: skip


def measure(checkpoint: Checkpoint, demos: Path, episodes: int) -> dict[str, float]:
    """What a checkpoint's modes can show: coverage in closed loop, FD PSNR and ID error on held-out windows."""
    model, modes, found = Cosmos3Model(checkpoint), checkpoint.contract.model.modes, {}
    windows = held_out_windows(demos, checkpoint.contract)
    seeds, seen = list(range(len(windows))), [w.seen for w in windows]
    sent, videos = [w.sent for w in windows], [w.video for w in windows]
    if "policy" in modes:
        policy = Cosmos3Policy(model)
        found["coverage"] = float(np.mean(drive(policy, episodes)))
        found["policy_error"] = error([c.values for c in policy.act(seen, seeds)], [w.wanted for w in windows])
    if "forward_dynamics" in modes:
        predictions = Cosmos3WorldModel(model).imagine(seen, sent, seeds)
        found["fd_psnr"] = psnr([p.frames for p in predictions], [v.frames for v in videos])
        latents = [p.latents for p in predictions if isinstance(p.latents, torch.Tensor)]
        found["fd_latents"] = future_error(torch.stack(latents), latents_of(model, videos))
    if "inverse_dynamics" in modes:
        labels = Cosmos3InverseModel(model).label(videos, seeds)
        found["id_error"] = error([c.values for c in labels], [c.values for c in sent])
    return found


def controls(start: Path, demos: Path, episodes: int) -> dict[str, float]:
    """The same measures of what knows nothing: standing still, the first picture repeated, the disc's own place as
    every command."""
    model, windows = Cosmos3Model(load_checkpoint(start)), held_out_windows(demos, contract(MODES))
    truth = [w.video for w in windows]
    still = [replace(video, frames=np.repeat(video.frames[:1], len(video.frames), 0)) for video in truth]
    here = [np.repeat(w.seen.state["agent_position"][None], CHUNK, 0) for w in windows]
    return {
        "coverage": float(np.mean(drive(None, episodes))),
        "policy_error": error(here, [w.wanted for w in windows]),
        "fd_latents": future_error(latents_of(model, still), latents_of(model, truth)),
        "fd_psnr": psnr([video.frames for video in still], [video.frames for video in truth]),
        "id_error": error(here, [w.sent.values for w in windows]),
    }


def ceiling(start: Path, demos: Path) -> dict[str, float]:
    """What the autoencoder leaves of the true videos. It was trained on single pictures and shows no motion, so PSNR
    tells nothing of a model here; the error of latents does."""
    model, windows = Cosmos3Model(load_checkpoint(start)), held_out_windows(demos, contract(MODES))
    true = latents_of(model, [w.video for w in windows])
    shown = [model.prediction(part, w.sent, "", 0.0).frames for part, w in zip(true, windows, strict=True)]
    return {"fd_latents": 0.0, "fd_psnr": psnr(shown, [w.video.frames for w in windows])}


def latents_of(model: Cosmos3Model, videos: Sequence[Clip]) -> torch.Tensor:
    """(B, C, L, h, w) standardised latents."""
    return model.clip_latents([video.frames for video in videos])


def future_error(predicted: torch.Tensor, true: torch.Tensor) -> float:
    """Mean squared error of standardised latents (B, C, L, h, w) after the first."""
    return float((predicted[:, :, 1:].float() - true[:, :, 1:].float()).square().mean())


def drive(policy: Cosmos3Policy | None, episodes: int) -> list[float]:
    """The largest coverage of each episode from the official initial states 0, 1, ...; None stands still."""
    envs = [PushTEnv(step_budget=STEP_BUDGET) for _ in range(episodes)]
    try:
        seen = [env.reset(options={"init_state": i})[0] for i, env in enumerate(envs)]
        best, open_ = [env.coverage() for env in envs], list(range(episodes))
        while open_:
            chunks = _decided(policy, [seen[i] for i in open_], [1000 * i + envs[i].control_steps for i in open_])
            for i, chunk in zip(list(open_), chunks, strict=True):
                for action in chunk[:EXECUTE]:
                    seen[i], _, terminated, truncated, info = envs[i].step(action)
                    best[i] = max(best[i], info["coverage"])
                    if terminated or truncated:
                        open_.remove(i)
                        break
        return best
    finally:
        for env in envs:
            env.close()


def _decided(policy: Cosmos3Policy | None, seen: Sequence[Observation], seeds: Sequence[int]) -> list[NDArray]:
    if policy is None:
        return [np.repeat(o.state["agent_position"][None], EXECUTE, 0) for o in seen]
    return [chunk.values for chunk in policy.act(seen, seeds)]


@dataclass(frozen=True)
class Window:
    """What was seen, what the demonstrator wanted, (CHUNK, 2) px, what was sent, which its pictures follow, and these.
    The two differ by the disturbance of the demonstrations."""

    seen: Observation
    wanted: NDArray[np.float64]
    sent: ActionChunk
    video: Clip


def held_out_windows(demos: Path, contract: Contract) -> list[Window]:
    """At places spread over the held-out episodes."""
    source = StoredEpisodes(demos, contract)
    places = [(e, row) for e in range(0, len(source), HELD_OUT_EVERY) for row in _whole_windows(source[e])]
    chosen = np.linspace(0, len(places) - 1, min(WINDOWS, len(places))).round().astype(int)
    episodes = {e: source[e] for e in dict.fromkeys(places[i][0] for i in chosen)}
    return [_window(episodes[places[i][0]], places[i][1], contract) for i in chosen]


def _whole_windows(episode: Episode) -> range:
    return range(max(0, len(episode) - CHUNK))


def _window(episode: Episode, row: int, contract: Contract) -> Window:
    rate, name = contract.robot.rate_hz, PUSHT.cameras[0].name
    state = {"agent_position": np.asarray(episode.state[row], np.float64)}
    pictures = [{name: episode.images[name][row + GAP * k]} for k in range(CHUNK // GAP + 1)]
    frames = np.stack([compose_canvas(contract, each) for each in pictures])
    observation = Observation(pictures[0], state, episode.instruction, 0.0)
    wanted, sent = (
        np.asarray(of[row, :CHUNK], np.float64) for of in (episode.actions, executed_commands(episode, STRIDE))
    )
    video = Clip(frames, episode.instruction, state)
    return Window(observation, wanted, ActionChunk(sent, rate, 0.0, "recorded"), video)


def psnr(predicted: Sequence[NDArray], true: Sequence[NDArray]) -> float:
    """Mean over videos of the peak signal-to-noise ratio of the frames after the first, dB."""
    errors = [np.mean((np.asarray(p[1:], float) - t[1:]) ** 2) for p, t in zip(predicted, true, strict=True)]
    return float(np.mean(10 * np.log10(255**2 / np.maximum(errors, 1e-6))))


def error(predicted: Sequence[NDArray], true: Sequence[NDArray]) -> float:
    """Mean distance of commands, px."""
    return float(np.mean([np.linalg.norm(p - t, axis=1).mean() for p, t in zip(predicted, true, strict=True)]))


def _measured(arm: tuple, start: Path, demos: Path, scale: float) -> dict[str, float]:
    run, modes, steps, seed = arm
    config = training(run, start, modes, steps, seed)
    exported = train_model(config, {"pusht": [StoredEpisodes(demos, config.streams[0].contract)]})
    return measure(load_checkpoint(exported), demos, _episodes(scale))


def _curve(
    run: Path, arm: str, seed: int, start: Path, demos: Path, points: Sequence[int], scale: float
) -> dict[str, float]:
    """Held-out action error at each of ``points`` as ``error@STEPS``, closed-loop coverage at the last. The rate falls
    to nothing within each, so every point is a run of its own."""
    found = {}
    for steps in points:
        config = training(Path(f"{run}-{steps}"), start, ("policy",), steps, seed)
        config = replace(config, fresh=arm == "fresh")
        exported = train_model(config, {"pusht": [StoredEpisodes(demos, config.streams[0].contract)]})
        last = json.loads((config.out / "log.jsonl").read_text().splitlines()[-1])
        found[f"error@{steps}"] = last["policy_agent_position_mae"]
        if steps == points[-1]:
            policy = Cosmos3Policy(load_checkpoint(exported))
            found[f"coverage@{steps}"] = float(np.mean(drive(policy, _episodes(scale))))
    return found


def _once(run: Path, work: Any) -> dict[str, float]:
    """What ``work`` finds, kept in ``run``: it is done once."""
    file = run / "result.json"
    if not file.is_file():
        found = work()
        run.mkdir(parents=True, exist_ok=True)
        write_atomic(file, lambda temporary: temporary.write_text(json.dumps(found)))
    return json.loads(file.read_text())


def _require_same(out: Path, scale: float) -> None:
    """Results of other settings are not mixed."""
    file = out / "settings.json"
    settings = {"scale": scale, "demos": DEMOS, "tokenizer_steps": TOKENIZER_STEPS, "steps": STEPS, "batch": BATCH,
                "episodes": EPISODES, "windows": WINDOWS, "recipe": plain(RECIPE)}  # fmt: skip
    if not file.is_file():
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(file, lambda temporary: temporary.write_text(json.dumps(settings, indent=2) + "\n"))
    kept = json.loads(file.read_text())
    differ = [f"{name} {kept.get(name)}" for name, value in settings.items() if kept.get(name) != value]
    if differ:
        raise InputError(f"trends: {out} has runs with other settings ({', '.join(differ)}); choose another folder")


def _episodes(scale: float) -> int:
    return max(2, round(EPISODES * min(scale, 5)))


def _require_plain(until: str | None, corrections: bool, scale: float) -> None:
    if until is not None or corrections:
        raise InputError("trends: there are no parts to stop after and no corrections; leave until and corrections out")
    check_run((), None, scale)


def _rows(table: Mapping[str, Mapping[str, tuple[float, float, float] | None]]) -> list[list[str]]:
    names = list(dict.fromkeys(name for row in table.values() for name in row))
    rows = [["", *(MEASURES.get(name, name) for name in names)]]
    for arm, values in table.items():
        rows.append([arm, *(_cell(values.get(name)) for name in names)])
    return rows


def _cell(value: tuple[float, float, float] | None) -> str:
    if value is None:
        return ""
    mean, low, high = value
    return f"{mean:.3g}" if low == high else f"{mean:.3g} ({low:.3g} to {high:.3g})"


def _write(stem: Path, report: Mapping[str, Any], rows: Sequence[Sequence[str]]) -> None:
    write_atomic(stem.with_suffix(".json"), lambda temporary: temporary.write_text(json.dumps(report, indent=2) + "\n"))
    lines = [" | ".join(row) for row in rows]
    lines.insert(1, " | ".join("---" for _ in rows[0]))
    text = "".join(f"| {line} |\n" for line in lines)
    write_atomic(stem.with_suffix(".md"), lambda temporary: temporary.write_text(text))
    Console().print(text, markup=False, soft_wrap=True)
