"""One window of an episode through a world model: how near its pictures are, and whether they follow the commands.

Everything here becomes one JSON record per window; ``world_model_verdicts`` reads many of them. Errors are mean squared
levels of 255 over pixels that moved, so that the still background does not drown the hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.codec import Codec, state_vector
from cosmos_robot.contract import Contract
from cosmos_robot.envs.world_model import state_teller
from cosmos_robot.errors import InputError
from cosmos_robot.eval.world_model_actions import falsified
from cosmos_robot.eval.world_model_case import (
    Case,
    Models,
    joined,
    moving_error,
    parts,
    places,
    repeated,
    roll,
    sized,
)
from cosmos_robot.eval.world_model_metrics import LEAST_MOVED, Frames, frame_scores, motion_ratio, moved, plain, psnr
from cosmos_robot.eval.world_model_probes import consistency, probes
from cosmos_robot.eval.world_model_seeds import seed_of
from cosmos_robot.eval.world_model_windows import Rows, State, Window, canvases, frame_steps, predicted_part
from cosmos_robot.types import VideoPrediction


@dataclass(frozen=True)
class MeasureSettings:
    """chunks: of a rollout. carry: see ``WorldModel.extend``. seed: from which, with its
    episode's name and its start, the noise and the shuffle of every window follow.
    outcomes: whether the falsified commands are run in the simulator, too, where there is one."""

    chunks: int = 1
    carry: str = "pixels"
    seed: int = 0
    outcomes: bool = False


@dataclass(frozen=True, eq=False)
class Pictured:
    """What a film of a window shows: (F, H, W, 3) each."""

    truth: Frames
    predicted: Frames
    last: Frames


def measure(models: Models, window: Window, settings: MeasureSettings, probe: bool) -> tuple[dict[str, Any], Pictured]:
    """The record of one window and its pictures. probe: whether wrong scales and exchanged cameras are tried, too.

    Raises InputError where the model's pictures are not on its contract's canvas.
    """
    contract, truth = models.contract, window.truth(models.contract)
    seed = seed_of(settings.seed, window.run.name, window.start)
    chain = roll(models.world, window, seed, settings.carry)
    predicted = joined(chain)
    if predicted.shape != truth.shape:
        raise InputError(
            f"the world model's video is {predicted.shape}, the truth on the canvas of {contract.model.name!r} "
            f"{truth.shape}; its contract's canvas or frames are not those of its checkpoint"
        )
    case = Case(contract, window, seed, window.observation(contract), truth, tuple(chain))
    shown = {"model": predicted, "last": repeated(truth), "mean": _mean_frames(window, contract, len(truth))}
    if models.untrained is not None:
        shown["untrained"] = joined(roll(models.untrained, window, seed, settings.carry))
    run = window.run
    record: dict[str, Any] = {
        "key": window.key,
        "run": run.name,
        "start": window.start,
        "steps": len(run),
        "instruction": run.instruction,
        "success": run.success,
        "seed": seed,
        "frames": _horizons(contract, truth, shown),
        "cameras": _confusion(contract, predicted, truth),
    }
    record |= _following(models, case, settings)
    record |= probes(models.world, case) if probe else {}
    record |= consistency(models, case)
    return plain(record), Pictured(truth, predicted, shown["last"])


def _mean_frames(window: Window, contract: Contract, count: int) -> Frames:
    """The mean of all pictures of the episode, ``count`` times: what knows the scene and no moment."""
    pictures = list(window.run.seen.pictures.values())
    mean = np.zeros((), np.float64)
    for seen in pictures:
        mean = mean + canvases(contract, [seen])[0] / len(pictures)
    return np.repeat(np.round(mean).astype(np.uint8)[None], count, axis=0)


def _horizons(contract: Contract, truth: Frames, shown: Mapping[str, Frames]) -> list[dict[str, Any]]:
    """For each frame after the first and each place of the canvas, the scores of everything that is ``shown``."""
    steps, mask, found = frame_steps(contract, 10**3), moved(truth), []
    names = places(contract)
    for i in range(1, len(truth)):
        cut = {name: parts(contract, frames[i]) for name, frames in shown.items()}
        real, moving = parts(contract, truth[i]), _mask_parts(contract, mask[i - 1])
        for k, camera in enumerate(names):
            scores = {name: frame_scores(pieces[k], real[k], moving[k]) for name, pieces in cut.items()}
            found.append({"step": steps[i], "camera": camera, "moved_pixels": int(moving[k].sum()), **scores})
    return found


def _mask_parts(contract: Contract, mask: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    return [part[..., 0] for part in parts(contract, np.repeat(mask[..., None], 3, axis=-1))]  # type: ignore[arg-type]


def _confusion(contract: Contract, predicted: Frames, truth: Frames) -> dict[str, Any]:
    """``nearest``: for each place the place whose last true picture its prediction is nearest to. ``first``: PSNR of
    the first predicted picture, which is what the model was given."""
    names = places(contract)
    shown, real = parts(contract, predicted[-1]), parts(contract, truth[-1])
    nearest = {}
    for i, name in enumerate(names):
        likeness = [psnr(shown[i], sized(other, shown[i])) for other in real]
        nearest[name] = names[int(np.argmax(likeness))]
    return {"nearest": nearest, "first": psnr(predicted_part(contract, predicted[0]), truth[0])}


def _following(models: Models, case: Case, settings: MeasureSettings) -> dict[str, Any]:
    """The first chunk under commands that were not run, with the same noise."""
    contract, world, window = case.contract, models.world, case.window
    kinds = falsified(contract.robot, window.run.commands, window.start, contract.model.chunk, case.seed)
    tried = {kind: case.chunk(rows) for kind, rows in kinds.items() if rows is not None}
    found = world.imagine([case.seen] * len(tried), list(tried.values()), [case.first_seed] * len(tried))
    real, mask, true = case.first_truth, case.mask, case.chain[0]
    videos = {"true": true, **dict(zip(tried, found, strict=True))}
    errors = {kind: moving_error(video.frames, real, mask) for kind, video in videos.items()}
    record: dict[str, Any] = {
        "moved_pixels": int(mask.sum()),
        "error": errors | {"last": moving_error(repeated(real), real, mask)},
        "effect": {kind: moving_error(video.frames, true.frames, mask) for kind, video in videos.items()},
        "motion_ratio": motion_ratio(np.concatenate([world.unmoved([true])[0][None], true.frames[1:]]), real, mask),
    }
    told, states = state_teller(world), window.states(contract)
    if told and len(states) > 1:
        record["state"] = _state_errors(contract, states, dict(zip(videos, told(list(videos.values())), strict=True)))
    if settings.outcomes and window.run.replay is not None:
        record["outcomes"] = _outcomes(case, {kind: chunk.values for kind, chunk in tried.items()}, videos)
    return record


def _state_errors(contract: Contract, states: Sequence[State], told: Mapping[str, State]) -> dict[str, Any]:
    """How far each predicted state is from the one that came about: in model rows (root mean square), so that metres
    and radians weigh alike; for the true commands also per field, in the robot's units. ``not_finite``: the kinds under
    which the state is no number, whose error then is none either."""
    codec, robot = Codec(contract), contract.robot

    def row(state: State) -> NDArray[np.float64]:
        return codec.encode_state(state_vector(robot, state)[None])[0]

    before, after = states[0], states[1]
    errors = {kind: float(np.sqrt(((row(state) - row(after)) ** 2).mean())) for kind, state in told.items()}
    still = float(np.sqrt(((row(before) - row(after)) ** 2).mean()))
    fields = {
        f.name: {
            "model": float(np.linalg.norm(told["true"][f.name] - after[f.name])),
            "last": float(np.linalg.norm(before[f.name] - after[f.name])),
            "unit": f.unit,
        }
        for f in robot.state
    }
    broken = [kind for kind, error in errors.items() if not np.isfinite(error)]
    return {"error": {**errors, "last": still}, "fields": fields, "not_finite": broken}


def _outcomes(case: Case, tried: Mapping[str, Rows], videos: Mapping[str, VideoPrediction]) -> dict[str, Any]:
    """What the simulator makes of each kind of commands from the same moment.

    ``nearest``: for each kind whose outcome no other has, the kind whose outcome its prediction is nearest to, None for
    a tie. ``left_out``: the other kinds, with the reason. ``same``: the kinds that led where the true commands did, in
    the pixels and in the state that errors are taken over. ``repeats``: how well running the true commands again
    repeats what was seen, dB.
    """
    replay = case.window.run.replay
    assert replay is not None
    seen = {kind: replay(case.window.start, rows) for kind, rows in {"true": case.rows, **tried}.items()}
    steps = frame_steps(case.contract)
    shown = {kind: canvases(case.contract, [found.pictures[step] for step in steps]) for kind, found in seen.items()}
    mask = np.any([moved(frames) for frames in shown.values()], axis=0)
    alike = {
        kind: [o for o, other in shown.items() if o != kind and np.array_equal(frames[1:][mask], other[1:][mask])]
        for kind, frames in shown.items()
    }
    nearest, left_out = {}, {}
    for kind, video in videos.items():
        if mask.sum() < LEAST_MOVED:
            left_out[kind] = "next to nothing moved under any commands"
        elif alike[kind]:
            left_out[kind] = f"the same outcome as {' and '.join(alike[kind])}"
        else:
            nearest[kind] = _nearest(video, shown, mask)
    return {
        "nearest": nearest,
        "left_out": left_out,
        "same": _same_as_true(case, shown, {kind: found.states.get(steps[-1]) for kind, found in seen.items()}),
        "repeats": psnr(shown["true"], case.first_truth),
    }


def _nearest(video: VideoPrediction, shown: Mapping[str, Frames], mask: NDArray[np.bool_]) -> str | None:
    """The kind whose outcome ``video`` is nearest to, None for a tie."""
    errors = {kind: moving_error(video.frames, frames, mask) for kind, frames in shown.items()}
    least = min(errors.values())
    winners = [kind for kind, error in errors.items() if error == least]
    return winners[0] if len(winners) == 1 else None


def _same_as_true(case: Case, shown: Mapping[str, Frames], ends: Mapping[str, State | None]) -> dict[str, list[str]]:
    """The falsified kinds whose outcome is that of the true commands: ``pictures`` in every pixel of the window's mask,
    ``state`` in every number at the end."""
    own, end, kinds = shown["true"][1:], ends["true"], [kind for kind in shown if kind != "true"]

    def same_state(other: State | None) -> bool:
        if end is None or other is None:
            return False
        return all(np.allclose(end[name], other[name], atol=1e-9) for name in end)

    return {
        "pictures": [kind for kind in kinds if np.array_equal(shown[kind][1:][case.mask], own[case.mask])],
        "state": [kind for kind in kinds if same_state(ends[kind])],
    }
