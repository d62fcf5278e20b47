"""Adapters on the generator: what they train, that our runtime runs them, and that merging keeps the numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel

from cosmos_robot.backbone.cosmos3 import lora, runtime
from cosmos_robot.backbone.cosmos3.layout import wam_plan
from cosmos_robot.backbone.cosmos3.lora import LoraSpec, add_lora, load_adapter, merge, save_adapter
from cosmos_robot.backbone.cosmos3.tiny import tiny_transformer
from cosmos_robot.errors import CheckpointError, InputError

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "rope_axes_dim": [4, 2, 2],
    "latent_channel": 4,
    "patch_latent_dim": 4,
    "action_dim": 6,
    "num_embodiment_domains": 5,
}
ADAPTED = (*lora.ATTENTION, "mlp_moe_gen")
TEXTS = [[3, 7, 1, 12, 5], [9, 2, 8]]


def model(**changes) -> torch.nn.Module:
    return tiny_transformer(16, seed=1, **{**SIZES, **changes}).eval()


def velocity(transformer) -> runtime.Velocity:
    plan = wam_plan(2, 2, 2, chunk=4, fps=5.0, state_row=False)
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn(2, 4, *plan.latent_grid, generator=generator)
    rows = torch.randn(2, plan.rows, 6, generator=generator)
    text = runtime.encode_text(transformer, TEXTS)
    times = torch.tensor([300.0, 800.0])
    return runtime.velocity(transformer, plan, text, [0, 1], latents, rows, times, [1, 3], want=("action", "video"))


@torch.no_grad()
def disturb(adapted: PeftModel, seed: int = 7) -> None:
    """Random values in everything that is trained, as if it had been."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def apart(one: runtime.Velocity, other: runtime.Velocity) -> float:
    return max((one.action - other.action).abs().max().item(), (one.video - other.video).abs().max().item())


def test_nothing_changes_before_training() -> None:
    transformer = model()
    before = velocity(transformer)
    add_lora(transformer, LoraSpec(mlp=True))
    assert apart(velocity(transformer), before) == 0


@pytest.mark.parametrize("part", ["add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "up_proj", "action_proj_in",
                                  "action_proj_out"])  # fmt: skip
def test_the_runtime_runs_every_adapted_part(part: str) -> None:
    transformer = model()
    before = velocity(transformer)
    add_lora(transformer, LoraSpec(rank=2, mlp=True))
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            if parameter.requires_grad and part in name and "lora_A" not in name:
                parameter.add_(0.5)
    assert apart(velocity(transformer), before) > 1e-4


def test_gradients_flow_where_they_should() -> None:
    transformer = model()
    adapted = add_lora(transformer, LoraSpec(rank=2, mlp=True))
    disturb(adapted)
    out = velocity(transformer)
    (out.action.square().sum() + out.video.square().sum()).backward()
    trained = lora.trained_names(transformer)
    assert all(parameter.grad is None for name, parameter in transformer.named_parameters() if name not in trained)
    assert all(("lora_" in name and any(part in name for part in ADAPTED)) or "action_proj" in name for name in trained)
    text_half = ("to_q", "to_k", "to_v", "to_out", ".mlp.", "embed_tokens", "lm_head", "norm")
    assert not [name for name in trained if any(word in name for word in text_half)]
    missing = [n for n, p in transformer.named_parameters() if n in trained and (p.grad is None or not p.grad.any())]
    assert missing == []


@pytest.mark.parametrize("spec", [LoraSpec(rank=2), LoraSpec(rank=3, mlp=True), LoraSpec(rank=2, heads=False)])
@pytest.mark.parametrize("edge", [False, True])
def test_merged_equals_adapted(spec: LoraSpec, edge: bool) -> None:
    kind = {"hidden_act": "relu2", "qk_norm_for_text": False, "use_und_k_norm_for_gen": True} if edge else {}
    transformer = model(**kind)
    names = transformer.state_dict().keys()
    before = velocity(transformer)
    adapted = add_lora(transformer, spec)
    disturb(adapted)
    changed = velocity(transformer)
    merged = merge(adapted)
    assert apart(changed, before) > 1e-3
    assert apart(velocity(merged), changed) < 1e-5
    assert merged.state_dict().keys() == names and all(p.requires_grad for p in merged.parameters())


def test_adapters_are_saved_alone_and_loaded(tmp_path: Path) -> None:
    transformer = model()
    adapted = add_lora(transformer, LoraSpec(rank=2))
    disturb(adapted)
    wanted = velocity(transformer)
    folder = save_adapter(adapted, tmp_path / "adapter")
    assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    fresh = model()
    load_adapter(fresh, folder)
    assert apart(velocity(fresh), wanted) == 0 and lora.trained_names(fresh) == []
    again = model()
    load_adapter(again, folder, trainable=True)
    assert lora.trained_names(again) == lora.trained_names(transformer)
    with pytest.raises(CheckpointError, match="exists"):
        save_adapter(adapted, folder)


def test_adapters_of_another_size_are_refused(tmp_path: Path) -> None:
    folder = save_adapter(add_lora(model(), LoraSpec(rank=2)), tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=r"expected \("):
        load_adapter(model(hidden_size=64), folder)
    with pytest.raises(CheckpointError, match=r"missing base_model.model.layers.2.self_attn.add_k_proj.lora_A"):
        load_adapter(model(num_hidden_layers=3), folder)
    with pytest.raises(CheckpointError, match=r"no adapter_config\.json"):
        load_adapter(model(), tmp_path)
    path = folder / lora.WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_adapter(model(), folder)
    path.unlink()
    with pytest.raises(CheckpointError, match="half-written"):
        load_adapter(model(), folder)


def test_what_makes_no_sense_is_refused() -> None:
    transformer = model()
    add_lora(transformer, LoraSpec())
    with pytest.raises(InputError, match="already has adapters"):
        add_lora(transformer, LoraSpec())
    with pytest.raises(InputError, match="no action heads"):
        add_lora(model(action_gen=False, action_dim=None), LoraSpec())
    for wrong in ({"rank": 0}, {"alpha": 0.0}, {"alpha": float("nan")}, {"dropout": 1.0}):
        with pytest.raises(InputError, match="expected a rank"):
            LoraSpec(**wrong)


def test_seeds_decide_the_adapters() -> None:
    def drawn(seed: int) -> torch.Tensor:
        return dict(add_lora(model(), LoraSpec(rank=2), seed=seed).named_parameters())[NAME].detach()

    NAME = "base_model.model.layers.0.self_attn.add_q_proj.lora_A.default.weight"
    assert torch.equal(drawn(1), drawn(1)) and not torch.equal(drawn(1), drawn(2))
