"""One loaded Cosmos 3 checkpoint and what its policy, world model and inverse model share: pictures to latents, text
kept across calls, action rows, and the sampling of a batch. No weight is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cosmos_robot.actions.codec import Codec, state_vector
from cosmos_robot.actions.grippers import GripperRange
from cosmos_robot.backbone.cosmos3.checks import check_settings
from cosmos_robot.backbone.cosmos3.latents import crop_content, decode, encode_clip, encode_first_frame
from cosmos_robot.backbone.cosmos3.layout import PlanMode, TokenPlan, contract_plan, given_rows
from cosmos_robot.backbone.cosmos3.load import Checkpoint
from cosmos_robot.backbone.cosmos3.runtime import TextCache, encode_text, join_rows
from cosmos_robot.backbone.cosmos3.sampler import Given, Noise, Sample, draw_noise, sample
from cosmos_robot.backbone.cosmos3.text import prompt_tokens
from cosmos_robot.backbone.cosmos3.text_cache import TextStore
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.images import CanvasComposer, cameras_of, image_size, latent_content
from cosmos_robot.prompts import Prompts
from cosmos_robot.types import ActionChunk, LazyFrames, Observation, VideoPrediction

TEXT_BYTES = 2**30
"""Of prompts kept ready. A prompt of 200 tokens takes 30 MB in Nano at bfloat16."""


class Situation(Protocol):
    """What of an observation or a clip, pictures aside, a model reads."""

    @property
    def instruction(self) -> str: ...
    @property
    def state(self) -> Mapping[str, NDArray[np.float64]]: ...
    @property
    def history(self) -> NDArray[np.float64] | None: ...


class Cosmos3Model:
    """A checkpoint with its caches. Text is run once per distinct prompt, and the last ``TEXT_BYTES`` of it are kept.
    A blind checkpoint (``contract.model.sees`` false) reads no camera: its canvas is black.
    """

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint, self.contract = checkpoint, checkpoint.contract
        model = self.contract.model
        check_settings(model.sampler)
        self.codec = Codec(self.contract)
        self.source = f"cosmos3:{checkpoint.name}"
        self._cell = checkpoint.vae.config.scale_factor_spatial
        self._image_size = image_size(model.canvas)
        self.grid = latent_content(self._image_size, self._cell)
        self._compose = CanvasComposer(self.contract)
        self._prompts = Prompts(self.contract)
        self.texts = TextStore(self._encode_prompt, TEXT_BYTES)
        self._dark = None if model.sees else self._encode_first(self._black()[None])

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras with a place on the canvas; none for a blind checkpoint."""
        return tuple(cameras_of(self.contract.model.canvas)) if self.contract.model.sees else ()

    def canvas(self, observation: Observation) -> NDArray[np.uint8]:
        """The picture (H, W, 3) that the model is shown for ``observation``."""
        return self._compose(observation.images) if self.contract.model.sees else self._black()

    def first_latents(self, observations: Sequence[Observation]) -> Tensor:
        """(B, C, 1, h, w) of the current pictures. The same observation standing several times is encoded once."""
        if self._dark is not None:
            return self._dark.expand(len(observations), -1, -1, -1, -1)
        distinct = {id(o): o for o in observations}
        latents = self._encode_first(np.stack([self.canvas(o) for o in distinct.values()]))
        order = [list(distinct).index(id(o)) for o in observations]
        return latents if order == list(range(len(latents))) else latents[order]

    def clip_latents(self, clips: Sequence[NDArray[np.uint8]]) -> Tensor:
        """(B, C, L, h, w) of whole videos (F, H, W, 3): canvases, or pictures that this model decoded."""
        canvas, decoded = self._image_size[:2], tuple(side * self._cell for side in self.grid)
        for frames in clips:
            if frames.shape[1:3] not in (canvas, decoded) or frames.shape != clips[0].shape:
                raise InputError(
                    f"clip: expected frames of {canvas[0]}x{canvas[1]} pixels, the model's canvas, got "
                    f"{frames.shape[1]}x{frames.shape[2]}; compose them with the contract"
                )
        if self._dark is not None:
            raise ContractError(f"{self.contract.model.name!r} is a blind control: it reads no video")
        latents = encode_clip(self.checkpoint.vae, np.stack(clips))
        return latents if clips[0].shape[1:3] == decoded else crop_content(latents, self._image_size, self._cell)

    def run(
        self,
        mode: PlanMode,
        situations: Sequence[Situation],
        latents: Tensor,
        seeds: Sequence[int],
        actions: Sequence[ActionChunk] | None = None,
        noise: Noise | None = None,
        committed: Sequence[NDArray[np.float64]] | None = None,
    ) -> list[Sample]:
        """Denoise one sample for each situation; those with equally long histories and given rows go through together.

        latents: (B, C, 1, h, w), or with every frame of the plan where they are all given. actions: the given chunks of
        forward dynamics. committed: for each situation the first commands (k, D) of its chunk, in the robot's units:
        clean rows, which stand at the beginning of the sample's actions. noise: used instead of drawing it from
        ``seeds``; then all must go through together.
        Each sample comes back without a batch axis. Raises as ``contract_plan`` and ``sample`` do.
        """
        commands, chunk = committed if actions is None else [a.values for a in actions], self.contract.model.chunk
        sizes = [
            (0 if s.history is None else len(s.history), 0 if committed is None else len(committed[i]))
            for i, s in enumerate(situations)
        ]
        if noise is not None and len(set(sizes)) > 1:
            raise InputError(f"noise for histories and given rows of {sorted(set(sizes))}; pass equally long ones")
        found: dict[int, Sample] = {}
        for size in dict.fromkeys(sizes):
            group = [i for i, other in enumerate(sizes) if other == size]
            plan = given_rows(contract_plan(self.contract, mode, self.grid, size[0]), chunk, size[1])
            text, given = self._given(
                mode,
                plan,
                [situations[i] for i in group],
                latents if len(group) == len(sizes) else latents[group],
                None if commands is None else np.stack([commands[i] for i in group]),
            )
            start = self._noise(plan, [seeds[i] for i in group]) if noise is None else noise
            together = sample(self.checkpoint.transformer, plan, text, given, self.contract.model.sampler, start)
            action = self._whole(together.action, given, size[1])
            for row, i in enumerate(group):
                found[i] = Sample(*(None if part is None else part[row] for part in (action, together.video)))
        return [found[i] for i in range(len(situations))]

    def _whole(self, denoised: Tensor | None, given: Given, count: int) -> Tensor | None:
        """(B, T, W): the denoised commands after the ``count`` that were given."""
        if denoised is None or not count or given.action_rows is None:
            return denoised
        commands = given.action_rows[:, -self.contract.model.chunk :, : given.action_width]
        return torch.cat([commands[:, :count], denoised], dim=1)

    def chunks(self, samples: Sequence[Sample], situations: Sequence[Situation], times: Sequence[float]):
        """The commands of ``samples`` as chunks in the robot's units."""
        rows = [s.action.cpu().numpy() for s in samples]
        states = self._states(situations) if self.contract.reads_state else [None] * len(rows)
        opened = [self._were_open(s) for s in situations]
        actions = [self.codec.decode_actions(*each) for each in zip(rows, states, opened, strict=True)]
        rate = self.contract.robot.rate_hz
        return [ActionChunk(values, rate, time, self.source) for values, time in zip(actions, times, strict=True)]

    def prediction(self, latents: Tensor, actions: ActionChunk, instruction: str, time: float) -> VideoPrediction:
        """Latents (C, L, h, w) as a video that is decoded when somebody looks."""
        model, vae = self.contract.model, self.checkpoint.vae
        kept = latents.clone()
        frames = 1 + (latents.shape[1] - 1) * vae.config.scale_factor_temporal
        height, width = (side * self._cell for side in self.grid)
        return VideoPrediction(
            LazyFrames(lambda: decode(vae, kept[None])[0], (frames, height, width, 3)),
            actions,
            instruction,
            self.contract.robot.rate_hz / model.actions_per_frame,
            time,
            self.source,
            kept,
        )

    def _given(
        self,
        mode: PlanMode,
        plan: TokenPlan,
        situations: Sequence[Situation],
        latents: Tensor,
        commands: NDArray[np.float64] | None,
    ) -> tuple[TextCache, Given]:
        contract = self.contract
        text, index, empty = self._read([s.instruction for s in situations], mode)
        missing = plan.latent_grid[0] - latents.shape[2]
        given = Given(
            text_index=index,
            latents=F.pad(latents, (0, 0, 0, 0, 0, missing)) if missing else latents,
            action_rows=self._rows(situations, commands),
            domain_id=contract.model.domain_id,
            action_width=contract.action_width,
            unconditional=empty,
        )
        return text, given

    def _noise(self, plan: TokenPlan, seeds: Sequence[int]) -> Noise:
        config, rule = self.checkpoint.transformer.config, self.contract.model.sampler.noise
        width = self.contract.action_width
        return draw_noise(plan, config.latent_channel, config.action_dim, width, seeds, rule)

    def _rows(self, situations: Sequence[Situation], given: NDArray[np.float64] | None) -> Tensor:
        """(B, R, W): history, the state where the contract has a state row, the ``given`` commands (B, k, D), and room
        for the rest of the chunk."""
        contract, model = self.contract, self.contract.model
        states = self._states(situations) if self.contract.reads_state else None
        commands = torch.zeros(len(situations), model.chunk, contract.action_width)
        if given is not None and given.shape[1]:
            commands[:, : given.shape[1]] = _tensor(self.codec.encode_actions(given, states))
        state = _tensor(self.codec.encode_state(states)) if model.state_row else None
        rows = join_rows(state, commands)
        if situations[0].history is not None:
            past = _tensor(self._past([s.history for s in situations]))
            rows = torch.cat([F.pad(past, (0, rows.shape[2] - past.shape[2])), rows], dim=1)
        return rows.to(self.checkpoint.transformer.device)

    def _past(self, histories: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        if self._is_relative():
            raise ContractError(
                f"{self.contract.model.name!r} reads its history as poses relative to the one before the first row, "
                "which an observation does not hold"
            )
        width = self.contract.robot.action_width
        for history in histories:
            if history.shape[1] != width:
                raise InputError(f"history: expected rows of {width} numbers, got {history.shape[1]}")
        return self.codec.encode_actions(np.stack(histories))

    def _states(self, situations: Sequence[Situation]) -> NDArray[np.float64]:
        return np.stack([state_vector(self.contract.robot, s.state) for s in situations])

    def _were_open(self, situation: Situation) -> list[bool] | None:
        """Whether each hand is open now, which only a gripper with hysteresis needs to know."""
        robot = self.contract.robot
        if robot.gripper is None or not robot.gripper.hysteresis:
            return None
        seen = robot.state_gripper
        if seen is None:
            raise ContractError(f"{robot.name}: a gripper with hysteresis needs state_gripper, to know if it is open")
        ends = GripperRange(seen.open_value, seen.closed_value)
        return [bool(ends.openness(situation.state[name][0]) > robot.gripper.threshold) for name in seen.fields]

    def _is_relative(self) -> bool:
        space = self.contract.model.action_space
        return space is not None and space.relative

    def _read(self, instructions: Sequence[str], mode: PlanMode) -> tuple[TextCache, list[int], int | None]:
        """Text of the distinct prompts, the index of each instruction's, that of the empty prompt under guidance."""
        guided, inverse = self.contract.model.sampler.guidance != 1, mode == "inverse_dynamics"
        prompts = [self._prompts.text(instruction, inverse=inverse) for instruction in instructions]
        distinct = list(dict.fromkeys([*prompts, *([""] if guided else [])]))
        return self.texts.get(distinct), [distinct.index(p) for p in prompts], distinct.index("") if guided else None

    @torch.no_grad()
    def _encode_prompt(self, prompt: str) -> TextCache:
        ids = prompt_tokens(self.checkpoint.tokenizer, prompt, self.contract.model.prompt.system_prompt)
        return encode_text(self.checkpoint.transformer, [ids])

    def encode_frame(self, frame: NDArray[np.uint8]) -> Tensor:
        """(C, 1, h, w) of one picture (H, W, 3) that this model decoded."""
        return encode_first_frame(self.checkpoint.vae, frame[None])[0]

    def _encode_first(self, canvases: NDArray[np.uint8]) -> Tensor:
        return crop_content(encode_first_frame(self.checkpoint.vae, canvases), self._image_size, self._cell)

    def _black(self) -> NDArray[np.uint8]:
        return np.zeros((*self._image_size[:2], 3), np.uint8)


def _tensor(rows: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(np.asarray(rows, dtype=np.float32))
