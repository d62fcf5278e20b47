"""What the recorded cases do not cover: Euler steps, guidance as two calls, samples in a batch, what is refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from cosmos_robot.backbone.cosmos3 import sampler
from cosmos_robot.backbone.cosmos3.layout import policy_plan, wam_plan
from cosmos_robot.backbone.cosmos3.runtime import encode_text
from cosmos_robot.backbone.cosmos3.tiny import tiny_transformer
from cosmos_robot.contract import SamplerSpec
from cosmos_robot.errors import InputError

EULER = SamplerSpec(solver="euler", steps=5, shift=5.0)
TEXTS = [[1, 2, 3, 4], [5, 6], [7, 8, 9, 1, 2]]


@pytest.fixture(scope="module")
def transformer():
    model = tiny_transformer(16, seed=0, hidden_size=64, intermediate_size=64, num_hidden_layers=2)
    with torch.no_grad():
        model.action_proj_out.fc.weight.mul_(20)
        model.proj_out.weight.mul_(10)
    return model.eval()


def given(plan, batch: int, width: int = 7) -> sampler.Given:
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(batch, 48, *plan.latent_grid, generator=generator)
    rows = torch.randn(batch, plan.rows, 11, generator=generator)
    return sampler.Given([i % 2 for i in range(batch)], latents, rows, 5, width)


def noise(plan, seeds, width: int = 7) -> sampler.Noise:
    return sampler.draw_noise(plan, 48, 16, width, seeds)


@pytest.mark.parametrize("solver", ["euler", "unipc"])
def test_a_straight_flow_is_followed_to_its_end(solver: str) -> None:
    start, goal = torch.randn(3, 5), torch.randn(3, 5)
    first = sampler.flow_schedule(5, 5.0)[1][0]
    settings = EULER.model_copy(update={"solver": solver})
    end = sampler.integrate(lambda state, t: (start - goal) / first, start, settings)
    torch.testing.assert_close(end, goal, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "plan", [policy_plan(2, 3, 4, 20, state_row=True), wam_plan(2, 2, 3, 4, 20, state_row=True)], ids=["policy", "wam"]
)
def test_a_sample_does_not_depend_on_its_batch(transformer, plan) -> None:
    text, known = encode_text(transformer, TEXTS), given(plan, 3)
    together = sampler.sample(transformer, plan, text, known, EULER, noise(plan, [4, 5, 6]))
    one = dataclasses.replace(
        known, text_index=known.text_index[1:2], latents=known.latents[1:2], action_rows=known.action_rows[1:2]
    )
    alone = sampler.sample(transformer, plan, text, one, EULER, noise(plan, [5]))
    torch.testing.assert_close(alone.action, together.action[1:2], atol=1e-5, rtol=0)
    if plan.noisy_frames:
        torch.testing.assert_close(alone.video, together.video[1:2], atol=1e-5, rtol=0)
        assert torch.equal(together.video[:, :, 0], known.latents[:, :, 0])
        assert not torch.isclose(together.video[:, :, 1], known.latents[:, :, 1]).all()
    else:
        assert together.video is None


def test_noisy_entries_of_what_is_given_are_not_read(transformer) -> None:
    plan = wam_plan(2, 2, 3, 4, 20, state_row=True)
    text, known = encode_text(transformer, TEXTS), given(plan, 2)
    latents, rows = known.latents.clone(), known.action_rows.clone()
    latents[:, :, 1], rows[:, 1:] = 9, 9
    spoilt = dataclasses.replace(known, latents=latents, action_rows=rows)
    a, b = (sampler.sample(transformer, plan, text, g, EULER, noise(plan, [1, 2])) for g in (known, spoilt))
    assert torch.equal(a.action, b.action) and torch.equal(a.video, b.video)


def test_the_state_row_and_the_clean_frame_are_read(transformer) -> None:
    plan = policy_plan(2, 3, 4, 20, state_row=True)
    text, known = encode_text(transformer, TEXTS), given(plan, 1)
    base = sampler.sample(transformer, plan, text, known, EULER, noise(plan, [1])).action
    rows, latents = known.action_rows.clone(), known.latents + 1
    rows[:, 0, 10] += 1  # a column that only the state has
    for change in ({"action_rows": rows}, {"latents": latents}):
        moved = sampler.sample(transformer, plan, text, dataclasses.replace(known, **change), EULER, noise(plan, [1]))
        assert (moved.action - base).abs().max() > 1e-6


def test_guidance_in_one_batch_equals_two_calls(transformer) -> None:
    plan = policy_plan(2, 3, 4, 20, state_row=True)
    text, known = encode_text(transformer, TEXTS), given(plan, 2)
    one_step = EULER.model_copy(update={"steps": 1})
    start = noise(plan, [1, 2])
    plain = sampler.sample(transformer, plan, text, known, one_step, start).action
    empty = sampler.sample(
        transformer, plan, text, dataclasses.replace(known, text_index=[2, 2]), one_step, start
    ).action
    guided = one_step.model_copy(update={"guidance": 2.5})
    branches = dataclasses.replace(known, unconditional=2)
    ours = sampler.sample(transformer, plan, text, branches, guided, start).action
    torch.testing.assert_close(ours, empty + 2.5 * (plain - empty), atol=1e-5, rtol=0)
    assert (ours - plain).abs().max() > 1e-4


def test_guidance_without_an_empty_prompt_is_refused(transformer) -> None:
    plan = policy_plan(2, 3, 4, 20, state_row=True)
    with pytest.raises(InputError, match="empty prompt"):
        sampler.sample(
            transformer, plan, encode_text(transformer, TEXTS), given(plan, 1),
            EULER.model_copy(update={"guidance": 3}), noise(plan, [1]),
        )  # fmt: skip
