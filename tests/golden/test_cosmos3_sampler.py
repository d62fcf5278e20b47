"""Schedule, solver, guidance and noise of Cosmos 3."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from cosmos_robot.backbone.cosmos3 import sampler
from cosmos_robot.contract import SamplerSpec


def settings_of(case: dict) -> SamplerSpec:
    interval = case.get("guidance_interval")
    return SamplerSpec(
        solver="unipc",
        steps=case["num_steps"],
        shift=case["shift"],
        guidance=case.get("guidance", 1.0),
        guidance_interval=None if interval is None else tuple(interval),
        guidance_clamp=case.get("normalize_cfg", False),
    )


def tensor(values) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float32))


def close(ours: Tensor, recorded, tolerance: float = 1e-5) -> None:
    """Within ``tolerance`` of the recorded size."""
    recorded = tensor(recorded)
    size = max(1.0, float(recorded.abs().max()))
    torch.testing.assert_close(ours, recorded, atol=tolerance * size, rtol=0)


@pytest.mark.golden("cosmos3/unipc_schedule")
def test_flow_schedule(case) -> None:
    timesteps, sigmas = sampler.flow_schedule(case["num_steps"], case["shift"])
    assert timesteps == case["timesteps"]
    np.testing.assert_allclose(sigmas, case["sigmas"], atol=1e-6, rtol=0)


@pytest.mark.golden("cosmos3/unipc_trajectories")
def test_unipc_trajectory(case) -> None:
    visited, velocity = [], recorded_field(case)

    def field(state: Tensor, timestep: int) -> Tensor:
        visited.append((state[0], timestep))
        close(velocity(state[0], timestep), case["velocity"][len(visited) - 1])
        return velocity(state[0], timestep)[None]

    end = sampler.integrate(field, tensor([case["x_start"]]), settings_of(case))
    assert [timestep for _, timestep in visited] == case["timesteps"]
    close(torch.stack([state for state, _ in visited]), case["x_before_step"])
    close(end[0], case["x_end"])


def recorded_field(case: dict) -> Callable[[Tensor, int], Tensor]:
    """The formula that the file gives to the case's field."""
    a, matrix, b, c = (tensor(case[name]) if name in case else None for name in ("a", "A", "b", "c"))
    fields = {
        "linear": lambda x, t: a * x + t * b + c,
        "matrix": lambda x, t: matrix @ x + t * b + c,
        "tanh": lambda x, t: torch.tanh(matrix @ x) + t**2 * b,
        "exact": lambda x, t: (x - c) / max(t, 1e-6),
    }
    return lambda x, timestep: fields[case["field"]](x, timestep / 1000)


def with_branches(case: dict) -> bool:
    return "kind" not in case


@pytest.mark.golden("cosmos3/guidance", where=with_branches)
def test_guidance(case) -> None:
    """The end of every sample, and which branches are run at which step: ours in one batch, the reference in turn."""
    calls = []

    def run(branch: str, state: Tensor, timestep: int) -> Tensor:
        calls.append([branch, timestep])
        return state @ tensor(case[f"A_{branch}"]).T + timestep / 1000 * tensor(case[f"b_{branch}"])

    def branches(state: Tensor, timestep: int, guided: bool) -> tuple[Tensor, Tensor | None]:
        return run("cond", state, timestep), run("uncond", state, timestep) if guided else None

    end = sampler.denoise(branches, tensor(case["x_start"]), settings_of(case))
    assert calls == case["forward_calls"] and len(calls) == case["n_forwards"]
    close(end, case["x_end"])


@pytest.mark.golden("cosmos3/guidance", where=lambda case: not with_branches(case))
def test_samples_of_different_width(case) -> None:
    for start, slope, end in zip(case["x_start"], case["c"], case["x_end"], strict=True):
        c = tensor(slope)
        ours = sampler.integrate(lambda x, t, c=c: torch.sin(x) + c * t / 1000, tensor([start]), settings_of(case))
        close(ours[0], end)


@pytest.mark.golden("cosmos3/initial_noise")
def test_noise_of_a_seed(case) -> None:
    drawn = sampler.seeded_normal(np.random.RandomState(case["seed"]), tuple(case["shape"]))
    np.testing.assert_array_equal(drawn, np.float32(case["values"]))
