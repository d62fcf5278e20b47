"""Noise levels, losses and weight averages of Cosmos 3's training."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import Tensor

from cosmos_robot.training.objective import (
    TIMESTEPS,
    Draws,
    draw,
    noise_levels,
    noised,
    power_decay,
    power_exponent,
    sample_losses,
    train_shifts,
)
from cosmos_robot.training.optimise import Average


def close(ours, recorded, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(ours), np.asarray(recorded, np.float64), rtol=tolerance, atol=1e-6)


@pytest.mark.golden("cosmos3/train_sigmas")
def test_noise_levels(case) -> None:
    if "torch_cpu_generator_seed" in case:
        generator = torch.Generator().manual_seed(case["torch_cpu_generator_seed"])
        shifts = torch.tensor(case["shifts"])
        draws = draw(case["distribution"], len(shifts), generator)
    else:
        shifts = case["shift"]
        names = ("uniform_draws", "normal_draws"), ("uniform_fallback_draws",), ("mixing_draws",)
        draws = Draws(*(next((torch.tensor(case[n]) for n in group if n in case), None) for group in names))
    close(noise_levels(case["distribution"], draws, shifts), case["sigmas"])


@pytest.mark.golden("cosmos3/train_noise_level")
def test_noise_level_of_a_canvas(case) -> None:
    kind = "image" if case["is_image_batch"] else "video"
    count = len(case["draws"])
    shifts = train_shifts(case["shift_config"], count, case["resolutions"], case["num_tokens"], kind)
    sigmas = noise_levels(case["distribution"], Draws(torch.tensor(case["draws"])), shifts)
    close(sigmas, case["sigmas"])
    close(sigmas * TIMESTEPS, case["timesteps"])


@pytest.mark.golden("cosmos3/flow_losses")
def test_losses(case, golden) -> None:
    arrays = golden.arrays_of("cosmos3/flow_losses", case["id"])
    means = {part: checked_losses(case, arrays, part) for part in ("vision", "action")}
    total = case["loss_scale"] * means["vision"] + case["action_loss_weight"] * means["action"]
    close(total, case["loss_total"])


def checked_losses(case: dict, arrays: dict[str, np.ndarray], part: str) -> float:
    """The mean over samples, after comparing noised inputs, targets and the loss of each sample."""
    losses = []
    for i in range(case["batch"]):
        get = functools.partial(lambda name, i: torch.from_numpy(arrays[f"{name}_{part}_{i}"]), i=i)
        noisy = (1 - get("cond")).reshape(1, -1)
        if not noisy.any():
            losses.append(float(sample_losses(*(batched(get(n)) for n in ("pred", "target")), noisy)))
            continue
        clean, eps = get("x0"), get("eps")
        width, channels = columns(case, part, i, clean)
        xt = noised(batched(clean), batched(eps), torch.tensor([case["sigmas"][i]]), noisy)
        keep = torch.ones(clean.shape[-1]) if channels is None else channels.float()
        if part == "action":
            xt = xt * torch.nn.functional.pad(keep[:width], (0, clean.shape[-1] - width))
        close(xt, batched(get("xt")), 1e-5)
        close(eps - clean, get("target"))
        pred, target = (batched(get(name)) for name in ("pred", "target"))
        if part == "action":
            pred, target = pred[..., :width], target[..., :width]
        found = sample_losses(pred, target, noisy, channels, case["normalize_loss_by_active"])
        losses.append(float(found))
    recorded = case[f"loss_{part}_per_sample"]
    close(losses, [0.0] * case["batch"] if recorded is None else recorded)
    close(np.mean(losses), case[f"loss_{part}"])
    return float(np.mean(losses))


def columns(case: dict, part: str, i: int, clean: Tensor) -> tuple[int, Tensor | None]:
    """Width of the action, and which of its columns are valid."""
    if part == "vision":
        return clean.shape[-1], None
    width = (case["raw_action_dim"] or [None] * case["batch"])[i] or clean.shape[-1]
    mask = case["action_valid_mask"][i] if case["action_valid_mask"] else None
    return width, None if mask is None else torch.tensor(mask)[:width]


def batched(x: Tensor) -> Tensor:
    """Latents are recorded with an axis of one sample, rows without."""
    return x if x.ndim == 5 else x[None]


@pytest.mark.golden("cosmos3/ema")
def test_weight_average(case) -> None:
    exponent = power_exponent(case["rate"])
    assert exponent == pytest.approx(case["exponent_gamma"], rel=1e-9)
    decay = functools.partial(power_decay, exponent, iteration_shift=case["iteration_shift"])
    close([decay(t) for t in case["iterations"]], case["beta"], 1e-9)
    module = torch.nn.Linear(1, 1, bias=False)
    average, value = Average(module, decay), module.weight.item()
    for n in range(4):
        with torch.no_grad():
            module.weight.fill_(float(n))
        average.update()
        value = decay(n) * value + (1 - decay(n)) * n
    assert average.module.weight.item() == pytest.approx(value, abs=1e-6)
