"""What every world model and every inverse model is checked for, in the manner of ``conformance``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cosmos_robot.contract import Contract
from cosmos_robot.errors import InputError
from cosmos_robot.policies.base import InverseModel, WorldModel
from cosmos_robot.policies.conformance import BATCH_TOLERANCE, INSTRUCTIONS, command_range, some_observation
from cosmos_robot.types import ActionChunk, Clip, Observation, VideoPrediction

PICTURE_TOLERANCE = 2
"""Levels of 255 by which a frame may differ alone or in a batch."""


def run_world(make: Callable[[], WorldModel]) -> list[str]:
    """Make a world model and run every check on it; returns the names of the checks."""
    world = make()
    for check in WORLD_CHECKS.values():
        check(world)
    return list(WORLD_CHECKS)


def run_inverse(make: Callable[[], InverseModel]) -> list[str]:
    """Make an inverse model and run every check on it; returns the names of the checks."""
    inverse = make()
    for check in INVERSE_CHECKS.values():
        check(inverse)
    return list(INVERSE_CHECKS)


def some_chunk(contract: Contract, seed: int = 0, chunks: int = 1) -> ActionChunk:
    """Random commands within the robot's range."""
    robot, rng = contract.robot, np.random.default_rng(seed)
    low, high = (-1.0 if robot.action_low is None else robot.action_low), robot.action_high or 1.0
    values = rng.uniform(low, high, (chunks * contract.model.chunk, robot.action_width))
    return ActionChunk(values, robot.rate_hz, source="conformance")


def check_videos_match_contract(world: WorldModel) -> None:
    """One video per chunk, with the contract's frames and rate, that knows what it answers and from when."""
    contract = world.contract
    frames = contract.model.chunk // contract.model.actions_per_frame + 1
    for video, observation, chunk in zip(_imagined(world), _observations(contract), _chunks(contract), strict=True):
        assert len(video) == frames, f"{len(video)} frames, the chunk has {frames}"
        assert video.rate_hz == contract.robot.rate_hz / contract.model.actions_per_frame, "frames at another rate"
        assert video.start_time == observation.time, "video does not start at its observation's time"
        assert video.instruction == observation.instruction and video.source, "video without instruction or source"
        assert np.array_equal(video.actions.values, chunk.values), "video does not say which actions it answers"
        assert video.frames.shape == video.video.shape and video.frames.dtype == np.uint8


def check_same_seed_same_video(world: WorldModel) -> None:
    """The same observation, actions and seed give the same video, whatever was asked in between."""
    first, between, again = (_imagined(world, seed)[0].frames for seed in (5, 6, 5))
    assert np.array_equal(first, again), "the same seed gave another video"


def check_video_alone_equals_batch(world: WorldModel) -> None:
    """A video does not depend on its neighbours in the batch."""
    together = _imagined(world)
    for i, (observation, chunk) in enumerate(zip(_observations(world.contract), _chunks(world.contract), strict=True)):
        alone = world.imagine([observation], [chunk], [7 + i])[0]
        _near(alone.frames, together[i].frames, f"video {i} differs in a batch")


def check_world_reads_only_its_cameras(world: WorldModel) -> None:
    """Of all pictures exactly those in ``cameras`` are read."""
    drawn: list[str] = []
    world.imagine([some_observation(world.contract, drawn=drawn)], [some_chunk(world.contract)], [0])
    assert set(drawn) == set(world.cameras), f"cameras says {world.cameras}, but {sorted(set(drawn))} were read"


def check_a_video_goes_on(world: WorldModel) -> None:
    """An extension starts when its video ends, by default with its last picture, and does not change it."""
    contract = world.contract
    videos, seeds = _imagined(world), [1, 2, 3]
    before = [v.frames.copy() for v in videos]
    states = [o.state for o in _observations(contract)] if contract.reads_state else None
    for old, kept, new in zip(videos, before, world.extend(videos, _chunks(contract), seeds, states), strict=True):
        assert abs(new.start_time - old.end_time) < 1e-9, f"extension starts at {new.start_time}, not {old.end_time}"
        assert new.instruction == old.instruction and len(new) == len(old)
        assert np.array_equal(old.frames, kept), "extending changed the video"


