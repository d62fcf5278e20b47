"""PC-57: what lies past an episode's end carries no gradient.

The gradient by a target is the negative of that by the prediction in its place, so it tells what a network would learn.
"""

import numpy as np
import pytest
import torch

from cosmos_robot.backbone.cosmos3.layout import policy_plan
from cosmos_robot.backbone.cosmos3.runtime import encode_text
from cosmos_robot.backbone.cosmos3.tiny import tiny_transformer
from cosmos_robot.data.recordings import Recording, Recordings
from cosmos_robot.training.flow import FlowBatch, FlowNoise, flow_loss

STEPS, CHUNK, WIDTH = 20, 16, 3


class OneEpisode(Recordings):
    """An episode of 20 steps without pictures."""

    cameras, lengths = (), (STEPS,)

    def recording(self, index):
        rows = np.random.default_rng(index).standard_normal((STEPS, WIDTH)).astype(np.float32)
        return Recording("episode 0", "go", rows, rows)

    def pictures(self, index, camera, rows=None):
        raise NotImplementedError

    def picture_count(self, index, camera):
        raise NotImplementedError


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("start", [0, 4, 5, 12, 19])
def test_pc_57_the_gradient_is_zero_at_padded_positions_and_the_mean_is_over_the_rest(start):
    window = OneEpisode().window(0, start, CHUNK)
    left = min(CHUNK, STEPS - start)
    assert window.valid.tolist() == [True] * left + [False] * (CHUNK - left)
    transformer = tiny_transformer(30, 0, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
                                   num_attention_heads=2, num_key_value_heads=1, head_dim=32,
                                   rope_axes_dim=[6, 5, 5])  # fmt: skip
    with torch.no_grad():
        for parameter in transformer.action_proj_out.parameters():
            parameter.zero_()  # a silent network: the loss depends on its targets alone
    actions, valid = torch.from_numpy(window.actions)[None], torch.from_numpy(window.valid)[None]
    batch = FlowBatch(normal(0, 1, 48, 1, 2, 3), None, actions, valid, torch.tensor([0]), 5)
    noise = FlowNoise(torch.tensor([0.5]), normal(1, 1, CHUNK, WIDTH).requires_grad_())
    text = encode_text(transformer, [[1, 2, 3]])
    flow_loss(transformer, policy_plan(2, 3, CHUNK, 20, False), text, batch, noise).action.backward()
    error = (noise.action - actions).detach()[0]
    assert (noise.action.grad[0, left:] == 0).all()
    torch.testing.assert_close(noise.action.grad[0, :left], 2 * error[:left] / (left * WIDTH))
