"""Draws to batches of tensors: one stream's samples of one token plan, noised reproducibly.

Axis legend: B samples, T chunk steps, D action width, S state width, C L h w latents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from cosmos_robot.backbone.cosmos3.layout import PlanMode, TokenPlan, contract_plan
from cosmos_robot.backbone.cosmos3.text import prompt_tokens
from cosmos_robot.contract import Contract
from cosmos_robot.images import image_size, latent_content
from cosmos_robot.prompts import Prompts
from cosmos_robot.training.clips import Clips, EncodedEpisode, commands_of
from cosmos_robot.training.flow import FlowBatch, FlowNoise
from cosmos_robot.training.model_config import PostTraining
from cosmos_robot.training.objective import Draws, noise_levels
from cosmos_robot.training.order import Draw

Prompt = tuple[int, ...]
"""Token ids."""


@dataclass(frozen=True, order=True)
class PlanKey:
    """What samples of one forward pass have in common: their stream, mode and number of past rows."""

    stream: int
    mode: PlanMode
    history: int


@dataclass(frozen=True)
class ModelBatch:
    """Samples of one plan. flow.text_index is into ``prompts``."""

    plan: TokenPlan
    flow: FlowBatch
    noise: FlowNoise
    prompts: tuple[Prompt, ...]


class StreamSamples:
    """One stream's samples as tensors. patch: the transformer's latent patch size."""

    def __init__(
        self,
        index: int,
        clips: Clips,
        contract: Contract,
        tokenizer: PreTrainedTokenizerBase,
        recipe: PostTraining,
        cell: int,
        patch: int,
    ):
        self.index, self.clips, self.contract = index, clips, contract
        self._tokenizer, self._recipe, self._patch = tokenizer, recipe, patch
        self._grid = latent_content(image_size(contract.model.canvas), cell)
        self._prompts, self._ids = Prompts(contract), dict[tuple[str, bool], Prompt]()
        self._plans: dict[tuple[PlanMode, int], TokenPlan] = {}
        self.shift = recipe.time_shift(contract)

    def plan(self, mode: PlanMode, history: int = 0) -> TokenPlan:
        if (mode, history) not in self._plans:
            self._plans[mode, history] = contract_plan(self.contract, mode, self._grid, history)
        return self._plans[mode, history]

    def key(self, draw: Draw) -> PlanKey:
        return PlanKey(self.index, draw.mode, self._history(draw))

    def tokens(self, draw: Draw) -> int:
        """Of text, pictures and rows."""
        plan = self.plan(draw.mode, self._history(draw))
        return len(self.prompt(draw)) + plan.latent_grid[0] * plan.patches(self._patch) + plan.rows

    def prompt(self, draw: Draw) -> Prompt:
        text = "" if draw.dropped else self.clips.instruction(draw.episode)
        key = text, draw.mode == "inverse_dynamics"
        if key not in self._ids:
            shown = self._prompts.text(text, inverse=key[1]) if text else ""
            ids = prompt_tokens(self._tokenizer, shown, self.contract.model.prompt.system_prompt)
            self._ids[key] = tuple(ids)
        return self._ids[key]

    def batch(self, draws: Sequence[Draw], prompts: Sequence[Prompt], noisy_inputs: bool = True) -> ModelBatch:
        """The samples of ``draws``, which share a plan, with text indices into ``prompts``. noisy_inputs: with the
        recipe's noise on given pictures and states."""
        key = self.key(draws[0])
        plan = self.plan(key.mode, key.history)
        episodes = [self.clips[draw.episode] for draw in draws]
        latents = torch.stack([self._latents(e, d.row, plan) for e, d in zip(episodes, draws, strict=True)])
        flow = FlowBatch(
            latents=latents,
            state=self._gathered(episodes, draws, "state") if self.contract.model.state_row else None,
            actions=self._gathered(episodes, draws, commands_of(key.mode)),
            valid=self._gathered(episodes, draws, "valid"),
            text_index=torch.tensor([prompts.index(self.prompt(draw)) for draw in draws]),
            domain_id=self.contract.model.domain_id,
            video_valid=self._gathered(episodes, draws, "seen")[:, : plan.latent_grid[0]],
            history=self._gathered(episodes, draws, "history")[:, -key.history :] if key.history else None,
        )
        noise, inputs = self._noise(draws, plan, flow)
        return ModelBatch(plan, self._disturbed(flow, plan, inputs) if noisy_inputs else flow, noise, tuple(prompts))

    def _gathered(self, episodes: Sequence[EncodedEpisode], draws: Sequence[Draw], column: str) -> Tensor:
        return torch.stack([getattr(e, column)[d.row] for e, d in zip(episodes, draws, strict=True)])

    def _latents(self, episode: EncodedEpisode, row: int, plan: TokenPlan) -> Tensor:
        return torch.from_numpy(np.array(episode.latents[row, :, : plan.latent_grid[0]], np.float32))

    def _history(self, draw: Draw) -> int:
        if not self.contract.model.history_rows:
            return 0
        return round(draw.history * int(self.clips[draw.episode].past[draw.row]))

    def _noise(self, draws: Sequence[Draw], plan: TokenPlan, flow: FlowBatch) -> tuple[FlowNoise, list]:
        """Each sample's own generator draws commands, then video, then what disturbs its inputs."""
        generators = [torch.Generator().manual_seed(seed_of(*draw.seed)) for draw in draws]

        def normal(like: Tensor) -> Tensor:
            return torch.stack([torch.randn(like.shape[1:], generator=g) for g in generators])

        first = torch.tensor([draw.level for draw in draws], dtype=torch.float64)
        if self._recipe.noise == "logitnormal":
            first = torch.special.ndtri(first.clamp(1e-7, 1 - 1e-7))
        sigma = noise_levels(self._recipe.noise, Draws(first.float()), self.shift)
        action = normal(flow.actions) if plan.noisy_rows else None
        video = normal(flow.latents) if plan.noisy_frames else None
        return FlowNoise(sigma, action, video), generators

    def _disturbed(self, flow: FlowBatch, plan: TokenPlan, generators: list) -> FlowBatch:
        recipe, latents, state = self._recipe, flow.latents, flow.state
        if recipe.latent_noise:
            given = torch.tensor([float(clean) for clean in plan.clean_frames])[:, None, None]
            noise = torch.stack([torch.randn(latents.shape[1:], generator=g) for g in generators])
            latents = latents + recipe.latent_noise * given * noise
        if recipe.state_noise and state is not None:
            state = state + recipe.state_noise * torch.stack(
                [torch.randn(state.shape[1:], generator=g) for g in generators]
            )
        return FlowBatch(**{**flow.__dict__, "latents": latents, "state": state})


def on_device(batch: ModelBatch, device: torch.device) -> ModelBatch:
    """``batch`` with all its tensors on ``device``."""

    def moved(value):
        return {n: v.to(device) if isinstance(v, Tensor) else v for n, v in value.__dict__.items()}

    if device.type == "cpu":
        return batch
    flow = FlowBatch(**{**moved(batch.flow), "text_index": batch.flow.text_index})
    return ModelBatch(batch.plan, flow, FlowNoise(**moved(batch.noise)), batch.prompts)


def seed_of(*parts: int) -> int:
    """A seed for torch's generators."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)
