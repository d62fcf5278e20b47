"""The denoising forward at Nano's true widths against diffusers' packed forward."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

import torch
from diffusers import Cosmos3OmniTransformer
from torch import Tensor

from cosmos_robot.backbone.cosmos3.layout import TokenPlan, contract_plan, wam_plan
from cosmos_robot.backbone.cosmos3.runtime import TextCache, encode_text, velocity
from cosmos_robot.backbone.cosmos3.sampler import denoise
from cosmos_robot.backbone.cosmos3.text import build_word_tokenizer, prompt_tokens
from cosmos_robot.bench.harness import Pair, Progress, Timing, machine, matmul_rate, pair_of, quiet, timed
from cosmos_robot.bench.subjects import (
    DOMAIN,
    INSTRUCTION,
    nano_slice,
    packed,
    packed_velocity,
    parameters,
)
from cosmos_robot.contract import Contract, SamplerSpec
from cosmos_robot.errors import InputError
from cosmos_robot.prompts import prompt_facts, render_prompt

DROID = "cosmos3-nano-droid"
DROID_GRID, DROID_WIDTH = (33, 40), 8
TOUCH = wam_plan(2, 2, 2, chunk=4, fps=15, state_row=True)
"""A few tokens, enough to use every weight once."""


@dataclass(frozen=True)
class Work:
    """One denoising step of one sample: the forward with the prompt and the one without."""

    transformer: Cosmos3OmniTransformer
    plan: TokenPlan
    prompts: tuple[list[int], list[int]]
    domain: int
    width: int


def slice_report(
    contract: Contract, dtype: torch.dtype = torch.bfloat16, layers: int = 2, steps: int = 4, progress: Progress = quiet
) -> dict[str, Any]:
    """A denoising run at Nano's widths in DROID's layout. At each step both sides compute the guided velocity of the
    same state, in changing order. The peer is diffusers' forward, called twice a step as the pipeline calls it.

    ``gemm_share``: operations of our forward per second over the rate of one plain product of the feed-forward layer's
    shape, measured before each step.
    """
    tokenizer = build_word_tokenizer([INSTRUCTION])
    text = render_prompt(contract.model.prompt, INSTRUCTION, prompt_facts(contract))
    prompts = (prompt_tokens(tokenizer, text), prompt_tokens(tokenizer, ""))
    progress("random weights")
    transformer = nano_slice(layers, len(tokenizer), dtype)
    work = Work(transformer, contract_plan(contract, "wam", DROID_GRID), prompts, DOMAIN, DROID_WIDTH)
    with torch.inference_mode():
        stepwise(replace(work, plan=TOUCH), 1, dtype)  # memory that is touched for the first time is slow
        run = stepwise(work, steps, dtype, progress)
    config, tokens = transformer.config, work.plan.latent_grid[0] * work.plan.patches(2)
    flops = step_flops(work)
    rate = statistics.median(run.rates)
    return {
        "bench": "policy",
        "shape": "nano-slice",
        "peer": "diffusers Cosmos3OmniTransformer.forward, two calls a step",
        "parameters": parameters(transformer),
        "widths": {"hidden": config.hidden_size, "layers": layers, "vision_tokens": tokens, "rows": work.plan.rows},
        "text_tokens": [len(ids) for ids in prompts],
        **run.pair.as_json(),
        "gemm_share": statistics.median(
            flops / seconds / near for seconds, near in zip(run.pair.ours, run.rates, strict=True)
        ),
        "step_flops": flops,
        "matmul_flops_per_s": {"median": rate, "runs": run.rates},
        "max_abs_diff": run.difference,
        "max_abs_peer": run.largest,
        **machine(dtype),
    }


@dataclass(frozen=True)
class Run:
    pair: Pair
    rates: list[float]
    difference: float
    largest: float


def stepwise(work: Work, steps: int, dtype: torch.dtype, progress: Progress = quiet) -> Run:
    config = work.transformer.config
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(1, config.latent_channel, *work.plan.latent_grid, generator=generator)
    rows = torch.randn(1, work.plan.rows, work.width, generator=generator)
    text = encode_text(work.transformer, list(work.prompts))
    statics = [packed(work.transformer, work.plan, ids, work.domain) for ids in work.prompts]
    tokens = work.plan.latent_grid[0] * work.plan.patches(config.latent_patch_size) + work.plan.rows
    taken: list[tuple[Timing, Timing]] = []
    rates: list[float] = []
    differences: list[float] = []
    largest: list[float] = []

    def branches(state: Tensor, timestep: int, guided: bool) -> tuple[Tensor, Tensor]:
        video = state[:, : latents.numel()].view(latents.shape)
        actions = state[:, latents.numel() :].view(rows.shape)
        time = torch.tensor([float(timestep)])
        rates.append(matmul_rate(dtype, tokens, config.hidden_size, config.intermediate_size))
        sides = {
            "ours": lambda: _ours(work, text, video, actions, time),
            "peer": lambda: torch.stack([_peer(work, static, video, actions, time[0]) for static in statics]),
        }
        found: dict[str, Timing] = {}
        for side in sorted(sides, reverse=bool(len(taken) % 2)):  # who goes first changes from step to step
            progress(f"step {len(taken) + 1} of {steps}, {side}")
            found[side] = timed(sides[side])
        taken.append((found["ours"], found["peer"]))
        ours, peer = found["ours"].result, found["peer"].result
        differences.append(float((ours - peer).abs().max()))
        largest.append(float(peer.abs().max()))
        return ours[:1], ours[1:]

    settings = SamplerSpec(solver="unipc", steps=steps, shift=5.0, guidance=3.0)
    start = torch.cat([latents.flatten(1), rows.flatten(1)], dim=1)
    denoise(branches, start, settings)
    return Run(pair_of(taken), rates, max(differences), max(largest))


def _ours(work: Work, text: TextCache, video: Tensor, actions: Tensor, time: Tensor) -> Tensor:
    """(2, M) flat velocities with and without the prompt, zero at what is given."""
    out = velocity(
        work.transformer, work.plan, text, [[0], [1]], video, actions, time, [work.domain], ("video", "action")
    )
    if out.video is None or out.action is None:
        raise InputError("bench nano-slice needs a plan that denoises video and actions")
    rows = torch.zeros(2, *actions.shape[1:])
    rows[:, list(work.plan.noisy_rows)] = out.action
    return torch.cat([out.video.flatten(1), rows.flatten(1)], dim=1)


def _peer(work: Work, static: dict[str, Any], video: Tensor, actions: Tensor, time: Tensor) -> Tensor:
    found = packed_velocity(work.transformer, static, video[0], actions[0], time)
    return torch.cat([found[0].flatten(), found[1][:, : work.width].flatten()])


def step_flops(work: Work) -> int:
    """Multiplications and additions that our forward of both branches needs: products of the layers, and attention. Not
    counted: the text half, embedding and heads, everything element by element."""
    config, plan = work.transformer.config, work.plan
    hidden, heads = config.hidden_size, config.num_attention_heads * config.head_dim
    keys = 2 * config.num_key_value_heads * config.head_dim
    mlp = (3 if config.hidden_act == "silu" else 2) * config.intermediate_size
    per_frame = plan.patches(config.latent_patch_size)
    tokens = plan.latent_grid[0] * per_frame + plan.rows
    wanted = len(plan.noisy_frames) * per_frame + len(plan.noisy_rows)
    products = attention = 0
    for layer in range(config.num_hidden_layers):
        shown = wanted if layer == config.num_hidden_layers - 1 else tokens
        entering = 1 if layer == 0 else 2
        products += hidden * (entering * (tokens * keys + shown * heads) + 2 * shown * (heads + mlp))
        attention += sum(2 * shown * (tokens + len(ids)) * heads for ids in work.prompts)
    return 2 * (products + attention)
