"""Our batched forward against the diffusers forward, on tiny random weights in float32."""

from __future__ import annotations

import pytest
import torch

from cosmos_robot.backbone.cosmos3 import runtime
from cosmos_robot.backbone.cosmos3.layout import TokenPlan, policy_plan, wam_plan
from cosmos_robot.backbone.cosmos3.positions import action_positions, text_positions, vision_positions
from cosmos_robot.backbone.cosmos3.tiny import tiny_transformer
from cosmos_robot.errors import InputError

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 16, "rope_axes_dim": [4, 2, 2]}
EDGE = {"hidden_act": "relu2", "qk_norm_for_text": False, "use_und_k_norm_for_gen": True}
TEXTS = [[3, 7, 1, 12, 5], [9, 2, 8], [4, 4, 4, 1, 0, 11, 6, 13]]
TOLERANCE = 1e-5


def model(patch: int = 1, **changes) -> torch.nn.Module:
    """Small, with every weight (norms, biases, modality embedding included) random enough to matter."""
    transformer = tiny_transformer(
        16,
        seed=1,
        latent_channel=4,
        latent_patch_size=patch,
        patch_latent_dim=4 * patch * patch,
        action_dim=6,
        num_embodiment_domains=5,
        **{**SMALL, **changes},
    )
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            spread = 0.3 if parameter.ndim == 1 or "action_proj" in name else 0.2
            parameter.add_(torch.randn(parameter.shape, generator=generator) * spread)
    return transformer.eval()


def sample(plan: TokenPlan, batch: int, width: int, channels: int = 4):
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn(batch, channels, *plan.latent_grid, generator=generator)
    rows = torch.randn(batch, plan.rows, width, generator=generator) if plan.rows else None
    return latents, rows, torch.linspace(120, 990, batch)


