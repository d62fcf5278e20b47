"""What a window tells beyond its pictures: whether the model is told the commands and cameras it was trained on, and
whether its video, its commands and its values fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from cosmos_robot.contract import Contract
from cosmos_robot.envs.world_model import state_teller
from cosmos_robot.eval.world_model_actions import SCALES, scaled
from cosmos_robot.eval.world_model_case import Case, Models, moving_error, parts, places, repeated, sized
from cosmos_robot.eval.world_model_metrics import Frames, moved, psnr
from cosmos_robot.eval.world_model_trajectories import state_poses, trajectory_error
from cosmos_robot.eval.world_model_windows import State, canvases, frame_steps
from cosmos_robot.policies.base import InverseModel, JointPolicy, WorldModel
from cosmos_robot.types import Clip, Image, Observation

AS_THEY_ARE = "as they are"


def probes(world: WorldModel, case: Case) -> dict[str, Any]:
    """Whether the model would do better if it were told other things. ``scales``: error where motions are multiplied by
    a factor. ``exchanged``: see ``_exchanged``."""
    robot = case.contract.robot
    tried = [case.chunk(scaled(robot, case.rows, factor)) for factor in SCALES]
    found = world.imagine([case.seen] * len(tried), tried, [case.first_seed] * len(tried))
    errors = [moving_error(video.frames, case.first_truth, case.mask) for video in found]
    return {
        "scales": {f"{factor:g}": error for factor, error in zip(SCALES, errors, strict=True)},
        "exchanged": _exchanged(world, case),
    }


def consistency(models: Models, case: Case) -> dict[str, Any]:
    """What other models make of the prediction, and what the simulator makes of the model's own commands. A value that
    is no number is None and ``value_not_finite``; ``value_steps_left``: control steps from the end of the first chunk,
    which the value is of, to the end of the episode."""
    record: dict[str, Any] = {}
    told, states = state_teller(models.world), case.window.states(case.contract)
    if told and len(states) == len(case.chain) + 1:
        record["path"] = _path(case.contract, states, told(list(case.chain)))
    if models.inverse is not None:
        record["inverse"] = _recovered(models.inverse, case)
    if models.value is not None:
        first = case.chain[0]
        futures = None if models.value.reads == "q_value" else [first]
        value = float(models.value.score([case.seen], [first.actions], futures, [case.seed])[0])
        record["value"] = value
        record["value_not_finite"] = not np.isfinite(value)
        record["value_steps_left"] = len(case.window.run) - case.window.start - len(first.actions)
    if models.joint is not None and case.window.run.replay is not None:
        record["joint"] = _joint(models.joint, case)
    return record


def _exchanged(world: WorldModel, case: Case) -> dict[str, float]:
    """Error of the prediction over that of the last frame, for the cameras as they are and for each other order of
    their pictures, truth and baseline in the same order."""
    contract, seen = case.contract, case.seen
    cameras = sorted({place.camera for place in contract.model.canvas.placements})
    pictures = [case.window.run.seen.pictures[case.window.start + step] for step in frame_steps(contract)]
    chunk, out = case.chunk(case.rows), {}
    for order in permutations(cameras):
        changed = [(name, other) for name, other in zip(cameras, order, strict=True) if name != other]
        if len(cameras) > 3 and len(changed) > 2:
            continue  # of many cameras, pairs are enough to name the fault
        turned = [_renamed(shown, cameras, order) for shown in pictures]
        real = canvases(contract, turned)
        start = Observation(turned[0], seen.state, seen.instruction, seen.time, seen.history)
        video = world.imagine([start], [chunk], [case.first_seed])[0].frames
        mask = moved(real)
        base = moving_error(repeated(real), real, mask)
        name = ", ".join(f"{other} as {name}" for name, other in changed) or AS_THEY_ARE
        out[name] = moving_error(video, real, mask) / base if base else float("nan")
    return out


def _renamed(shown: Mapping[str, Image], names: Sequence[str], order: Sequence[str]) -> dict[str, Image]:
    return {name: sized(shown[other], shown[name]) for name, other in zip(names, order, strict=True)}


def _path(contract: Contract, states: Sequence[State], told: Sequence[State]) -> dict[str, Any] | None:
    """The predicted poses of a rollout against the true ones, and a robot that stays where it was; ``not_finite`` alone
    where a predicted pose is no number. None for a robot without poses."""
    truth = state_poses(contract.robot, list(states))
    if truth is not None and not all(np.isfinite(value).all() for state in told for value in state.values()):
        return {"not_finite": True}
    found = state_poses(contract.robot, [states[0], *told])
    if truth is None or found is None:
        return None
    still = np.repeat(truth[:1], len(truth), axis=0)
    model, last = trajectory_error(found, truth), trajectory_error(still, truth)
    return {
        name: {"rre_degrees": float(np.degrees(e.rre)), "rte": e.rte, "ate": e.ate, "poses": e.poses}
        for name, e in (("model", model), ("last", last))
    }


def _recovered(inverse: InverseModel, case: Case) -> dict[str, Any]:
    """The commands that an inverse model reads off the predicted video, off what happened and off a still picture, each
    as the root mean square error to the commands that were run, and their means."""
    real, seen, predicted = case.first_truth, case.seen, case.chain[0]
    videos = {"model": predicted.frames, "truth": real, "last": repeated(real)}
    clips = [Clip(f, seen.instruction, seen.state, seen.time, seen.history) for f in videos.values()]
    out: dict[str, Any] = {"true_mean": case.rows.mean(axis=0)}
    for name, label in zip(videos, inverse.label(clips, [case.seed] * len(clips)), strict=True):
        rmse = float(np.sqrt(((label.values - case.rows) ** 2).mean()))
        out[name] = {"rmse": rmse, "mean": label.values.mean(axis=0)}
    return out


def _joint(joint: JointPolicy, case: Case) -> dict[str, Any]:
    """The video that a joint policy imagines with its own commands, against the simulator running them (Cosmos 3
    report, E.5), against the last frame, and against what the recorded commands led to."""
    contract, replay = case.contract, case.window.run.replay
    assert replay is not None
    chunk, video = joint.foresee([case.seen], [case.seed])[0]
    outcome = replay(case.window.start, chunk.values)
    shown = canvases(contract, [outcome.pictures[step] for step in frame_steps(contract)])
    frames, still = video.frames, repeated(shown)
    cameras = {
        camera: {
            "own": psnr(_place(contract, frames, k), _place(contract, shown, k)),
            "last": psnr(_place(contract, still, k), _place(contract, shown, k)),
        }
        for k, camera in enumerate(places(contract))
    }
    mask = moved(shown) | moved(case.first_truth)
    own, recorded = moving_error(frames, shown, mask), moving_error(frames, case.first_truth, mask)
    return {"cameras": cameras, "moving": {"own": own, "recorded": recorded}}


def _place(contract: Contract, frames: Frames, place: int) -> Frames:
    """One place of all frames after the first."""
    return np.stack([parts(contract, frame)[place] for frame in frames[1:]])
