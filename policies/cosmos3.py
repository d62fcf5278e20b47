"""A Cosmos 3 checkpoint as a policy, a world model and an inverse model, over one copy of its weights.

    model = Cosmos3Model(load_checkpoint("..."))
    policy, world, inverse = Cosmos3Policy(model), Cosmos3WorldModel(model), Cosmos3InverseModel(model)

Which of the three a checkpoint can be, its contract's ``modes`` say; another is refused when it is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from cosmos_robot.backbone.cosmos3.layout import PlanMode, contract_plan
from cosmos_robot.backbone.cosmos3.load import Checkpoint, load_checkpoint
from cosmos_robot.contract import Contract
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.latent_frames.layout import ValueMode
from cosmos_robot.policies.base import InverseModel, JointPolicy, Policy, WorldModel, begun_with
from cosmos_robot.policies.cosmos3_frames import cosmos3_frame_model
from cosmos_robot.policies.cosmos3_model import Cosmos3Model
from cosmos_robot.policies.latent_frames import LatentFramePolicy, LatentFrameValueModel, LatentFrameWorldModel
from cosmos_robot.types import ActionChunk, Clip, Observation, VideoPrediction


class Cosmos3Policy(Policy):
    """Actions denoised from one clean picture, the state as one clean row, and the instruction (mode ``policy``)."""

    mode: PlanMode = "policy"

    def __init__(self, checkpoint: Checkpoint | Cosmos3Model):
        self.model = _model(checkpoint, self.mode)
        self.contract = self.model.contract

    @property
    def cameras(self) -> tuple[str, ...]:
        return self.model.cameras

    def canvas(self, observation: Observation) -> NDArray[np.uint8]:
        """The picture (H, W, 3) uint8 that the model is shown for ``observation``."""
        return self.model.canvas(observation)

    def _act(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[ActionChunk]:
        samples = self.model.run(self.mode, observations, self.model.first_latents(observations), seeds)
        return self.model.chunks(samples, observations, [o.time for o in observations])

    def _continue(
        self, observations: Sequence[Observation], seeds: Sequence[int], committed: Sequence[NDArray[np.float64]]
    ) -> list[ActionChunk]:
        latents = self.model.first_latents(observations)
        samples = self.model.run(self.mode, observations, latents, seeds, committed=committed)
        return begun_with(committed, self.model.chunks(samples, observations, [o.time for o in observations]))


class Cosmos3JointPolicy(JointPolicy, Cosmos3Policy):
    """Actions and the video of them, denoised together (mode ``wam``). The video is decoded only if somebody looks."""

    mode: PlanMode = "wam"

    def _foresee(
        self,
        observations: Sequence[Observation],
        seeds: Sequence[int],
        committed: Sequence[NDArray[np.float64]] | None,
    ) -> list[tuple[ActionChunk, VideoPrediction]]:
        latents = self.model.first_latents(observations)
        samples = self.model.run(self.mode, observations, latents, seeds, committed=committed)
        chunks = self.model.chunks(samples, observations, [o.time for o in observations])
        chunks = chunks if committed is None else begun_with(committed, chunks)
        return [
            (chunk, self.model.prediction(found.video, chunk, o.instruction, o.time))
            for found, chunk, o in zip(samples, chunks, observations, strict=True)
        ]


@dataclass(frozen=True)
class _Junction:
    """What the next chunk of a rollout reads besides the picture."""

    instruction: str
    history: NDArray[np.float64] | None
    state: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


class Cosmos3WorldModel(WorldModel):
    """Video denoised from one clean picture and clean action rows (mode ``forward_dynamics``)."""

    mode: PlanMode = "forward_dynamics"

    def __init__(self, checkpoint: Checkpoint | Cosmos3Model):
        self.model = _model(checkpoint, self.mode)
        self.contract = self.model.contract

    @property
    def cameras(self) -> tuple[str, ...]:
        return self.model.cameras

    def _imagine(
        self, observations: Sequence[Observation], actions: Sequence[ActionChunk], seeds: Sequence[int]
    ) -> list[VideoPrediction]:
        samples = self.model.run(self.mode, observations, self.model.first_latents(observations), seeds, actions)
        return [
            self.model.prediction(found.video, chunk, o.instruction, o.time)
            for found, chunk, o in zip(samples, actions, observations, strict=True)
        ]

    def _extend(
        self,
        predictions: Sequence[VideoPrediction],
        actions: Sequence[ActionChunk],
        seeds: Sequence[int],
        states: Sequence[Mapping[str, NDArray[np.float64]]] | None,
        carry: str,
    ) -> list[VideoPrediction]:
        for prediction in predictions:
            if prediction.source != self.model.source or not isinstance(prediction.latents, torch.Tensor):
                raise InputError(
                    f"extend: expected predictions of {self.model.source}, got one of {prediction.source!r}"
                )
        if carry == "latent":
            first = torch.stack([p.latents[:, -1:] for p in predictions])
        else:
            first = torch.stack([self.model.encode_frame(p.frames[-1]) for p in predictions])
        junctions = [
            _Junction(p.instruction, self._past(p), {} if states is None else states[i])
            for i, p in enumerate(predictions)
        ]
        samples = self.model.run(self.mode, junctions, first, seeds, actions)
        return [
            self.model.prediction(found.video, chunk, p.instruction, p.end_time)
            for found, chunk, p in zip(samples, actions, predictions, strict=True)
        ]

    def _past(self, prediction: VideoPrediction) -> NDArray[np.float64] | None:
        """The last commands before a junction, as many as the contract reads and the last chunk holds."""
        count = self.contract.model.history_rows
        return prediction.actions.values[-count:] if count else None


class Cosmos3InverseModel(InverseModel):
    """Actions denoised from a whole clean video (mode ``inverse_dynamics``)."""

    mode: PlanMode = "inverse_dynamics"

    def __init__(self, checkpoint: Checkpoint | Cosmos3Model):
        self.model = _model(checkpoint, self.mode)
        self.contract = self.model.contract

    def _label(self, clips: Sequence[Clip], seeds: Sequence[int]) -> list[ActionChunk]:
        samples = self.model.run(self.mode, clips, self.model.clip_latents([c.frames for c in clips]), seeds)
        return self.model.chunks(samples, clips, [c.time for c in clips])


POLICIES: dict[str, type[Cosmos3Policy]] = {"policy": Cosmos3Policy, "wam": Cosmos3JointPolicy}
"""Modes in which a checkpoint acts, the one that is taken first where a contract has both."""


def load(ref: str | Path, device: str = "cpu") -> Cosmos3Policy | LatentFramePolicy:
    """The policy of a checkpoint given by name, folder or hub id."""
    checkpoint = load_checkpoint(ref, device=device)
    if checkpoint.contract.model.frames:
        return LatentFramePolicy(cosmos3_frame_model(checkpoint))
    model = Cosmos3Model(checkpoint)
    for mode, kind in POLICIES.items():
        if mode in model.contract.model.modes:
            return kind(model)
    raise ContractError(
        f"{model.contract.model.name!r} is no policy: its contract's modes are {list(model.contract.model.modes)}"
    )


def load_world_model(ref: str | Path, device: str = "cpu", contract: Contract | None = None) -> WorldModel:
    """The world model of a checkpoint given by name, folder or hub id; ``contract`` instead of its own."""
    checkpoint = load_checkpoint(ref, device=device, contract=contract)
    if checkpoint.contract.model.frames:
        return LatentFrameWorldModel(cosmos3_frame_model(checkpoint))
    return Cosmos3WorldModel(checkpoint)


def load_value_model(
    ref: str | Path, device: str = "cpu", contract: Contract | None = None, reads: ValueMode = "value"
) -> LatentFrameValueModel:
    """The value model of a checkpoint with latent frames; ``contract`` instead of its own."""
    checkpoint = load_checkpoint(ref, device=device, contract=contract)
    return LatentFrameValueModel(cosmos3_frame_model(checkpoint), reads)


def load_inverse_model(ref: str | Path, device: str = "cpu", contract: Contract | None = None) -> Cosmos3InverseModel:
    """The inverse model of a checkpoint given by name, folder or hub id; ``contract`` instead of its own."""
    return Cosmos3InverseModel(load_checkpoint(ref, device=device, contract=contract))


def _model(checkpoint: Checkpoint | Cosmos3Model, mode: PlanMode) -> Cosmos3Model:
    """The shared model, after checking that its contract can be laid out in ``mode``."""
    model = checkpoint if isinstance(checkpoint, Cosmos3Model) else Cosmos3Model(checkpoint)
    contract_plan(model.contract, mode, model.grid)
    return model
