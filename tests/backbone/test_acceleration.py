"""Ways to run the layers that must not change what they compute."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

from cosmos_robot.backbone.cosmos3 import kernels, runtime
from cosmos_robot.backbone.cosmos3.acceleration import compile_layers, run_eagerly
from cosmos_robot.backbone.cosmos3.layout import wam_plan
from cosmos_robot.backbone.cosmos3.tiny import tiny_transformer
from cosmos_robot.errors import InputError

PLAN = wam_plan(2, 2, 3, chunk=4, fps=10, state_row=False)


def model() -> nn.Module:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 16}
    return tiny_transformer(
        16, seed=1, rope_axes_dim=[4, 2, 2], latent_channel=4, patch_latent_dim=4, action_dim=6, **sizes
    ).eval()


def action(transformer: nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn(2, 4, *PLAN.latent_grid, generator=generator)
    rows, times = torch.randn(2, PLAN.rows, 6, generator=generator), torch.tensor([200.0, 800.0])
    text = runtime.encode_text(transformer, [[1, 2, 3], [4, 5]])
    return runtime.velocity(transformer, PLAN, text, [0, 1], latents, rows, times, [0, 3]).action


def gradients(transformer: nn.Module) -> dict[str, torch.Tensor]:
    transformer.zero_grad()
    action(transformer).square().sum().backward()
    return {name: p.grad.clone() for name, p in transformer.named_parameters() if p.grad is not None}


def test_checkpointing_recomputes_the_layers_and_changes_no_gradient(monkeypatch):
    transformer = model()
    runs = []
    real = kernels.rms_norm
    monkeypatch.setattr("cosmos_robot.backbone.cosmos3.layers.rms_norm", lambda *a: runs.append(1) or real(*a))
    plain, once = gradients(transformer), len(runs)
    transformer.enable_gradient_checkpointing()
    again = gradients(transformer)
    assert len(runs) > 2.5 * once  # forward, and forward once more in the backward pass
    assert plain.keys() == again.keys()
    for name, expected in plain.items():
        torch.testing.assert_close(again[name], expected, atol=1e-7, rtol=0, msg=name)


def test_checkpointing_keeps_what_attention_gave():
    transformer = model()
    transformer.enable_gradient_checkpointing()
    names = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    found = action(transformer).square().sum()
    with Watch():
        found.backward()
    assert any("aten.mm" in name or "aten.addmm" in name for name in names)
    assert not [name for name in names if "attention" in name and "backward" not in name]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and there is no g++ here")
@torch.no_grad()
def test_compiled_layers_compute_the_same():
    transformer = model()
    plain = action(transformer)
    compile_layers(transformer)
    torch.testing.assert_close(action(transformer), plain, atol=1e-5, rtol=0)
    run_eagerly(transformer)
    assert torch.equal(action(transformer), plain)


def test_context_parallel_hooks_are_not_ignored():
    transformer = model()
    transformer._cp_shard_fn = lambda *sequences: sequences
    with pytest.raises(InputError, match="_cp_shard_fn"):
        action(transformer)


def test_cuda_graphs_of_a_model_on_the_cpu_are_refused():
    with pytest.raises(InputError, match="CUDA graphs need a model on a CUDA device, this one is on cpu"):
        compile_layers(model(), cuda_graphs=True)


def test_long_layers_go_through_in_pieces(monkeypatch):
    monkeypatch.setattr(kernels, "PIECE", 10)
    sizes = []

    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes.append(x.shape[0])
            return 2 * x

    x = torch.arange(3 * 9 * 2, dtype=torch.float32).view(3, 9, 2)
    with torch.no_grad():
        assert torch.equal(kernels.in_pieces(Double(), x), 2 * x)
    assert sum(sizes) == 27 and max(sizes) <= 10
    sizes.clear()
    kernels.in_pieces(Double(), x)
    assert sizes == [3]  # whole, where a gradient may be wanted