def by_diffusers(transformer, plan, text, latents, rows, timestep, domain):
    """One sample (C, L, h, w), (R, W) through the packed forward of diffusers."""
    config = transformer.config
    patch = config.latent_patch_size
    frames, height, width = plan.latent_grid
    grid = (frames, -(-height // patch), -(-width // patch))
    vision, count = frames * grid[1] * grid[2], len(text)
    offset = count + config.unified_3d_mrope_temporal_modality_margin
    positions = torch.cat(
        [
            text_positions(count),
            vision_positions(*grid, plan.fps, offset),
            action_positions(plan.rows, plan.fps, offset, plan.action_start),
        ],
        dim=1,
    )
    noisy_frames, noisy_rows = torch.tensor(plan.noisy_frames).long(), torch.tensor(plan.noisy_rows).long()
    per_frame = grid[1] * grid[2]
    noisy_vision = (noisy_frames[:, None] * per_frame + torch.arange(per_frame)).flatten() + count
    action = {}
    if plan.rows:
        sequence = torch.arange(plan.rows) + count + vision
        padded = torch.nn.functional.pad(rows, (0, config.action_dim - rows.shape[1]))
        action = {
            "action_tokens": [padded],
            "action_token_shapes": [(plan.rows, 1, 1)],
            "action_sequence_indexes": sequence,
            "action_mse_loss_indexes": sequence[noisy_rows],
            "action_noisy_frame_indexes": [noisy_rows],
            "action_timesteps": timestep.expand(len(noisy_rows)),
            "action_domain_ids": [torch.tensor(domain)],
        }
    return transformer(
        input_ids=torch.tensor(text),
        text_indexes=torch.arange(count),
        position_ids=positions,
        und_len=count,
        sequence_length=count + vision + plan.rows,
        vision_tokens=[latents[None]],
        vision_token_shapes=[grid],
        vision_sequence_indexes=torch.arange(vision) + count,
        vision_mse_loss_indexes=noisy_vision,
        vision_timesteps=timestep.expand(len(noisy_vision)),
        vision_noisy_frame_indexes=[noisy_frames],
        **action,
    )


PLANS = {
    "policy with state row": policy_plan(3, 4, chunk=5, fps=20, state_row=True),
    "policy without state": policy_plan(3, 4, chunk=5, fps=15, state_row=False),
    "video and actions, state row": wam_plan(3, 3, 4, chunk=8, fps=20, state_row=True),
    "forward dynamics": TokenPlan((3, 2, 3), (True, False, False), (True,) * 8, 5.0, 1),
    "inverse dynamics": TokenPlan((3, 2, 3), (True,) * 3, (False,) * 8, 10.0, 1),
    "video only": TokenPlan((2, 3, 3), (True, False), (), 24.0, 1),
    "scattered clean masks": TokenPlan((4, 2, 2), (True, False, True, False), (True, False, True, False), 24.0, -1),
}


@pytest.mark.parametrize("variant", [{}, {"patch": 2}, EDGE], ids=["nano", "patch 2", "edge"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
@torch.no_grad()
def test_equals_diffusers(plan, variant):
    transformer = model(**variant)
    latents, rows, timestep = sample(plan, batch=3, width=4)
    domains, order = [2, 4, 2], [2, 0, 1]
    want = (("action",) if plan.noisy_rows else ()) + (("video",) if plan.noisy_frames else ())
    text = runtime.encode_text(transformer, TEXTS)
    ours = runtime.velocity(transformer, plan, text, order, latents, rows, timestep, domains, want)
    for b in range(3):
        row = None if rows is None else rows[b]
        theirs = by_diffusers(transformer, plan, TEXTS[order[b]], latents[b], row, timestep[b], domains[b])
        if "action" in want:
            expected = theirs.action[0][list(plan.noisy_rows), :4]
            assert expected.abs().max() > 0.1
            torch.testing.assert_close(ours.action[b], expected, atol=TOLERANCE, rtol=TOLERANCE)
        if "video" in want:
            torch.testing.assert_close(ours.video[b], theirs.sample[0][0], atol=TOLERANCE, rtol=TOLERANCE)


@torch.no_grad()
def test_each_part_alone_equals_both_together():
    transformer, plan = model(), PLANS["video and actions, state row"]
    latents, rows, timestep = sample(plan, batch=2, width=6)
    text = runtime.encode_text(transformer, TEXTS)

    def call(*want: str) -> runtime.Velocity:
        return runtime.velocity(transformer, plan, text, [0, 1], latents, rows, timestep, [0, 0], want)

    both, action, video = call("action", "video"), call("action"), call("video")
    torch.testing.assert_close(action.action, both.action, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(video.video, both.video, atol=TOLERANCE, rtol=0)
    assert action.video is None and video.action is None


@torch.no_grad()
def test_joined_texts_equal_texts_encoded_together():
    transformer, plan = model(), PLANS["policy with state row"]
    latents, rows, timestep = sample(plan, batch=3, width=6)
    together = runtime.encode_text(transformer, TEXTS)
    joined = runtime.join_texts([runtime.encode_text(transformer, [ids]) for ids in TEXTS])
    assert joined.lengths == together.lengths == (5, 3, 8)
    out = [
        runtime.velocity(transformer, plan, t, [0, 1, 2], latents, rows, timestep, [1] * 3).action
        for t in (together, joined)
    ]
    torch.testing.assert_close(out[0], out[1], atol=TOLERANCE, rtol=0)


def test_gradients_equal_diffusers():
    transformer, plan = model(), PLANS["video and actions, state row"]
    latents, rows, timestep = sample(plan, batch=3, width=6)
    order, domains = [2, 0, 2], [2, 4, 2]

    def gradients(loss: torch.Tensor) -> dict[str, torch.Tensor]:
        transformer.zero_grad()
        loss.backward()
        return {n: p.grad.clone() for n, p in transformer.named_parameters() if p.grad is not None}

    text = runtime.encode_text(transformer, TEXTS)
    out = runtime.velocity(transformer, plan, text, order, latents, rows, timestep, domains, ("action", "video"))
    ours = gradients(out.action.square().sum() + out.video.square().sum())
    loss = torch.zeros(())
    for b in range(3):
        theirs = by_diffusers(transformer, plan, TEXTS[order[b]], latents[b], rows[b], timestep[b], domains[b])
        loss = loss + theirs.action[0][list(plan.noisy_rows)].square().sum() + theirs.sample[0].square().sum()
    expected = gradients(loss)
    assert {"layers.0.self_attn.norm_q.weight", "layers.2.self_attn.to_k.weight", "embed_tokens.weight"} <= set(ours)
    assert set(ours) <= set(expected)
    for name in ours:
        scale = float(expected[name].abs().max()) or 1.0
        torch.testing.assert_close(ours[name] / scale, expected[name] / scale, atol=2e-5, rtol=0, msg=name)


def test_bfloat16_autocast_stays_near_float32():
    transformer, plan = model(), PLANS["policy with state row"]
    latents, rows, timestep = sample(plan, batch=3, width=6)

    def call() -> torch.Tensor:
        text = runtime.encode_text(transformer, TEXTS)
        return runtime.velocity(transformer, plan, text, [0, 1, 2], latents, rows, timestep, [0] * 3).action

    exact = call()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = call()
    assert mixed.dtype == torch.float32
    mixed.sum().backward()
    assert torch.isfinite(transformer.layers[0].self_attn.to_q.weight.grad).all()
    assert float((mixed - exact).detach().abs().max() / exact.detach().abs().max()) < 0.05


@torch.no_grad()
def test_hidden_is_the_stream_entering_a_layer():
    transformer, plan = model(), PLANS["policy with state row"]
    latents, rows, timestep = sample(plan, batch=2, width=6)
    text = runtime.encode_text(transformer, TEXTS)

    def call(at: int | None, later: float = 0) -> torch.Tensor | None:
        out = runtime.velocity(transformer, plan, text, [0, 1], latents, rows, timestep + later, [0, 0], hidden_at=at)
        return out.hidden

    assert call(None) is None
    assert call(0).shape == call(2).shape == (2, 12 + 6, 32)
    clean, noisy = slice(0, 13), slice(13, 18)
    moved = call(0, later=9) - call(0)
    assert not moved[:, clean].any() and moved[:, noisy].any()


def test_a_table_made_under_inference_mode_serves_training():
    transformer, plan = model(), policy_plan(2, 2, chunk=3, fps=7, state_row=False)
    latents, rows, timestep = sample(plan, batch=1, width=6)
    with torch.inference_mode():
        text = runtime.encode_text(transformer, [[1, 2, 3, 4, 5, 6, 7]])
        runtime.velocity(transformer, plan, text, [0], latents, rows, timestep, [0])
    text = runtime.encode_text(transformer, [[1, 2, 3, 4, 5, 6, 7]])
    runtime.velocity(transformer, plan, text, [0], latents, rows, timestep, [0]).action.sum().backward()
    assert transformer.proj_in.weight.grad.abs().sum() > 0


def test_join_rows_pads_to_the_wider():
    rows = runtime.join_rows(torch.ones(2, 5), 2 * torch.ones(2, 3, 4))
    assert rows.shape == (2, 4, 5)
    assert rows[0, 0].tolist() == [1] * 5 and rows[0, 1].tolist() == [2, 2, 2, 2, 0]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"latents": torch.zeros(2, 4, 1, 3, 5)}, r"latents \(2, 4, 1, 3, 4\)"),
        ({"action_rows": torch.zeros(2, 5, 6)}, "6 action rows"),
        ({"action_rows": torch.zeros(2, 6, 7)}, "at most 6"),
        ({"timestep": torch.zeros(3)}, "one timestep"),
        ({"text_index": [0, 3]}, "3 cached prompts"),
        ({"domain_id": [0, 5]}, r"domain ids .*5"),
        ({"domain_id": [0]}, "2 domain ids"),
        ({"want": ("video",)}, "denoises .'action'."),
        ({"hidden_at": 3}, r"expected 0\.\.2"),
    ],
)
def test_bad_input_is_named(change, words):
    transformer, plan = model(), PLANS["policy with state row"]
    latents, rows, timestep = sample(plan, batch=2, width=6)
    text = runtime.encode_text(transformer, TEXTS)
    good = {
        "text_index": [0, 1],
        "latents": latents,
        "action_rows": rows,
        "timestep": timestep,
        "domain_id": [0, 0],
    }
    with pytest.raises(InputError, match=words):
        runtime.velocity(transformer, plan, text, **{**good, **change})


def test_token_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(InputError, match="16"):
        runtime.encode_text(model(), [[1, 16]])
    with pytest.raises(InputError, match="empty"):
        runtime.encode_text(model(), [[1], []])
