"""A Cosmos 3 checkpoint as a policy: picture, state and instruction to a chunk of commands."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cosmos_robot.actions.codec import Codec, state_vector
from cosmos_robot.backbone.cosmos3.latents import encode_first_frame
from cosmos_robot.backbone.cosmos3.layout import TokenPlan, policy_plan
from cosmos_robot.backbone.cosmos3.load import Checkpoint, load_checkpoint
from cosmos_robot.backbone.cosmos3.runtime import TextCache, encode_text, join_rows, join_texts
from cosmos_robot.backbone.cosmos3.sampler import Given, draw_noise, sample
from cosmos_robot.backbone.cosmos3.text import prompt_tokens
from cosmos_robot.images import compose_canvas
from cosmos_robot.policies.base import Policy
from cosmos_robot.prompts import render_prompt
from cosmos_robot.types import ActionChunk, Observation

TEXTS_KEPT = 64


class Cosmos3Policy(Policy):
    """Actions denoised from one clean picture, the state as one clean row, and the instruction.

    Text is run once per distinct instruction and kept for the last ``TEXTS_KEPT`` of them. A blind checkpoint
    (``contract.model.sees`` false) reads no camera: its canvas is black.
    """

    def __init__(self, checkpoint: Checkpoint):
        self.contract = checkpoint.contract
        self._checkpoint = checkpoint
        self._codec = Codec(checkpoint.contract)
        self._plan = _plan(checkpoint)
        self._texts: OrderedDict[str, TextCache] = OrderedDict()
        self._dark = None if self.contract.model.sees else self._encode(self._black_canvas())

    @property
    def cameras(self) -> tuple[str, ...]:
        model = self.contract.model
        return tuple(dict.fromkeys(p.camera for p in model.canvas.placements)) if model.sees else ()

    def canvas(self, observation: Observation) -> np.ndarray:
        """The picture (H, W, 3) uint8 that the model is shown for ``observation``."""
        if not self.contract.model.sees:
            return self._black_canvas()
        return compose_canvas(self.contract, observation.images)

    @torch.no_grad()
    def _act(self, observations: Sequence[Observation], seeds: Sequence[int]) -> list[ActionChunk]:
        contract, transformer = self.contract, self._checkpoint.transformer
        prompts = [render_prompt(contract.model.prompt, o.instruction) for o in observations]
        guided = contract.model.sampler.guidance != 1
        distinct = list(dict.fromkeys([*prompts, *([""] if guided else [])]))
        width = contract.robot.action_width
        given = Given(
            text_index=[distinct.index(prompt) for prompt in prompts],
            latents=self._latents(observations),
            action_rows=self._rows(observations),
            domain_id=contract.model.domain_id,
            action_width=width,
            unconditional=distinct.index("") if guided else None,
        )
        noise = draw_noise(self._plan, transformer.config.latent_channel, transformer.config.action_dim, width, seeds)
        out = sample(
            transformer,
            self._plan,
            join_texts([self._text(prompt) for prompt in distinct]),
            given,
            contract.model.sampler,
            noise,
        )
        actions = self._codec.decode_actions(out.action.cpu().numpy())
        source = f"cosmos3:{self._checkpoint.name}"
        return [
            ActionChunk(values, contract.robot.rate_hz, o.time, source)
            for values, o in zip(actions, observations, strict=True)
        ]

    def _latents(self, observations: Sequence[Observation]) -> Tensor:
        if self._dark is not None:
            return self._dark.expand(len(observations), -1, -1, -1, -1)
        return self._encode(np.stack([self.canvas(o) for o in observations]))

    def _encode(self, canvases: np.ndarray) -> Tensor:
        return encode_first_frame(self._checkpoint.vae, canvases if canvases.ndim == 4 else canvases[None])

    def _rows(self, observations: Sequence[Observation]) -> Tensor:
        """Action rows (B, R, W): the state where the contract has one, and room for the commands."""
        model, robot = self.contract.model, self.contract.robot
        room = torch.zeros(len(observations), model.chunk, robot.action_width)
        state = None
        if model.state_row:
            vectors = np.stack([state_vector(robot, o.state) for o in observations])
            state = torch.from_numpy(self._codec.encode_state(vectors).astype(np.float32))
        return join_rows(state, room).to(self._checkpoint.transformer.device)

    def _text(self, prompt: str) -> TextCache:
        if prompt not in self._texts:
            ids = prompt_tokens(self._checkpoint.tokenizer, prompt, self.contract.model.prompt.system_prompt)
            self._texts[prompt] = encode_text(self._checkpoint.transformer, [ids])
            if len(self._texts) > TEXTS_KEPT:
                self._texts.popitem(last=False)
        self._texts.move_to_end(prompt)
        return self._texts[prompt]

    def _black_canvas(self) -> np.ndarray:
        canvas = self.contract.model.canvas
        return np.zeros((canvas.height, canvas.width, 3), np.uint8)


def _plan(checkpoint: Checkpoint) -> TokenPlan:
    model, cell = checkpoint.contract.model, checkpoint.vae.config.scale_factor_spatial
    rate = checkpoint.contract.robot.rate_hz
    return policy_plan(model.canvas.height // cell, model.canvas.width // cell, model.chunk, rate, model.state_row)


def load(ref: str | Path, device: str = "cpu") -> Cosmos3Policy:
    """The policy of a checkpoint given by name, folder or hub id."""
    return Cosmos3Policy(load_checkpoint(ref, device=device))
