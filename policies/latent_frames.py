"""One video model as policy, world model and value, by latent frames and masks (Cosmos Policy).

Written over ``FrameBackbone``, which any video backbone can offer:

    model = LatentFrameModel(backbone, contract)
    policy, world, value = LatentFramePolicy(model), LatentFrameWorldModel(model), LatentFrameValueModel(model)

A prediction's ``latents`` are the whole sequence it was sampled in, so a value reads the moment, the commands and the
future as they stand there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cosmos_robot.actions.codec import Codec, state_vector
from cosmos_robot.contract import WHOLE_CANVAS, Contract
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.images import CanvasComposer, canvas_parts
from cosmos_robot.latent_frames.fill import action_rows, future_state, injected, values
from cosmos_robot.latent_frames.layout import FUTURE, STATE, VALUE, FrameMode, ValueMode, layout_of, value_mode
from cosmos_robot.policies.base import JointPolicy, ValueModel, WorldModel
from cosmos_robot.prompts import Prompts
from cosmos_robot.types import ActionChunk, LazyFrames, Observation, VideoPrediction

KEPT = 64
"""Encoded canvases that are kept: those of a decision's candidates, and of the robots being served."""

State = Mapping[str, NDArray[np.float64]]
Canvas = Callable[[], NDArray[np.uint8]]
"""A canvas (H, W, 3), made when it is called for."""


@dataclass(frozen=True)
class ImaginedObservation(Observation):
    """The moment at the end of ``future``: its state is the predicted one, its pictures are those of the prediction,
    kept as latents. Nothing of the moment before stands in it but the instruction."""

    future: VideoPrediction = None  # type: ignore[assignment]


class FrameBackbone(Protocol):
    """What latent frames need of a video model. B samples of C channels, L latent frames, h x w cells."""

    source: str

    def encode(self, pictures: Sequence[NDArray[np.uint8] | None]) -> Tensor:
        """(B, C, len(pictures), h, w) of what each latent frame shows: (B, H, W, 3), None for black."""

    def decode(self, latents: Tensor, frames: Sequence[int]) -> NDArray[np.uint8]:
        """(B, len(frames), H, W, 3): what some frames of (B, C, L, h, w) show."""

    def denoise(
        self, latents: Tensor, clean: Tensor, prompts: Sequence[str], seeds: Sequence[int], steps: int | None
    ) -> Tensor:
        """(B, C, L, h, w) with every frame denoised that is not ``clean`` (B, L) bool."""


