"""Training rows to batches of tensors.

Axis legend: B batch, T chunk steps, D action width, S state width, C L h w latents, P placements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cosmos_robot.backbone.cosmos3.layout import wam_plan
from cosmos_robot.contract import Contract
from cosmos_robot.training.cache import CELL
from cosmos_robot.training.config import PolicyTraining
from cosmos_robot.training.flow import FlowBatch
from cosmos_robot.training.grounding import Places
from cosmos_robot.training.rows import TrainingRows


@dataclass(frozen=True)
class Batch:
    """One batch: the flow samples, the distinct prompts they use (token ids), and where their objects are."""

    flow: FlowBatch
    prompts: tuple[tuple[int, ...], ...]
    places: Places


class BatchMaker:
    """Rows to batches. ``black`` (C, h, w) replaces every canvas for a blind policy. The prompt after the last
    instruction is the empty caption."""

    def __init__(self, rows: TrainingRows, prompts: Sequence[Sequence[int]], config: PolicyTraining, contract: Contract,
                 black: NDArray[np.float16] | None):  # fmt: skip
        self.rows, self.config, self.contract = rows, config, contract
        self.prompts = tuple(tuple(ids) for ids in prompts)
        self._black = None if black is None else torch.from_numpy(black).float()
        model = contract.model
        height, width = model.canvas.height // CELL, model.canvas.width // CELL
        frames = 1 + config.future_frames
        self.plan = wam_plan(frames, height, width, model.chunk, contract.robot.rate_hz, model.state_row)

    def clean(self, index: NDArray[np.int64]) -> Batch:
        """The rows ``index`` as they are."""
        return self._batch(index, self.rows.instruction[index], self._latents(index), self._state(index))

    def augmented(self, index: NDArray[np.int64], generator: torch.Generator) -> Batch:
        """The rows ``index`` with noise on their inputs."""
        noise = self.config.augmentation
        latents, state = self._latents(index), self._state(index)
        if noise.latent_noise:
            latents = latents + noise.latent_noise * torch.randn(latents.shape, generator=generator)
        if state is not None:
            state = state + noise.state_noise * torch.randn(state.shape, generator=generator)
            state = state * (torch.rand(len(index), 1, generator=generator) >= noise.state_dropout)
        captions = self.rows.instruction[index]
        if noise.caption_dropout:
            dropped = torch.rand(len(index), generator=generator).numpy() < noise.caption_dropout
            captions = np.where(dropped, len(self.rows.instructions), captions)
        return self._batch(index, captions, latents, state)

    def grounding_tokens(self, hidden: Tensor) -> Tensor:
        """Of hidden (B, N, E), the tokens the grounding heads read: the first frame's vision tokens, then the action
        rows."""
        frames, height, width = self.plan.latent_grid
        if frames == 1:
            return hidden
        return torch.cat([hidden[:, : height * width], hidden[:, frames * height * width :]], dim=1)

    def _latents(self, index: NDArray[np.int64]) -> Tensor:
        frames = self.plan.latent_grid[0]
        if self._black is None:
            return torch.from_numpy(self.rows.latents(index, frames)).float()
        return self._black[None, :, None].repeat(len(index), 1, frames, 1, 1)

    def _state(self, index: NDArray[np.int64]) -> Tensor | None:
        return torch.from_numpy(self.rows.state[index]) if self.contract.model.state_row else None

    def _batch(self, index, captions, latents: Tensor, state: Tensor | None) -> Batch:
        rows = self.rows
        unique, inverse = np.unique(captions, return_inverse=True)
        flow = FlowBatch(
            latents=latents,
            state=state,
            actions=torch.from_numpy(rows.actions[index]),
            valid=torch.from_numpy(rows.valid[index]),
            text_index=torch.from_numpy(inverse),
            domain_id=self.contract.model.domain_id,
            video_valid=torch.from_numpy(rows.following(index, self.plan.latent_grid[0])[1]),
        )
        places = Places(*(torch.from_numpy(column[index]) for column in (rows.cells, rows.seen, rows.offset)))
        return Batch(flow, tuple(self.prompts[i] for i in unique), places)
