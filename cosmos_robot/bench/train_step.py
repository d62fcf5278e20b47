"""Loss and gradients of one batch against diffusers' packed forward, sample by sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import Cosmos3OmniTransformer
from torch import Tensor

from cosmos_robot.backbone.cosmos3.layout import TokenPlan, contract_plan
from cosmos_robot.backbone.cosmos3.load import Checkpoint
from cosmos_robot.backbone.cosmos3.runtime import encode_text, velocity
from cosmos_robot.backbone.cosmos3.text import prompt_tokens
from cosmos_robot.bench.harness import Progress, interleave, machine, quiet
from cosmos_robot.bench.subjects import (
    DOMAIN,
    INSTRUCTION,
    WIDTH,
    bench_contract,
    packed,
    packed_velocity,
    tiny_checkpoint,
)
from cosmos_robot.errors import InputError
from cosmos_robot.prompts import prompt_facts, render_prompt


def train_step_report(
    batch: int = 16, instructions: int = 4, repeats: int = 5, progress: Progress = quiet
) -> dict[str, Any]:
    """The tiny policy of the other benchmarks: a clean 256-pixel frame and 16 noisy actions, in float32. Both sides see
    the same weights, inputs, noise and loss; the peer's constant arguments are made beforehand. The batch has
    ``instructions`` distinct texts, each of which ours reads once."""
    if not 1 <= instructions <= min(batch, len(INSTRUCTION.split())):
        limit = min(batch, len(INSTRUCTION.split()))
        raise InputError(
            f"bench train-step: expected 1 to {limit} instructions in a batch of {batch}, got {instructions}"
        )
    checkpoint = tiny_checkpoint(bench_contract())
    transformer = checkpoint.transformer
    model, cell = checkpoint.contract.model, checkpoint.vae.config.scale_factor_spatial
    plan = contract_plan(checkpoint.contract, "policy", (model.canvas.height // cell, model.canvas.width // cell))
    data = Batch.draw(checkpoint, plan, batch, instructions)
    statics = [packed(transformer, plan, ids, data.domain) for ids in data.prompts]

    def ours() -> tuple[float, dict[str, Tensor]]:
        transformer.zero_grad()
        loss = data.ours(transformer, plan)
        loss.backward()
        return float(loss.detach()), _gradients(transformer)

    def theirs() -> tuple[float, dict[str, Tensor]]:
        transformer.zero_grad()
        total = 0.0
        for loss in data.peer(transformer, plan, statics):
            loss.backward()
            total += float(loss.detach())
        return total, _gradients(transformer)

    pair = interleave(ours, theirs, repeats, progress=progress)
    (loss, mine), (peer_loss, expected) = ours(), theirs()
    found = pair.as_json()
    return {
        "bench": "train-step",
        "against": "diffusers Cosmos3OmniTransformer.forward and backward, sample by sample",
        "batch": batch,
        "text_tokens": [len(ids) for ids in data.prompts],
        "generation_tokens": plan.latent_grid[0] * plan.patches(transformer.config.latent_patch_size) + plan.rows,
        **found,
        "samples_per_s": {side: batch / found[side]["median_s"] for side in ("ours", "peer")},
        "loss_abs_diff": abs(loss - peer_loss),
        "gradient_max_abs_diff": max(float((mine[n] - expected[n]).abs().max()) for n in mine),
        "gradient_max_abs": max(float(g.abs().max()) for g in expected.values()),
        "gradients_missing": sorted(n for n in expected if n not in mine and bool(expected[n].any())),
        **machine(torch.float32),
    }


def _gradients(transformer: Cosmos3OmniTransformer) -> dict[str, Tensor]:
    return {name: p.grad for name, p in transformer.named_parameters() if p.grad is not None}


@dataclass(frozen=True)
class Batch:
    """Random samples, instructions of the same words in turned order, and what each sample is to predict: latents
    (B, C, 1, h, w), rows (B, R, W), target (B, T, W), timestep (B,); index (B,) into prompts (token ids)."""

    prompts: list[list[int]]
    index: list[int]
    domain: int
    latents: Tensor
    rows: Tensor
    target: Tensor
    timestep: Tensor

    @staticmethod
    def draw(checkpoint: Checkpoint, plan: TokenPlan, count: int, instructions: int, seed: int = 0) -> Batch:
        contract, config = checkpoint.contract, checkpoint.transformer.config
        words, facts = INSTRUCTION.split(), prompt_facts(contract)
        turned = [" ".join(words[number:] + words[:number]) for number in range(instructions)]
        texts = [render_prompt(contract.model.prompt, instruction, facts) for instruction in turned]
        prompts = [prompt_tokens(checkpoint.tokenizer, text) for text in texts]
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(count, *shape, generator=generator)

        return Batch(
            prompts,
            [number % len(prompts) for number in range(count)],
            DOMAIN,
            normal(config.latent_channel, *plan.latent_grid),
            normal(plan.rows, WIDTH),
            normal(len(plan.noisy_rows), WIDTH),
            torch.rand(count, generator=generator) * 1000,
        )

    def ours(self, transformer: Cosmos3OmniTransformer, plan: TokenPlan) -> Tensor:
        """Mean squared error over the batch."""
        used = sorted(set(self.index))
        text = encode_text(transformer, [self.prompts[i] for i in used])
        index, width = [used.index(i) for i in self.index], self.target.shape[2]
        domains = [self.domain] * len(index)
        out = velocity(
            transformer, plan, text, index, self.latents, self.rows, self.timestep, domains, action_width=width
        )
        return (out.action - self.target).square().mean()

    def peer(
        self, transformer: Cosmos3OmniTransformer, plan: TokenPlan, statics: list[dict[str, Any]]
    ) -> Iterator[Tensor]:
        """The share of each sample in the same loss, one after the other."""
        for b, prompt in enumerate(self.index):
            _, action = packed_velocity(transformer, statics[prompt], self.latents[b], self.rows[b], self.timestep[b])
            found = action[list(plan.noisy_rows), : self.target.shape[2]]
            yield (found - self.target[b]).square().mean() / len(self.index)
