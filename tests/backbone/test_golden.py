"""Positions, schedule, noise, forward and whole sampling against numbers recorded from the reference implementation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import Cosmos3OmniTransformer

from cosmos_robot.backbone.cosmos3 import runtime, sampler
from cosmos_robot.backbone.cosmos3.layout import TokenPlan
from cosmos_robot.backbone.cosmos3.positions import action_positions, text_positions, vision_positions
from cosmos_robot.contract import SamplerSpec

DATA = Path(__file__).parents[1] / "golden" / "data" / "cosmos3"
EOS, VISION_START = 1, 2  # of the recorded prompts


def cases(file: str) -> list[dict]:
    return json.loads((DATA / f"{file}.json").read_text())["cases"]


def named(found: list[dict]):
    return [pytest.param(case, id=case["id"]) for case in found]


@pytest.fixture(scope="module")
def transformers() -> dict[str, Cosmos3OmniTransformer]:
    loaded = {}
    for backbone in ("nano", "edge"):
        config = json.loads((DATA / f"mot_config_{backbone}.json").read_text())["diffusers_config"]
        model = Cosmos3OmniTransformer(**config)
        stored = np.load(DATA / f"mot_weights_{backbone}.npz")
        state = {name: torch.from_numpy(stored[name]).view(torch.bfloat16).float() for name in stored.files}
        model.load_state_dict(state, strict=True)
        loaded[backbone] = model.eval()
    return loaded


def plan_of(case: dict, latents: torch.Tensor) -> TokenPlan:
    clean = case["plan"]
    return TokenPlan(
        latent_grid=tuple(latents.shape[2:]),
        clean_frames=tuple(i in clean["condition_frame_indexes_vision"] for i in range(latents.shape[2])),
        clean_rows=tuple(i in clean["condition_frame_indexes_action"] for i in range(case["action_rows"])),
        fps=case["fps"],
        action_start=clean["action_start_frame_offset"],
    )


def close(ours: torch.Tensor, recorded: np.ndarray, tolerance: float) -> None:
    torch.testing.assert_close(ours, torch.from_numpy(recorded), atol=tolerance, rtol=0)


@pytest.mark.parametrize("case", named([c for c in cases("mrope_direct") if c["kind"] == "text"]))
def test_text_positions(case):
    ours = text_positions(case["num_tokens"]) + (case["temporal_offset"] if case["use_float_positions"] else 2)
    np.testing.assert_array_equal(ours, np.float32(case["ids"]))


def with_fps(case: dict) -> bool:
    return case["kind"] == "vae" and case["fps"] is not None and case["reset_spatial_indices"]


VISION = [c for c in cases("mrope_direct") if with_fps(c) and c["temporal_compression_factor"] == 4]
ACTION = [c for c in cases("mrope_direct") if with_fps(c) and c["base_temporal_compression_factor"] == 4]


@pytest.mark.parametrize("case", named(VISION))
def test_vision_positions(case):
    ours = vision_positions(*case["grid"], case["fps"], case["temporal_offset"], case["base_fps"])
    np.testing.assert_array_equal(ours, np.float32(case["ids"]))


@pytest.mark.parametrize("case", named(ACTION))
def test_action_positions(case):
    start = case["start_frame_offset"]
    ours = action_positions(case["grid"][0], case["fps"], case["temporal_offset"], start, case["base_fps"])
    np.testing.assert_array_equal(ours, np.float32(case["ids"]))


@pytest.mark.parametrize("case", named(cases("unipc_schedule")))
def test_flow_schedule(case):
    timesteps, sigmas = sampler.flow_schedule(case["num_steps"], case["shift"])
    assert timesteps == case["timesteps"]
    np.testing.assert_allclose(sigmas, case["sigmas"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("case", named(cases("unipc_trajectories")))
def test_unipc_trajectory(case):
    visited, velocities = [], iter(case["velocity"])

    def field(state: torch.Tensor, timestep: int) -> torch.Tensor:
        visited.append(state[0])
        assert timestep == case["timesteps"][len(visited) - 1]
        return torch.tensor([next(velocities)])

    settings = SamplerSpec(solver="unipc", steps=case["num_steps"], shift=case["shift"])
    end = sampler.integrate(field, torch.tensor([case["x_start"]]), settings)
    close(torch.stack(visited), np.float32(case["x_before_step"]), 1e-5)
    close(end[0], np.float32(case["x_end"]), 1e-5)


@pytest.mark.parametrize("case", named(cases("initial_noise")))
def test_noise_of_a_seed(case):
    recorded = np.float32(case["values"])
    recorded = recorded.reshape(-1, recorded.shape[-1])
    rows, width = recorded.shape
    plan = TokenPlan((1, 1, 1), (True,), (True,) + (False,) * (rows - 1) if rows > 1 else (False,), 10.0, 0)
    ours = sampler.draw_noise(plan, 1, width, width - 1, [case["seed"]])
    assert ours.video is None
    np.testing.assert_array_equal(ours.action[0], recorded[list(plan.noisy_rows), :-1])


@pytest.mark.parametrize("case", named([c for c in cases("mot_forward") if c.get("kind") is None]))
@torch.no_grad()
def test_forward(case, transformers):
    arrays = np.load(DATA / f"mot_forward_{case['backbone']}.npz")
    get = lambda name: torch.from_numpy(arrays[f"{case['id']}__{name}"])  # noqa: E731
    latents, rows = get("vision_in"), get("action_in").unsqueeze(0)
    plan = plan_of(case, latents)
    transformer = transformers[case["backbone"]]
    want = (("action",) if plan.noisy_rows else ()) + (("video",) if plan.noisy_frames else ())
    out = runtime.velocity(
        transformer, plan, runtime.encode_text(transformer, [get("text_ids").tolist()]), [0], latents, rows,
        torch.tensor([case["timestep"]]), [case["domain_id"]], want,
    )  # fmt: skip
    if out.action is not None:
        close(out.action[0], get("pred_action").numpy()[list(plan.noisy_rows)], 1e-5)
    if out.video is not None:
        close(out.video, get("pred_vision").numpy(), 1e-5)


SAMPLED = [c for c in cases("sampling") if c["guidance_interval"] is None and not c["normalize_cfg"]]


@pytest.mark.parametrize("case", named(SAMPLED))
def test_whole_sampling(case, transformers):
    arrays = np.load(DATA / f"sampling_{case['backbone']}.npz")
    get = lambda name: arrays[f"{case['id']}__{name}"]  # noqa: E731
    latents = torch.from_numpy(get("x0_vision_0"))
    plan, width = plan_of(case, latents), case["raw_action_dim"]
    transformer = transformers[case["backbone"]]
    noise = sampler.draw_noise(plan, latents.shape[1], case["max_action_dim"], width, case["seeds"])
    flat = get("initial_noise_flat_0")
    np.testing.assert_array_equal(noise.video[0], flat[: latents.numel()].reshape(latents.shape[1:])[:, 1:])
    prompts = [[*ids, EOS, VISION_START] for ids in (case["text_ids"][0], case["uncond_text_ids"][0])]
    given = sampler.Given(
        text_index=[0],
        latents=latents,
        action_rows=torch.from_numpy(get("action_model_in_0")).unsqueeze(0),
        domain_id=case["domain_id"],
        action_width=width,
    )
    settings = SamplerSpec(solver="unipc", steps=case["num_steps"], shift=case["shift"], guidance=case["guidance"])
    text = runtime.encode_text(transformer, prompts)
    out = sampler.sample(transformer, plan, text, given, settings, noise, unconditional=1)
    close(out.video, get("out_vision_0"), 1e-4)
    if plan.noisy_rows:
        robot = out.action[0].numpy() * get("norm_scale") + get("norm_offset")
        recorded = get("out_action_external_0")[-len(robot) :]
        scale = np.abs(recorded).max(0)
        np.testing.assert_allclose(robot / scale, recorded / scale, atol=1e-4, rtol=0)
