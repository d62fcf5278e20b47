"""A window as a model met it, and the models that are asked about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage

from cosmos_robot.contract import Contract
from cosmos_robot.envs.world_model import state_teller
from cosmos_robot.eval.world_model_metrics import LEAST_MOVED, Frames, moved, squared_error
from cosmos_robot.eval.world_model_windows import Rows, Window, as_chunk, frame_steps, unpredicted
from cosmos_robot.images import canvas_parts, video_size
from cosmos_robot.policies.base import InverseModel, JointPolicy, ValueModel, WorldModel
from cosmos_robot.policies.rollout import chunk_seed
from cosmos_robot.types import ActionChunk, Image, Observation, VideoPrediction


@dataclass(frozen=True, eq=False)
class Models:
    """What is evaluated. world: the model. untrained: the same with weights that know nothing. inverse, joint, value:
    of the same contract, where there are any."""

    world: WorldModel
    untrained: WorldModel | None = None
    inverse: InverseModel | None = None
    joint: JointPolicy | None = None
    value: ValueModel | None = None

    @property
    def contract(self) -> Contract:
        return self.world.contract


@dataclass(frozen=True, eq=False)
class Case:
    """A window with its noise seed, its truth (F, H, W, 3) and what the model imagined of it, chunk after chunk."""

    contract: Contract
    window: Window
    seed: int
    seen: Observation
    truth: Frames
    chain: tuple[VideoPrediction, ...]

    @property
    def first_seed(self) -> int:
        """Of the first chunk's noise."""
        return chunk_seed(self.seed, 0)

    @property
    def rows(self) -> Rows:
        """(T, D): what was run in the first chunk."""
        return self.window.commands(self.contract).values[: self.contract.model.chunk]

    def chunk(self, rows: Rows) -> ActionChunk:
        """Rows (T, D) as commands from the window's beginning."""
        return as_chunk(self.contract, rows, self.window.start)

    @cached_property
    def first_truth(self) -> Frames:
        """What happened during the first chunk."""
        return self.truth[: len(frame_steps(self.contract))]

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """Where something moved during the first chunk, as ``moved``."""
        return moved(self.first_truth)


def roll(world: WorldModel, window: Window, seed: int, carry: str) -> list[VideoPrediction]:
    """The window's own commands, chunk after chunk. Where the model tells the state after a chunk, the next is given
    that; a model that only reads states, for itself or for its commands, is given the recorded ones."""
    contract = world.contract
    chunk, told, known = contract.model.chunk, state_teller(world), window.states(contract)
    rows = window.commands(contract).values
    pieces = [as_chunk(contract, rows[at : at + chunk], window.start + at) for at in range(0, len(rows), chunk)]
    done = world.imagine([window.observation(contract)], pieces[:1], [chunk_seed(seed, 0)])
    for k, piece in enumerate(pieces[1:], start=1):
        states = told(done[-1:]) if told else [known[k]] if contract.reads_state else None
        done += world.extend(done[-1:], [piece], [chunk_seed(seed, k)], states, carry)
    return done


def joined(chain: Sequence[VideoPrediction]) -> Frames:
    """(F, H, W, 3): a rollout as one video, junctions once."""
    return np.concatenate([chain[0].frames, *(p.frames[1:] for p in chain[1:])])


def places(contract: Contract) -> list[str]:
    """A name for each place of which a picture is predicted: its camera, numbered where it stands several times. One
    for the whole where the canvas cannot be cut."""
    canvas = contract.model.canvas
    if canvas.tier or canvas.composed:
        return [] if unpredicted(contract) else ["canvas"]
    names = [canvas.placements[i].camera for i in _predicted_places(contract)]
    return [f"{n} {names[: i + 1].count(n)}" if names.count(n) > 1 else n for i, n in enumerate(names)]


def parts(contract: Contract, frame: Image) -> list[Image]:
    """A predicted ``frame`` (H, W, 3) cut into its ``places``."""
    canvas = contract.model.canvas
    if canvas.tier or canvas.composed:
        return [frame]
    cut = canvas_parts(canvas, frame)
    return [cut[i] for i in _predicted_places(contract)]


def _predicted_places(contract: Contract) -> list[int]:
    """Numbers of the placements that a prediction shows, at least in part."""
    (height, width), missing = video_size(contract.model), unpredicted(contract)
    return [
        i
        for i, place in enumerate(contract.model.canvas.placements)
        if place.camera not in missing and place.to.top < height and place.to.left < width
    ]


def moving_error(predicted: Frames, truth: Frames, mask: NDArray[np.bool_]) -> float:
    """Mean squared error where something moved, of all frames after the first; NaN where next to nothing did."""
    return squared_error(predicted[1:], truth[1:], mask) if mask.sum() >= LEAST_MOVED else float("nan")


def repeated(frames: Frames) -> Frames:
    """The first of ``frames``, as often as there are frames: what a model that knows no motion says."""
    return np.repeat(frames[:1], len(frames), axis=0)


def sized(picture: Image, like: Image) -> Image:
    """``picture`` in the size of another."""
    if picture.shape == like.shape:
        return picture
    return np.asarray(PILImage.fromarray(picture).resize((like.shape[1], like.shape[0]), PILImage.Resampling.BOX))
