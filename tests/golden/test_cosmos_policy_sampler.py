"""Cosmos Policy's sampler and network with the recorded tiny weights: schedules, paths, forwards and whole samples."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from cosmos_robot.actions.normalization import Normalizer
from cosmos_robot.backbone.cosmos3.sampler import seeded_normal
from cosmos_robot.backbone.predict2.edm import denoise, noise_levels, power_law, scaling, start_noise, varied_range
from cosmos_robot.backbone.predict2.load import load_network
from cosmos_robot.backbone.predict2.network import Given, network_output
from cosmos_robot.backbone.predict2.sampler import sample
from cosmos_robot.backbone.predict2.training_noise import HybridNoise
from cosmos_robot.contract import Normalization, Statistics, load_contract
from cosmos_robot.latent_frames.fill import action_rows, injected, values
from cosmos_robot.latent_frames.layout import FrameLayout, layout_of
from cosmos_robot.latent_frames.volumes import mean_of

TAGS = {
    "fp32_exact_rope": ("exact", torch.float32),
    "fp32_bf16_rope": ("bfloat16", torch.float32),
    "bf16_as_released": ("bfloat16", torch.bfloat16),
}
STAGES = {
    "value_full_prefix": "value",
    "value_of_future_state": "value_of_future",
    "qvalue_of_state_action": "q_value",
}


def tolerance(tag: str) -> float:
    """Absolute: kernels differ in bfloat16, nowhere else."""
    return 5e-2 if tag == "bf16_as_released" else 1e-4


@functools.cache
def network(path: Path, tag: str):
    rope, dtype = TAGS[tag]
    return load_network(path, rope=rope, dtype=dtype).transformer


@pytest.fixture
def net(golden):
    return lambda tag: network(golden.path("cosmos_policy/network/tiny_net.safetensors"), tag)


@pytest.mark.golden("cosmos_policy/sampler", key="schedules")
def test_schedules(case) -> None:
    if "intervals" in case:
        found = power_law(case["intervals"], case["sigma_min"], case["sigma_max"], case["order"])
        np.testing.assert_allclose(found, case["time_steps_float64"], rtol=1e-12)
        return
    levels = noise_levels(case["num_steps"], case["sigma_min"], case["sigma_max"])
    assert len(levels) == case["num_denoiser_calls"]
    np.testing.assert_array_equal(np.float32(levels), np.float32(case["denoiser_call_sigmas"]))


@pytest.mark.golden("cosmos_policy/sampler", key="trajectories")
def test_paths(case, golden) -> None:
    stored, topic = golden.arrays("cosmos_policy/sampler_trajectories"), golden.json("cosmos_policy/sampler")
    target, asked = torch.from_numpy(stored["target"]), []
    formulas = {
        "shrink": lambda x, s: target + topic["shrink_a"] * (x - target) / (1 + s),
        "gaussian_posterior": lambda x, s: (x + s * s * target) / (1 + s * s),
        "tanh": lambda x, s: torch.tanh(x / (1 + s)) + 0.1 * target,
    }

    def denoiser(x: torch.Tensor, level: float) -> torch.Tensor:
        asked.append((x, level))
        return formulas[case["denoiser"]](x, level)

    start = torch.from_numpy(stored[f"start_seed{case['seed']}"])
    out = denoise(denoiser, start, noise_levels(case["num_steps"], case["sigma_min"], case["sigma_max"]))
    assert [level for _, level in asked] == case["call_sigmas"]
    near = {"atol": 2e-5 * float(start.abs().max()), "rtol": 0}
    torch.testing.assert_close(
        torch.stack([x for x, _ in asked]), torch.from_numpy(stored[f"{case['case']}_x"]), **near
    )
    torch.testing.assert_close(out, torch.from_numpy(stored[f"{case['case']}_out"]), **near)


@pytest.mark.golden("cosmos_policy/sampler", key="initial_noise")
def test_start_noise(case) -> None:
    whole, seed = start_noise([case["seed"]], (16, 9, 28, 28)), case["seed"]
    flat = whole.flatten()
    np.testing.assert_array_equal(flat[:32], np.float32(case["shape_1_16_9_28_28_first32"]))
    np.testing.assert_array_equal(flat[-4:], np.float32(case["last4"]))
    assert float(flat.double().sum()) == pytest.approx(case["sum_float64"], abs=1e-6)
    assert float(whole[0, 3, 2, 5, 7]) == np.float32(case["index_0_3_2_5_7"])
    np.testing.assert_array_equal(
        start_noise([seed], (16, 11, 28, 28)).flatten()[:4], np.float32(case["shape_1_16_11_28_28_first4"])
    )
    pair = seeded_normal(np.random.RandomState(seed), (2, 16, 9, 4, 4))
    assert pair[1, 0, 0, 0, 0] == np.float32(case["shape_2_16_9_4_4_index_1_0_0_0_0"])


@pytest.mark.golden("cosmos_policy/sampler", key="variance_scale")
def test_varied_range(case) -> None:
    low, high = varied_range(case["seed"], 4, 80) if case["use_variance_scale"] else (4, 80)
    assert (low, high) == pytest.approx((case["sigma_min"], case["sigma_max"]), rel=1e-7)
    start = start_noise([case["seed"]], tuple(case["start_shape"][1:])) * high
    np.testing.assert_allclose(start.flatten()[:8], case["start_first8"], rtol=1e-6)


@pytest.mark.golden("cosmos_policy/scaling_and_sigma", key="sigma_draws")
def test_training_noise(case) -> None:
    plain = HybridNoise(
        case["lognormal_probability"], case["p_mean"], case["p_std"], case["uniform_range"][0], case["uniform_range"][1]
    )
    assert plain == HybridNoise()
    scaled = HybridNoise.of_frames(case["state_t"])
    assert scaled.factor == pytest.approx(case["multiplier"])
    for noise, drawn in ((plain, case["sample_t"]), (scaled, case["training_draw"])):
        numbers = drawn["choice_uniform"], drawn["lognormal_cdf_uniform"], drawn.get("uniform_values", [])
        np.testing.assert_allclose(noise.levels(*numbers), np.ravel(drawn["sigma"]), rtol=1e-6)


@pytest.mark.golden("cosmos_policy/network/network")
@pytest.mark.parametrize("tag", TAGS)
def test_forward(case, tag, golden, net) -> None:
    stored = golden.arrays("cosmos_policy/network/forward")

    def array(name: str) -> torch.Tensor:
        return torch.from_numpy(stored[f"{case['case']}_{name}"])

    clean = array("condition_mask_frames").bool()
    given = Given(array("x"), clean, array("crossattn_emb"))
    with torch.no_grad():
        found = network_output(net(tag), array("x"), array("timesteps")[:, None, :, None, None], given)
    torch.testing.assert_close(found, array(f"out_{tag}"), atol=tolerance(tag), rtol=0)
    angles = array(f"rope_angles_{'exact' if TAGS[tag][0] == 'exact' else 'bf16'}")
    cos, sin = net(tag).rope(given.latents)
    torch.testing.assert_close(cos, angles.cos(), atol=1e-6, rtol=0)
    torch.testing.assert_close(sin, angles.sin(), atol=1e-6, rtol=0)


def test_the_network_is_the_recorded_one(golden, net) -> None:
    recorded, config = golden.json("cosmos_policy/network/network"), net("fp32_exact_rope").config
    stated = recorded["config"]
    assert config.num_attention_heads == stated["num_heads"] and config.num_layers == stated["num_blocks"]
    assert config.num_attention_heads * config.attention_head_dim == stated["model_channels"]
    assert config.in_channels == stated["in_channels"] + 1 and config.out_channels == stated["out_channels"]
    assert config.adaln_lora_dim == stated["adaln_lora_dim"] and config.mlp_ratio == stated["mlp_ratio"]
    assert config.text_embed_dim == stated["crossattn_emb_channels"]
    assert net("fp32_exact_rope").num_parameters() == recorded["num_parameters"]


class Run:
    """One recorded run: its stages, sampled by us."""

    def __init__(self, case: dict, tag: str, golden, network):
        stored = golden.arrays("cosmos_policy/network/samples")
        self.case, self.network, self.contract = case, network, load_contract(f"cosmos-policy-{case['suite']}")
        self.layout: FrameLayout = layout_of(self.contract)
        self.text = torch.from_numpy(stored[f"{case['suite']}_text"])
        proprio = torch.tensor([case["results"][tag]["policy"]["normalized_proprio"]])
        latents = torch.from_numpy(stored[f"{case['suite']}_clean_latent"])
        self.start = injected(latents, self.layout, {"state": proprio.bfloat16().float()})
        self.asked: list[tuple[torch.Tensor, float]] = []

    def sampled(self, mode: str, latents: torch.Tensor, call: dict) -> torch.Tensor:
        clean, spec = torch.tensor([self.layout.clean(mode)]), self.contract.model.sampler
        levels = noise_levels(call["num_steps"], spec.sigma_min, spec.sigma_max)
        assert len(levels) == call["network_calls"]
        for level, recorded in zip(levels, call.get("timesteps_per_call", ()), strict=False):
            ours = torch.where(clean[0], 0.0, scaling(torch.tensor(level)).time)
            np.testing.assert_allclose(ours, recorded, atol=5e-3)
        self.asked = []
        given = Given(latents, clean, self.text)
        return sample(
            self.network, given, [call["seed"]], levels, watch=lambda x, level: self.asked.append((x.clone(), level))
        )


@pytest.mark.golden("cosmos_policy/network/samples", key="runs")
@pytest.mark.parametrize("tag", TAGS)
def test_whole_samples(case, tag, golden, net) -> None:
    if tag not in case["results"]:
        pytest.skip(f"{tag} was not recorded")
    stored, near = golden.arrays("cosmos_policy/network/samples"), {"atol": tolerance(tag), "rtol": 0}
    run, recorded, prefix = Run(case, tag, golden, net(tag)), case["results"][tag], f"{case['suite']}_{tag}"
    policy = run.sampled("policy", run.start, recorded["policy"]["call"])
    if f"{prefix}_policy_latent" in stored:
        torch.testing.assert_close(policy, torch.from_numpy(stored[f"{prefix}_policy_latent"]), **near)
    check_inputs(run, stored.get(f"{prefix}_policy_net_inputs"))
    check_policy(run, policy, recorded["policy"], tag)
    futures = [run.sampled("world_model", policy, call) for call in recorded["world_model"]["calls"]]
    if f"{prefix}_world_model_latents" in stored:
        expected = torch.from_numpy(stored[f"{prefix}_world_model_latents"])
        torch.testing.assert_close(torch.cat(futures)[:, :, -expected.shape[2] :], expected, **near)
    for stage, mode in STAGES.items():
        start = policy if mode == "q_value" else futures[0]
        members = [run.sampled(mode, start, call) for call in recorded[stage]["calls"]]
        means = [float(mean_of(member[:, :, run.layout.index("value")])) for member in members]
        np.testing.assert_allclose(means, recorded[stage]["member_raw_means"], **near)
        last = stored.get(f"{prefix}_{stage}_value_frame_last")
        if last is not None:
            torch.testing.assert_close(members[-1][:, :, run.layout.index("value")], torch.from_numpy(last), **near)


def check_inputs(run: Run, recorded: np.ndarray | None) -> None:
    """What entered the network at the first and the last call."""
    if recorded is None:
        return
    clean = torch.tensor(run.layout.clean("policy"))
    for (state, level), expected in zip((run.asked[0], run.asked[-1]), torch.from_numpy(recorded), strict=True):
        scaled = torch.where(clean[None, None, :, None, None], run.start, scaling(torch.tensor(level)).into * state)
        torch.testing.assert_close(scaled[0], expected, atol=1e-4, rtol=0)


def check_policy(run: Run, latents: torch.Tensor, recorded: dict, tag: str) -> None:
    """Actions in the robot's units and the value."""
    columns = {key: tuple(run.case["statistics"][f"actions_{key}"]) for key in ("min", "max")}
    spec = Normalization(method="minmax", formula="from_low", scale_floor=1e-12, statistics=Statistics(**columns))
    width = len(columns["min"])
    rows = action_rows(latents, run.layout, run.contract.model.chunk, width)
    found = Normalizer(spec, width).denormalize(rows[0].numpy())
    np.testing.assert_allclose(found, recorded["actions"], atol=4 * tolerance(tag))
    assert float(values(latents, run.layout)) == pytest.approx(recorded["value_prediction"], abs=tolerance(tag))
