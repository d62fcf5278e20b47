"""Cosmos Policy's latent frames: vectors in and out of them, masks, layouts, and what they learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cosmos_robot.backbone.predict2.edm import loss_weight, scaling
from cosmos_robot.backbone.predict2.keys import to_published
from cosmos_robot.backbone.predict2.load import load_network
from cosmos_robot.backbone.predict2.network import Given, predict_clean
from cosmos_robot.contract import load_contract
from cosmos_robot.data.returns import value_targets
from cosmos_robot.errors import CosmosRobotError, InputError
from cosmos_robot.latent_frames.fill import injected
from cosmos_robot.latent_frames.layout import FrameLayout, layout_of
from cosmos_robot.latent_frames.objective import EVERY, Targets, clean_frames, frame_weights, latent_loss
from cosmos_robot.latent_frames.volumes import averaged, mean_of, put, tiled, value_of
from cosmos_robot.training.mixing import epoch_mix

MODES = {
    "policy": "policy",
    "world_model": "world_model",
    "value_full_prefix": "value",
    "value_of_future_state": "value_of_future",
    "qvalue_of_state_action": "q_value",
}
READS = {
    "none": "value",
    "mask_current_state_action_for_value_prediction": "value_of_future",
    "mask_future_state_for_qvalue_prediction": "q_value",
}


def tensors(stored: dict[str, np.ndarray], prefix: str) -> dict[str, torch.Tensor]:
    """The arrays of one case by their short names."""
    return {name.removeprefix(prefix): torch.from_numpy(a) for name, a in stored.items() if name.startswith(prefix)}


def layout_for(suite: str) -> FrameLayout:
    return layout_of(load_contract(f"cosmos-policy-{suite}"))


@pytest.mark.golden("cosmos_policy/latent_injection")
def test_vectors_in_frames(case, golden) -> None:
    stored = golden.arrays("cosmos_policy/latent_injection")
    a = tensors(stored, f"{case['case']}_")
    channels, _, height, width = case["latent_shape"]
    volume, rows = (channels, height, width), (case["chunk"], case["action_dim"])
    action, proprio = tiled(a["action"], volume), tiled(a["proprio"], volume)
    if case["stored"] == "frame":
        assert torch.equal(action, a["action_frame"]) and torch.equal(proprio, a["proprio_frame"])
    else:
        for what, made in (("action", action), ("proprio", proprio)):
            out = a["latent_in"].clone()
            for sample, frame in enumerate(case[f"{what}_indices"]):
                out[sample : sample + 1] = put(out[sample : sample + 1], frame, made[sample : sample + 1])
            assert torch.equal(out, a[f"latent_{what}_out"])
    torch.testing.assert_close(averaged(action, rows), a["clean_action"], atol=1e-6, rtol=0)
    torch.testing.assert_close(averaged(a["noisy_frame"], rows), a["noisy_action"], atol=1e-6, rtol=0)
    np.testing.assert_allclose(mean_of(a["noisy_frame"]), case["value_of_noisy_frame"], atol=1e-6)
    back = averaged(proprio, (case["proprio_dim"],))
    torch.testing.assert_close(back, a["proprio"], atol=1e-5, rtol=0)


def test_vectors_in_bfloat16_frames(golden) -> None:
    stored = golden.json("cosmos_policy/latent_injection")["bf16"]
    arrays = golden.arrays("cosmos_policy/latent_injection")
    channels, frames, height, width = stored["latent_shape"]
    action, index = torch.from_numpy(arrays["bf16_action"]), stored["action_index"]
    empty = torch.zeros(1, channels, frames, height, width).bfloat16()
    volume = put(empty, index, tiled(action, (channels, height, width)))
    assert torch.equal(volume[0, :, index].float(), torch.from_numpy(arrays["bf16_frame_as_f32"]))
    found = averaged(volume[:, :, index], tuple(action.shape[1:]))
    assert str(found.dtype) == stored["extracted_dtype"]
    torch.testing.assert_close(found.float(), torch.from_numpy(arrays["bf16_extracted_as_f32"]), atol=4e-3, rtol=0)


def test_values_of_frames(golden) -> None:
    stored = golden.json("cosmos_policy/latent_injection")["value_extraction"]
    latents = torch.from_numpy(golden.arrays("cosmos_policy/latent_injection")[stored["array"]])
    np.testing.assert_allclose(mean_of(latents[:, :, -1]), stored["index_minus_1"], atol=1e-6)
    chosen = torch.stack([latents[0, :, 3], latents[1, :, 0]])
    np.testing.assert_allclose(mean_of(chosen), stored["index_3_and_0"], atol=1e-6)
    expected = np.clip((np.array(stored["index_minus_1"]) + 1) / 2, 0, 1)
    np.testing.assert_allclose(value_of(latents[:, :, -1]), expected, atol=1e-6)


@pytest.mark.golden("cosmos_policy/latent_injection", key="errors")
def test_too_large_vectors_are_refused(case) -> None:
    if case["case"].startswith("inject"):
        with pytest.raises(InputError, match="does not fit"):
            tiled(torch.zeros(1, 65), (4, 4, 4))
    else:
        with pytest.raises(InputError, match="does not fit"):
            averaged(torch.zeros(1, 4, 4, 4), (13, 5))


@pytest.mark.golden("cosmos_policy/condition_masks", where=lambda case: case["phase"] == "inference")
def test_masks_of_inference(case) -> None:
    layout = layout_for(case["suite"])
    assert len(layout) == case["state_t"]
    assert [int(clean) for clean in layout.clean(MODES[case["mode"]])] == case["frame_mask"]
    latents = torch.zeros(1, 2, len(layout), 3, 3)
    changed = injected(latents, layout, {"state": torch.ones(1, 9)}) != 0
    assert changed.any(dim=(0, 1, 3, 4)).nonzero().flatten().tolist() == case["frames_changed_by_injection"]


@pytest.mark.golden("cosmos_policy/condition_masks", where=lambda case: case["phase"] == "training")
def test_masks_of_training(case) -> None:
    targets = Targets(value_reads=READS[case["config_flag"]])
    found = clean_frames(layout_for(case["suite"]), case["sample_types"], targets)
    assert found.int().tolist() == case["frame_mask"]


def test_frames_of_the_recorded_layouts(golden) -> None:
    for suite, recorded in golden.json("cosmos_policy/condition_masks")["latent_indices"].items():
        layout = layout_for(suite)
        now, future = layout.cameras, [f"future {camera}" for camera in layout.future_cameras]
        for when, cameras in (("current", now), ("future", future)):
            there = [i for key, i in recorded.items() if key.startswith(when) and "image" in key and i >= 0]
            assert sorted(there) == [layout.index(camera) for camera in cameras]
        assert layout.index("state") == recorded["current_proprio"]
        assert layout.index("future state") == recorded["future_proprio"]
        assert layout.index("action") == recorded["action"] and layout.index("value") == recorded["value"]


def test_recorded_layouts(golden) -> None:
    stored = golden.arrays("cosmos_policy/layouts")
    suites = sorted({name.split("_")[1] for name in stored})
    assert suites
    for suite in suites:
        a = tensors(stored, f"layout_{suite}_")
        vectors = {"action": a["actions"], "state": a["proprio"], "future state": a["future_proprio"]}
        vectors["value"] = a["value"]
        assert torch.equal(injected(a["latent"].bfloat16(), layout_for(suite), vectors).float(), a["gt_frames"])


def targets_of(config: dict) -> Targets:
    """The recorded flags as our options. ``mask_value_prediction_loss_for_policy_prediction`` takes the value from the
    targets of policy and world model, but the published code leaves it there unless another flag is set."""
    reads = next((READS[flag] for flag in READS if config.get(flag)), "value")
    weight = float(config.get("action_loss_multiplier", 1))
    if config.get("mask_loss_for_action_future_state_prediction"):
        return Targets.alone(reads, weight)
    others = weight != 1 or reads != "value"
    no_value = config.get("mask_value_prediction_loss_for_policy_prediction") and others
    kept = EVERY[:2] if no_value else EVERY
    return Targets(kept, kept, reads, weight)


@pytest.mark.golden("cosmos_policy/network/loss")
def test_losses(case, golden) -> None:
    stored, suite, rounded = golden.arrays("cosmos_policy/network/loss"), case["suite"], "bf16" in case["numerics"]
    count = case["batch"]

    def array(name: str) -> torch.Tensor:
        return torch.from_numpy(stored[f"{suite}_{name}"])[:count]

    network = load_network(
        golden.path("cosmos_policy/network/tiny_net.safetensors"),
        rope="bfloat16" if rounded or "bf16_rope" in case["numerics"] else "exact",
        dtype=torch.bfloat16 if rounded else torch.float32,
    ).transformer
    layout, targets, kinds = layout_for(suite), targets_of(case["config"]), case["sample_types"]
    vectors = {"action": array("actions"), "state": array("proprio"), "future state": array("future_proprio")}
    x0 = injected(array("clean_latent"), layout, {**vectors, "value": array("value_function_return")})
    sigma = array("sigma").flatten()
    given = Given(x0, clean_frames(layout, kinds, targets), array("text"))
    found = predict_clean(network, given, x0 + sigma[:, None, None, None, None] * array("epsilon"), sigma)
    weights = frame_weights(layout, kinds, targets)
    loss = latent_loss(found, x0, loss_weight(sigma), weights, case["loss_scale"])
    close = {"rtol": 0.05, "atol": 0.05} if rounded else {"rtol": 2e-5, "atol": 2e-5}
    np.testing.assert_allclose(loss_weight(sigma), np.array(case["weights_per_sigma"]).flatten(), rtol=1e-5)
    np.testing.assert_allclose(loss.frames, case["edm_loss_per_frame"], **close)
    np.testing.assert_allclose(loss.frames * weights, case["applied_loss_per_frame"], **close)
    np.testing.assert_allclose(loss.total.item(), case["loss"], rtol=close["rtol"])
    if not rounded:
        check_gradients(case, network, loss.total)


def check_gradients(case: dict, network: torch.nn.Module, total: torch.Tensor) -> None:
    total.backward()
    norms = {to_published(n): float(p.grad.norm()) for n, p in network.named_parameters() if p.grad is not None}
    for name, norm in case["grad_norms"].items():
        assert norms[name] == pytest.approx(norm, rel=1e-4)
    assert float(np.linalg.norm(list(norms.values()))) == pytest.approx(case["total_grad_norm"], rel=1e-4)


@pytest.mark.golden("cosmos_policy/batch_mixing")
def test_shares_of_an_epoch(case) -> None:
    counts = [case[f"{kind}_steps"] for kind in ("demo", "success_rollout", "failure_rollout")]
    mix = epoch_mix(*counts, case["demonstration_sampling_prob"], case["success_rollout_sampling_prob"])
    adjusted = [case[f"adjusted_{kind}_count"] for kind in ("demo", "success_rollout", "failure_rollout")]
    assert list(mix.places) == adjusted and len(mix) == case["epoch_length"]
    assert {place: mix.at(int(place))[0] for place in case["types"]} == case["types"]
    for place in range(len(mix)) if len(mix) <= 1000 else ():
        source, step = mix.at(place)
        assert 0 <= step < counts[("demo", "success_rollout", "failure_rollout").index(source)]


def test_scaling(golden) -> None:
    stored = golden.json("cosmos_policy/scaling_and_sigma")["scaling"]
    for kind, atol in (("float32", 1e-7), ("float64", 1e-15)):
        found = scaling(torch.tensor(stored["sigma"], dtype=getattr(torch, kind)))
        expected = stored[f"rectified_flow_{kind}"]
        for ours, theirs in (("skip", "c_skip"), ("out", "c_out"), ("into", "c_in"), ("time", "c_noise")):
            np.testing.assert_allclose(getattr(found, ours), expected[theirs], atol=atol)
    sigma = torch.tensor(stored["sigma"], dtype=torch.float32)
    assert torch.equal(scaling(sigma).time.bfloat16().float(), torch.tensor(stored["c_noise_bf16"]))
    weights = [float("inf") if w == "Infinity" else w for w in stored["loss_weight_float32"]]
    np.testing.assert_allclose(loss_weight(sigma), weights, rtol=1e-6)


@pytest.mark.golden("cosmos_policy/returns_and_padding", key="returns")
def test_values_are_between_minus_one_and_one(case) -> None:
    targets = value_targets(case["num_steps"], case["terminal_reward"], case["gamma"])
    frame = injected(
        torch.zeros(len(targets), 2, 1, 2, 2), FrameLayout(("action",)), {"action": torch.from_numpy(targets)[:, None]}
    )
    assert frame.abs().max() <= 1


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(CosmosRobotError, match="did you mean 'action'"):
        layout_for("libero").trained("policy", ("actions",))
