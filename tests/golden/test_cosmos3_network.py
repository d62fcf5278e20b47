"""The Cosmos 3 network with the recorded tiny weights: its parts, one forward, and whole denoising loops."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from diffusers import Cosmos3OmniTransformer
from diffusers.models.transformers.transformer_cosmos3 import DomainAwareLinear
from golden_files import GoldenFolder

from cosmos_robot.backbone.cosmos3.layout import TokenPlan, token_plan
from cosmos_robot.backbone.cosmos3.runtime import domain_linear, encode_text, time_embedding, velocity
from cosmos_robot.backbone.cosmos3.sampler import Given, draw_noise, sample
from cosmos_robot.backbone.cosmos3.text import frame_tokens
from cosmos_robot.backbone.cosmos3.tiny import tiny_transformer
from cosmos_robot.contract import SamplerSpec

EOS, VISION_START = 1, 2  # of the recorded prompts
FILES = {
    "nano": (
        "cosmos3/mot_config_nano",
        "cosmos3/mot_weights_nano",
        "cosmos3/mot_forward_nano",
        "cosmos3/sampling_nano",
    ),
    "edge": (
        "cosmos3/mot_config_edge",
        "cosmos3/mot_weights_edge",
        "cosmos3/mot_forward_edge",
        "cosmos3/sampling_edge",
    ),
}


@functools.cache
def transformer_of(golden: GoldenFolder, backbone: str) -> Cosmos3OmniTransformer:
    config, weights, *_ = FILES[backbone]
    model = Cosmos3OmniTransformer(**golden.json(config)["diffusers_config"])
    state = {k: torch.from_numpy(v).view(torch.bfloat16).float() for k, v in golden.arrays(weights).items()}
    model.load_state_dict(state, strict=True)
    return model.eval()


def close(ours: torch.Tensor, recorded: np.ndarray, tolerance: float = 1e-5) -> None:
    """Within ``tolerance`` of the recorded size."""
    size = max(1.0, float(np.abs(recorded).max(initial=0)))
    torch.testing.assert_close(ours, torch.from_numpy(recorded), atol=tolerance * size, rtol=0)


def recorded_plan(case: dict, latents: torch.Tensor) -> TokenPlan:
    """The plan that the package makes, which must be the recorded one."""
    plan = token_plan(
        case["mode"], case["video_frames"], case["action_rows"], tuple(latents.shape[3:]), case["fps"],
        case["num_history_actions"],
    )  # fmt: skip
    clean = case["plan"]
    assert [i for i, c in enumerate(plan.clean_frames) if c] == clean["condition_frame_indexes_vision"]
    assert [i for i, c in enumerate(plan.clean_rows) if c] == clean["condition_frame_indexes_action"]
    assert plan.action_start == clean["action_start_frame_offset"] and plan.latent_grid == tuple(latents.shape[2:])
    return plan


@pytest.mark.golden("cosmos3/modules", where=lambda case: "num_domains" in case)
@torch.no_grad()
def test_weights_of_a_domain(case, golden) -> None:
    arrays = golden.arrays_of("cosmos3/modules", case["id"])
    module = DomainAwareLinear(case["input_size"], case["output_size"], case["num_domains"])
    module.load_state_dict({f"{k}.weight": torch.from_numpy(arrays[f"{k}_weight"]) for k in ("fc", "bias")})
    x = torch.from_numpy(arrays["x"])
    together = domain_linear(module, x[:, None], case["domain_id"])[:, 0]
    close(together, arrays["y"])
    for row, (domain, y) in enumerate(zip(case["domain_id"], arrays["y"], strict=True)):
        close(domain_linear(module, x[row : row + 1, None], [domain])[:, 0], y[None])


@pytest.mark.golden("cosmos3/modules", where=lambda case: "num_domains" not in case)
@torch.no_grad()
def test_time_embedding(case, golden) -> None:
    arrays = golden.arrays_of("cosmos3/modules", case["id"])
    transformer = tiny_transformer(8, 0, hidden_size=case["hidden"], intermediate_size=8, num_hidden_layers=1)
    names = {"linear_1": "mlp_0", "linear_2": "mlp_2"}
    state = {
        f"{ours}.{part}": torch.from_numpy(arrays[f"{theirs}_{part}"])
        for ours, theirs in names.items()
        for part in ("weight", "bias")
    }
    transformer.time_embedder.load_state_dict(state)
    timesteps = torch.tensor(case["t_scaled"]) / transformer.config.timestep_scale
    close(time_embedding(transformer, timesteps, torch.float32), arrays["y"])


@pytest.mark.golden("cosmos3/mot_forward", where=lambda case: "kind" not in case)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_forward(case, golden, dtype) -> None:
    forward(case, golden, dtype)


@pytest.mark.golden("cosmos3/mot_forward", where=lambda case: "kind" in case)
def test_samples_that_were_packed_together(case, golden) -> None:
    """Ours never mixes samples, so each must come out as it did in the pack."""
    arrays = golden.arrays_of(FILES[case["backbone"]][2], case["id"])
    singles = {c["id"]: c for c in golden.cases("cosmos3/mot_forward")}
    for number, name in enumerate(case["sample_ids"]):
        packed = {part: arrays.get(f"pred_{part}_{number}") for part in ("vision", "action")}
        forward(singles[name], golden, torch.float32, packed)


@torch.no_grad()
def forward(case: dict, golden, dtype: torch.dtype, recorded: dict | None = None) -> None:
    arrays = golden.arrays_of(FILES[case["backbone"]][2], case["id"])
    recorded = recorded or {part: arrays.get(f"pred_{part}") for part in ("vision", "action")}
    transformer = transformer_of(golden, case["backbone"])
    if dtype != torch.float32:
        transformer = bfloat16_of(golden, case["backbone"])
    latents, rows = (torch.from_numpy(arrays[f"{part}_in"]) for part in ("vision", "action"))
    plan = recorded_plan(case, latents)
    text = encode_text(transformer, [arrays["text_ids"].tolist()])
    want = (("action",) if plan.noisy_rows else ()) + (("video",) if plan.noisy_frames else ())
    out = velocity(
        transformer, plan, text, [0], latents, rows[None], torch.tensor([case["timestep"]]), [case["domain_id"]], want
    )
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    if out.action is not None:
        close(out.action[0], recorded["action"][list(plan.noisy_rows)], tolerance)
    if out.video is not None:
        close(out.video, recorded["vision"], tolerance)


@functools.cache
def bfloat16_of(golden: GoldenFolder, backbone: str) -> Cosmos3OmniTransformer:
    model = Cosmos3OmniTransformer(**golden.json(FILES[backbone][0])["diffusers_config"])
    model.load_state_dict(transformer_of(golden, backbone).state_dict())
    return model.to(torch.bfloat16).eval()


@pytest.mark.golden("cosmos3/sampling")
def test_whole_sampling(case, golden) -> None:
    """Noise of the seeds, guidance and clean entries: from what the reference is given to what it returns."""
    shapes = {golden.arrays_of(FILES[case["backbone"]][3], case["id"])[f"x0_vision_{i}"].shape
              for i in range(case["batch"])}  # fmt: skip
    together = list(range(case["batch"]))
    for members in [together] if len(shapes) == 1 else [[i] for i in together]:
        sampled(case, golden, members)


@torch.no_grad()
def sampled(case: dict, golden, members: list[int]) -> None:
    transformer = transformer_of(golden, case["backbone"])
    arrays = golden.arrays_of(FILES[case["backbone"]][3], case["id"])
    width, count = case["raw_action_dim"] or case["max_action_dim"], len(members)
    latents = torch.cat([torch.from_numpy(arrays[f"x0_vision_{i}"]) for i in members])
    plan, seeds = recorded_plan(case, latents), [case["seeds"][i] for i in members]
    noise = draw_noise(plan, latents.shape[1], case["max_action_dim"], width, seeds)
    check_start(plan, noise, latents, [arrays[f"initial_noise_flat_{i}"] for i in members])
    texts = [
        frame_tokens(case[name][i], EOS, VISION_START) for name in ("text_ids", "uncond_text_ids") for i in members
    ]
    given = Given(
        text_index=list(range(count)),
        latents=latents,
        action_rows=torch.stack([torch.from_numpy(arrays[f"action_model_in_{i}"]) for i in members]),
        domain_id=case["domain_id"],
        action_width=width,
        unconditional=list(range(count, 2 * count)),
    )
    interval = case["guidance_interval"]
    settings = SamplerSpec(
        solver="unipc", steps=case["num_steps"], shift=case["shift"], guidance=case["guidance"],
        guidance_interval=None if interval is None else tuple(interval), guidance_clamp=case["normalize_cfg"],
    )  # fmt: skip
    out = sample(transformer, plan, encode_text(transformer, texts), given, settings, noise)
    for row, i in enumerate(members):
        if out.video is not None:
            close(out.video[row : row + 1], arrays[f"out_vision_{i}"])
        if out.action is not None:
            scale = arrays["norm_scale"]
            robot = out.action[row].numpy() * scale + arrays["norm_offset"]
            recorded = arrays[f"out_action_external_{i}"][list(plan.noisy_rows)]
            close(torch.from_numpy(robot / scale), recorded / scale)


def check_start(plan: TokenPlan, noise, latents: torch.Tensor, recorded: list[np.ndarray]) -> None:
    """The recorded starts: [vision | action] with clean entries in place."""
    for i, flat in enumerate(recorded):
        size = latents[i].numel()
        if noise.video is not None:
            vision = flat[:size].reshape(latents.shape[1:])[:, list(plan.noisy_frames)]
            np.testing.assert_array_equal(noise.video[i], vision)
        if noise.action is not None:
            rows = flat[size:].reshape(plan.rows, -1)[list(plan.noisy_rows)]
            np.testing.assert_array_equal(noise.action[i], rows[:, : noise.action.shape[2]])
