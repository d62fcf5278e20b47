import pytest
import torch

from cosmos_robot.backbone.cosmos3.layout import policy_plan, wam_plan
from cosmos_robot.backbone.cosmos3.runtime import encode_text, join_rows, velocity
from cosmos_robot.backbone.cosmos3.tiny import tiny_transformer
from cosmos_robot.errors import InputError
from cosmos_robot.training.flow import FlowBatch, FlowNoise, draw_noise, flow_loss
from cosmos_robot.training.objective import shifted

B, T, D, S = 3, 4, 5, 6


@pytest.fixture(scope="module")
def transformer():
    return tiny_transformer(30, 0, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                            num_key_value_heads=1, head_dim=32, rope_axes_dim=[6, 5, 5])  # fmt: skip


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_batch(frames: int = 1) -> FlowBatch:
    valid = torch.ones(B, T, dtype=torch.bool)
    valid[1, 2:] = False
    video_valid = torch.tensor([[True, True], [True, False], [True, True]])[:, :frames]
    index = torch.tensor([0, 1, 0])
    return FlowBatch(normal(0, B, 48, frames, 2, 3), normal(1, B, S), normal(2, B, T, D), valid, index, 5, video_valid)


def text_of(transformer):
    return encode_text(transformer, [[1, 2, 3], [4, 5]])


def test_network_sees_the_interpolation_and_is_asked_for_noise_minus_data(transformer):
    plan, batch = policy_plan(2, 3, T, 20, True), make_batch()
    noise = FlowNoise(torch.tensor([0.1, 0.5, 0.9]), normal(3, B, T, D))
    with torch.no_grad():
        text = text_of(transformer)
        found = flow_loss(transformer, plan, text, batch, noise).action
        sigma = noise.sigma[:, None, None]
        rows = join_rows(batch.state, (1 - sigma) * batch.actions + sigma * noise.action)
        out = velocity(transformer, plan, text, batch.text_index, batch.latents, rows, 1000 * noise.sigma, [5] * B)
    error = (out.action[..., :D] - (noise.action - batch.actions)).square()
    expected = error[batch.valid].mean()
    torch.testing.assert_close(found, expected)


def test_padded_steps_carry_no_loss_and_rows_are_weighted(transformer):
    """With a silent output layer the prediction is 0, and the loss follows from data and noise alone."""
    plan, batch, noise = policy_plan(2, 3, T, 20, True), make_batch(), FlowNoise(torch.rand(B), normal(3, B, T, D))
    kept = [p.detach().clone() for p in transformer.action_proj_out.parameters()]
    with torch.no_grad():
        for parameter in transformer.action_proj_out.parameters():
            parameter.zero_()
        weighted = flow_loss(transformer, plan, text_of(transformer), batch, noise, row_weight=[1, 1, 0.5, 0]).action
        for parameter, value in zip(transformer.action_proj_out.parameters(), kept, strict=True):
            parameter.copy_(value)
    square = (noise.action - batch.actions).square().mean(-1)
    weight = batch.valid * torch.tensor([1, 1, 0.5, 0])
    torch.testing.assert_close(weighted, (square * weight).sum() / weight.sum())


def test_video_frames_are_denoised_with_the_same_sigma(transformer):
    plan, batch = wam_plan(2, 2, 3, T, 20, True), make_batch(frames=2)
    noise = draw_noise(batch, plan, 5.0, torch.Generator().manual_seed(0))
    sigma = noise.sigma[:, None, None]
    with torch.no_grad():
        text = text_of(transformer)
        loss = flow_loss(transformer, plan, text, batch, noise)
        mixed = batch.latents.clone()
        level = sigma[..., None]
        mixed[:, :, 1] = (1 - level) * batch.latents[:, :, 1] + level * noise.video[:, :, 1]
        rows = join_rows(batch.state, (1 - sigma) * batch.actions + sigma * noise.action)
        out = velocity(transformer, plan, text, batch.text_index, mixed, rows, 1000 * noise.sigma, [5] * B,
                       ("action", "video"))  # fmt: skip
    error = (out.video - (noise.video - batch.latents))[:, :, 1].square()
    torch.testing.assert_close(loss.video, error[[0, 2]].mean())  # the second sample's episode had ended
    with pytest.raises(InputError, match="video"):
        flow_loss(transformer, plan, text, batch, FlowNoise(noise.sigma, noise.action))


def test_gradients_reach_both_halves(transformer):
    plan, batch = policy_plan(2, 3, T, 20, True), make_batch()
    noise = draw_noise(batch, plan, 5.0, torch.Generator().manual_seed(0))
    transformer.zero_grad()
    flow_loss(transformer, plan, text_of(transformer), batch, noise, hidden_at=1).action.backward()
    for name in ("embed_tokens.weight", "proj_in.weight", "action_proj_in.fc.weight", "time_embedder.linear_1.weight"):
        assert transformer.get_parameter(name).grad.abs().sum() > 0, name


def test_sigmas_are_uniform_before_the_shift():
    batch = FlowBatch(torch.zeros(256, 1, 1, 1, 1), None, torch.zeros(256, T, D), torch.ones(256, T, dtype=torch.bool),
                      torch.zeros(256, dtype=torch.long), 0)  # fmt: skip
    noise = draw_noise(batch, policy_plan(1, 1, T, 20, False), 5.0, torch.Generator().manual_seed(0))
    u = noise.sigma / (5 - 4 * noise.sigma)  # the shift undone
    assert u.min() >= 0 and u.max() < 1
    torch.testing.assert_close(u.sort().values, (torch.arange(256) + 0.5) / 256, atol=1 / 256, rtol=0)
    assert (u.diff() < 0).any()  # in random order
    assert shifted(torch.tensor(0.5), 5.0) == pytest.approx(5 / 6)