class LatentFrameModel:
    """A backbone under a contract, with the pictures it encoded last. Everything else is a function of its input."""

    def __init__(self, backbone: FrameBackbone, contract: Contract):
        self.backbone, self.contract, self.layout = backbone, contract, layout_of(contract)
        self.codec = Codec(contract)
        self._compose, self._prompts = CanvasComposer(contract), Prompts(contract)
        self._placed = [p.camera for p in contract.model.canvas.placements]
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras that are read; none for a blind checkpoint."""
        return tuple(dict.fromkeys(self._placed)) if self.contract.model.sees else ()

    def canvas(self, observation: Observation) -> NDArray[np.uint8]:
        """The pictures (H, W, 3) that the model is shown for ``observation``, side by side."""
        canvas = self.contract.model.canvas
        blank = np.zeros((canvas.height, canvas.width, 3), np.uint8)
        return self._compose(observation.images) if self.contract.model.sees else blank

    def start(self, canvases: Sequence[NDArray[np.uint8]], states: Sequence[State]) -> Tensor:
        """(B, C, L, h, w): the pictures and the state of now in their frames, zeros elsewhere. A canvas that stands
        several times, or was encoded before, is not encoded again."""
        marks = [blake2b(c.tobytes(), digest_size=16).digest() for c in canvases]
        new = {mark: c for mark, c in zip(marks, canvases, strict=True) if mark not in self._kept}
        fresh = dict(zip(new, self._encode(np.stack(list(new.values()))), strict=True)) if new else {}
        for mark, latents in fresh.items():
            self._kept[mark] = latents
        together = torch.stack([self._kept[mark] for mark in marks])
        for mark in marks:
            self._kept.move_to_end(mark)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        shape = (*together.shape[:2], len(self.layout), *together.shape[3:])
        latents = torch.zeros(shape, device=together.device)
        latents[:, :, : together.shape[2]] = together
        return self.with_states(latents, states)

    def begin(self, observations: Sequence[Observation]) -> tuple[Tensor, list[Canvas]]:
        """``start`` for moments, and the canvas of each. An imagined moment of this model goes on with its latents; of
        another's only the pictures are read."""
        carried = [isinstance(o, ImaginedObservation) and o.future.source == self.backbone.source for o in observations]
        canvases = [
            partial(_last, o.future) if isinstance(o, ImaginedObservation) else partial(_same, self.canvas(o))
            for o in observations
        ]
        parts: dict[int, Tensor] = {}
        for own in (False, True):
            which = [i for i, c in enumerate(carried) if c == own]
            if not which:
                continue
            states = [observations[i].state for i in which]
            if own:
                futures = [observations[i].future for i in which]
                found = self.with_states(self.moved_on(_latents(self, futures)), states)
            else:
                found = self.start([canvases[i]() for i in which], states)
            parts |= dict(zip(which, found, strict=True))
        return torch.stack([parts[i] for i in range(len(observations))]), canvases

    def with_states(self, latents: Tensor, states: Sequence[State]) -> Tensor:
        """``latents`` with the states of now in their frame, where the layout has one."""
        if STATE not in self.layout:
            return latents
        rows = self.codec.encode_state(np.stack([state_vector(self.contract.robot, s) for s in states]))
        return injected(latents, self.layout, {STATE: _tensor(rows, latents)})

    def with_actions(self, latents: Tensor, chunks: Sequence[ActionChunk]) -> Tensor:
        """``latents`` with the commands in their frame."""
        rows = self.codec.encode_actions(np.stack([c.values for c in chunks]))
        return injected(latents, self.layout, {"action": _tensor(rows, latents)})

    def moved_on(self, latents: Tensor) -> Tensor:
        """(B, C, L, h, w) whose pictures of now are the future ones of ``latents``, without decoding them. Raises
        UnknownNameError for a layout with a camera that has no future frame."""
        black = self.backbone.encode([None] * self.layout.pictures_end).to(latents.device)
        out = torch.zeros_like(latents)
        out[:, :, : black.shape[2]] = black
        for camera in self.layout.cameras:
            out[:, :, self.layout.index(camera)] = latents[:, :, self.layout.index(FUTURE + camera)]
        return out

    def sample(
        self,
        mode: FrameMode,
        latents: Tensor,
        instructions: Sequence[str],
        seeds: Sequence[int],
        steps: int | None = None,
    ) -> Tensor:
        """``latents`` with every frame denoised that ``mode`` is not given."""
        clean = torch.tensor(self.layout.clean(mode), device=latents.device).expand(len(latents), -1)
        prompts = [self._prompts.text(text) for text in instructions]
        return self.backbone.denoise(latents, clean, prompts, seeds, steps)

    def chunks(self, latents: Tensor, times: Sequence[float]) -> list[ActionChunk]:
        """The commands of sampled latents, with the value and the state that came with them in ``info``."""
        model, rate = self.contract.model, self.contract.robot.rate_hz
        rows = action_rows(latents, self.layout, model.chunk, self.codec.action_width).double().cpu().numpy()
        found = values(latents, self.layout).tolist() if VALUE in self.layout else [None] * len(rows)
        states = self.future_states(latents) if FUTURE + STATE in self.layout else [None] * len(rows)
        out = []
        for actions, time, value, state in zip(self.codec.decode_actions(rows), times, found, states, strict=True):
            named = {} if state is None else {"future_state": {k: v.tolist() for k, v in state.items()}}
            info = named if value is None else {"value": value, **named}
            out.append(ActionChunk(actions, rate, time, self.backbone.source, info))
        return out

    def future_states(self, latents: Tensor) -> list[dict[str, NDArray[np.float64]]]:
        """The state after the chunk that each of (B, C, L, h, w) expects, in the robot's units."""
        rows = future_state(latents, self.layout, self.codec.state_width).double().cpu().numpy()
        fields, out = self.contract.robot.state, []
        ends = np.cumsum([0, *(f.width for f in fields)])
        for vector in self.codec.decode_state(rows):
            out.append({f.name: vector[a:b] for f, a, b in zip(fields, ends[:-1], ends[1:], strict=True)})
        return out

    def prediction(
        self, latents: Tensor, now: Canvas, actions: ActionChunk, instruction: str, time: float
    ) -> VideoPrediction:
        """Sampled latents (C, L, h, w) as a video of two frames, now and after the chunk, decoded when somebody looks.

        now: what was shown of now; it is the first frame, as it was.
        """
        kept, rate = latents.clone(), self.contract.robot.rate_hz / self.contract.model.chunk
        canvas = self.contract.model.canvas
        frames = LazyFrames(lambda: self._video(kept, now()), (2, canvas.height, canvas.width, 3))
        return VideoPrediction(frames, actions, instruction, rate, time, self.backbone.source, kept)

    def standing(self, latents: Tensor, canvas: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The canvas (H, W, 3) after the chunk if the future frames of (C, L, h, w) were those of now; a camera that is
        not shown now keeps its own. canvas: what was shown of now."""
        layout, repeated = self.layout, latents.clone()
        for camera in layout.future_cameras:
            if camera in layout:
                repeated[:, layout.index(FUTURE + camera)] = latents[:, layout.index(camera)]
        return self._future(repeated, canvas)

    def _video(self, latents: Tensor, canvas: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.stack([canvas, self._future(latents, canvas)])

    def _encode(self, canvases: NDArray[np.uint8]) -> Tensor:
        return self.backbone.encode(self._slots(canvases, self.layout.pictures_end))

    def _slots(self, canvases: NDArray[np.uint8], count: int) -> list[NDArray[np.uint8] | None]:
        """What the first ``count`` frames show for canvases (B, H, W, 3): a camera's pictures of now, or black."""
        shown = {WHOLE_CANVAS: canvases}
        if WHOLE_CANVAS not in self.layout:
            parts = [canvas_parts(self.contract.model.canvas, c) for c in canvases]
            shown = {name: np.stack([p[i] for p in parts]) for i, name in enumerate(self._placed)}
        return [shown.get(slot) for slot in self.layout.slots[:count]]

    def _future(self, latents: Tensor, canvas: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The canvas after the chunk; a camera without a future frame stays black. Frames that hold vectors are
        replaced by what black pictures there would be, without which the decoder sees what it never saw."""
        layout, out = self.layout, np.zeros_like(canvas)
        frames = [layout.index(FUTURE + camera) for camera in layout.future_cameras]
        if not frames:
            return out
        shown = self.backbone.encode(self._slots(canvas[None], max(frames) + 1))[0].to(latents.device)
        whole = shown.clone()
        whole[:, frames] = latents[:, frames]
        pictures = dict(zip(layout.future_cameras, self.backbone.decode(whole[None], frames)[0], strict=True))
        if WHOLE_CANVAS in pictures:
            return pictures[WHOLE_CANVAS]
        for place in self.contract.model.canvas.placements:
            if place.camera in pictures:
                box = place.to
                out[box.top : box.top + box.height, box.left : box.left + box.width] = pictures[place.camera]
        return out


class LatentFramePolicy(JointPolicy):
    """Actions, the state and pictures after them, and their value, denoised together (mode ``policy``).

    steps: of the sampler, the contract's if None. What the sample says beside the commands is in a chunk's ``info``.
    """

    def __init__(self, model: LatentFrameModel, steps: int | None = None):
        _require(model.contract, "policy")
        self.model, self.contract, self.steps = model, model.contract, steps

    @property
    def cameras(self) -> tuple[str, ...]:
        return self.model.cameras

    def with_steps(self, steps: int) -> LatentFramePolicy:
        """The same model, sampled with another number of steps."""
        return LatentFramePolicy(self.model, steps)

    def _foresee(
        self,
        observations: Sequence[Observation],
        seeds: Sequence[int],
        committed: Sequence[NDArray[np.float64]] | None,
    ) -> list[tuple[ActionChunk, VideoPrediction]]:
        if committed is not None:
            raise ContractError(
                f"{self.contract.model.name!r} holds a whole chunk in one latent frame, so none of its rows can be "
                "given; ask without committed rows (a control loop: any strategy but rtc)"
            )
        latents, canvases = self.model.begin(observations)
        latents = self.model.sample("policy", latents, [o.instruction for o in observations], seeds, self.steps)
        chunks = self.model.chunks(latents, [o.time for o in observations])
        return [
            (chunk, self.model.prediction(found, canvas, chunk, o.instruction, o.time))
            for found, canvas, chunk, o in zip(latents, canvases, chunks, observations, strict=True)
        ]


class LatentFrameWorldModel(WorldModel):
    """The state and pictures after given commands, with a value beside them (mode ``world_model``)."""

    def __init__(self, model: LatentFrameModel, steps: int | None = None):
        _require(model.contract, "world_model")
        self.model, self.contract, self.steps = model, model.contract, steps

    @property
    def cameras(self) -> tuple[str, ...]:
        return self.model.cameras

    def with_steps(self, steps: int) -> LatentFrameWorldModel:
        """The same model, sampled with another number of steps."""
        return LatentFrameWorldModel(self.model, steps)

    def future_states(self, predictions: Sequence[VideoPrediction]) -> list[dict[str, NDArray[np.float64]]]:
        """The state after each prediction, in the robot's units: what ``extend`` takes for its junctions."""
        return self.model.future_states(_latents(self.model, predictions))

    def unmoved(self, predictions: Sequence[VideoPrediction]) -> list[NDArray[np.uint8]]:
        """As ``WorldModel``: the pictures of now, decoded from the future frames, since a prediction's first frame is
        what was shown, which the autoencoder never saw."""
        found = _latents(self.model, predictions)
        return [self.model.standing(latents, p.frames[0]) for latents, p in zip(found, predictions, strict=True)]

    def _imagine(
        self, observations: Sequence[Observation], actions: Sequence[ActionChunk], seeds: Sequence[int]
    ) -> list[VideoPrediction]:
        latents, canvases = self.model.begin(observations)
        moments = [(o.instruction, o.time) for o in observations]
        return self._predicted(latents, canvases, actions, seeds, moments)

    def _extend(
        self,
        predictions: Sequence[VideoPrediction],
        actions: Sequence[ActionChunk],
        seeds: Sequence[int],
        states: Sequence[State] | None,
        carry: str,
    ) -> list[VideoPrediction]:
        before = _latents(self.model, predictions)
        given = [{}] * len(predictions) if states is None else list(states)
        if carry == "latent":
            latents = self.model.with_states(self.model.moved_on(before), given)
        else:
            latents = self.model.start([p.frames[-1] for p in predictions], given)
        moments = [(p.instruction, p.end_time) for p in predictions]
        return self._predicted(latents, [partial(_last, p) for p in predictions], actions, seeds, moments)

    def _predicted(
        self,
        latents: Tensor,
        canvases: Sequence[Canvas],
        actions: Sequence[ActionChunk],
        seeds: Sequence[int],
        moments: Sequence[tuple[str, float]],
    ) -> list[VideoPrediction]:
        latents = self.model.with_actions(latents, actions)
        latents = self.model.sample("world_model", latents, [text for text, _ in moments], seeds, self.steps)
        return [
            self.model.prediction(found, canvas, chunk, *moment)
            for found, canvas, chunk, moment in zip(latents, canvases, actions, moments, strict=True)
        ]


class LatentFrameValueModel(ValueModel):
    """The value of a moment, commands and a future, or of a part of them (mode ``value``).

    reads: see ``ValueModel``. With futures, moment and commands are read as they stand in them, so that a later chunk
    of a rollout is scored from where it begins.
    """

    def __init__(self, model: LatentFrameModel, reads: ValueMode = "value", steps: int | None = None):
        _require(model.contract, "value")
        model.layout.index(VALUE)
        self.model, self.contract, self.reads, self.steps = model, model.contract, value_mode(reads), steps

    @property
    def cameras(self) -> tuple[str, ...]:
        return self.model.cameras if self.reads == "q_value" else ()

    def with_steps(self, steps: int) -> LatentFrameValueModel:
        """The same model, sampled with another number of steps."""
        return LatentFrameValueModel(self.model, self.reads, steps)

    def _score(
        self,
        observations: Sequence[Observation],
        actions: Sequence[ActionChunk],
        futures: Sequence[VideoPrediction] | None,
        seeds: Sequence[int],
    ) -> NDArray[np.float64]:
        if futures is None:
            latents = self.model.with_actions(self.model.begin(observations)[0], actions)
        else:
            latents = _latents(self.model, futures)
        latents = self.model.sample(self.reads, latents, [o.instruction for o in observations], seeds, self.steps)
        return values(latents, self.model.layout).double().cpu().numpy()


def onward_of(
    policy: LatentFrameModel, world: LatentFrameModel
) -> Callable[[Observation, VideoPrediction], Observation]:
    """How a search goes on from a future of ``world``: with the predicted state, and with pictures that stay latents
    where ``policy`` is the same model, and are decoded and encoded again where it is another.

    Raises ContractError where a future does not say what the next chunk has to see: the state, or a camera.
    """
    for model in dict.fromkeys((world, policy)):
        layout = model.layout
        missing = [slot for slot in (STATE, *layout.cameras) if slot in layout and FUTURE + slot not in world.layout]
        if missing:
            raise ContractError(
                f"{world.contract.model.name!r} does not predict {missing[0]!r}, which the next chunk of "
                f"{model.contract.model.name!r} reads: plan with depth=1"
            )
    if policy.contract.model.canvas != world.contract.model.canvas:
        raise ContractError(
            f"{policy.contract.model.name!r} and {world.contract.model.name!r} are shown different canvases, so that "
            "one cannot look at what the other imagines: plan with depth=1"
        )

    def onward(moment: Observation, future: VideoPrediction) -> Observation:
        (state,) = world.future_states(_latents(world, [future])) if FUTURE + STATE in world.layout else ({},)
        return ImaginedObservation({}, state, moment.instruction, future.end_time, None, future)

    return onward


def _latents(model: LatentFrameModel, predictions: Sequence[VideoPrediction]) -> Tensor:
    """(B, C, L, h, w) of this model's own predictions. Raises InputError for another's."""
    for prediction in predictions:
        if prediction.source != model.backbone.source or not isinstance(prediction.latents, Tensor):
            raise InputError(
                f"expected predictions of {model.backbone.source}, got one of {prediction.source!r}; imagine it with "
                "this checkpoint's world model"
            )
    return torch.stack([p.latents for p in predictions])


def _same(canvas: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return canvas


def _last(prediction: VideoPrediction) -> NDArray[np.uint8]:
    return prediction.frames[-1]


def _require(contract: Contract, mode: str) -> None:
    if mode not in contract.model.modes:
        raise ContractError(
            f"{contract.model.name!r} has no mode {mode!r}: its contract's modes are {list(contract.model.modes)}"
        )


def _tensor(rows: NDArray[np.float64], like: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(rows, dtype=np.float32)).to(like.device)