def check_world_refusals(world: WorldModel) -> None:
    """Other numbers of seeds or chunks, and chunks of another length, are refused; nothing in, nothing out."""
    observation, chunk = some_observation(world.contract), some_chunk(world.contract)
    longer = ActionChunk(np.vstack([chunk.values, chunk.values[:1]]), chunk.rate_hz)
    slower = ActionChunk(chunk.values, chunk.rate_hz / 2)
    for chunks, seeds in (([chunk], [1, 2]), ([chunk, chunk], [1]), ([longer], [1]), ([slower], [1])):
        _refused(lambda c=chunks, s=seeds: world.imagine([observation], c, s), f"{len(chunks)} chunks, seeds {seeds}")
    videos = world.imagine([observation], [chunk], [1])
    states = [observation.state] if world.contract.reads_state else None
    _refused(lambda: world.extend(videos, [chunk], [1], states, carry="nothing"), "carry 'nothing'")
    assert world.imagine([], [], []) == [] and world.extend([], [], []) == []


WORLD_CHECKS: dict[str, Callable[[WorldModel], None]] = {
    "videos_match_contract": check_videos_match_contract,
    "same_seed_same_video": check_same_seed_same_video,
    "video_alone_equals_batch": check_video_alone_equals_batch,
    "world_reads_only_its_cameras": check_world_reads_only_its_cameras,
    "a_video_goes_on": check_a_video_goes_on,
    "world_refusals": check_world_refusals,
}


def check_labels_match_contract(inverse: InverseModel) -> None:
    """One chunk per clip, in the contract's length, width and rate, timed by its clip."""
    contract, clips = inverse.contract, _clips(inverse)
    for chunk, clip in zip(inverse.label(clips, [1, 2, 3]), clips, strict=True):
        shape = (contract.model.chunk, contract.robot.action_width)
        assert chunk.values.shape == shape, f"labels have shape {chunk.values.shape}, the contract says {shape}"
        assert chunk.rate_hz == contract.robot.rate_hz and chunk.start_time == clip.time and chunk.source


def check_same_seed_same_labels(inverse: InverseModel) -> None:
    """The same clip and seed give the same labels, whatever was asked in between."""
    first, _, again = (inverse.label(_clips(inverse)[:1], [seed])[0].values for seed in (5, 6, 5))
    assert np.array_equal(first, again), "the same seed gave other labels"


def check_labels_alone_equal_batch(inverse: InverseModel) -> None:
    """Labels do not depend on their neighbours in the batch."""
    clips = _clips(inverse)
    for i, together in enumerate(inverse.label(clips, [1, 2, 3])):
        alone = inverse.label([clips[i]], [1 + i])[0]
        apart = float(np.abs(alone.values - together.values).max())
        assert apart <= BATCH_TOLERANCE * command_range(inverse.contract), f"labels {i} differ by {apart} in a batch"


def check_inverse_refusals(inverse: InverseModel) -> None:
    """Clips of another length and other numbers of seeds are refused; nothing in, nothing out."""
    (clip, *_) = _clips(inverse)
    shorter = Clip(clip.frames[:-1], clip.instruction, clip.state)
    for clips, seeds in (([shorter], [1]), ([clip], [1, 2])):
        _refused(lambda c=clips, s=seeds: inverse.label(c, s), f"{len(clips[0].frames)} frames, seeds {seeds}")
    _refused(lambda: inverse.clip([some_observation(inverse.contract)] * (inverse.frames + 1)), "a longer clip")
    assert inverse.label([], []) == []


INVERSE_CHECKS: dict[str, Callable[[InverseModel], None]] = {
    "labels_match_contract": check_labels_match_contract,
    "same_seed_same_labels": check_same_seed_same_labels,
    "labels_alone_equal_batch": check_labels_alone_equal_batch,
    "inverse_refusals": check_inverse_refusals,
}


def _observations(contract: Contract) -> list[Observation]:
    return [some_observation(contract, 10 + i, text) for i, text in enumerate(INSTRUCTIONS)]


def _chunks(contract: Contract) -> list[ActionChunk]:
    return [some_chunk(contract, 20 + i) for i in range(len(INSTRUCTIONS))]


def _imagined(world: WorldModel, first_seed: int = 7) -> list[VideoPrediction]:
    seeds = [first_seed + i for i in range(len(INSTRUCTIONS))]
    return world.imagine(_observations(world.contract), _chunks(world.contract), seeds)


def _clips(inverse: InverseModel) -> Sequence[Clip]:
    moments = [some_observation(inverse.contract, 30 + i) for i in range(inverse.frames + 2)]
    return [inverse.clip(moments[i : i + inverse.frames]) for i in range(3)]


def _near(found: np.ndarray, expected: np.ndarray, message: str) -> None:
    apart = int(np.abs(found.astype(int) - expected.astype(int)).max())
    assert apart <= PICTURE_TOLERANCE, f"{message} by {apart} levels"


def _refused(call: Callable[[], object], what: str) -> None:
    try:
        call()
    except InputError:
        return
    raise AssertionError(f"{what} were accepted")
