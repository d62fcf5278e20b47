"""What the recorded cases do not cover: Euler steps, guidance as two calls, samples in a batch, what is refused."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from cosmos_robot.backbone.cosmos3 import sampler
from cosmos_robot.backbone.cosmos3.layout import policy_plan, wam_plan
from cosmos_robot.backbone.cosmos3.runtime import encode_text
from cosmos_robot.backbone.cosmos3.tiny import tiny_transformer
from cosmos_robot.contract import SamplerSpec
from cosmos_robot.errors import ContractError, InputError

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


def test_channels_that_are_no_part_of_a_sample_stay_zero_and_change_nothing(transformer) -> None:
    plan = wam_plan(2, 2, 3, 4, 20, state_row=True)
    text, known = encode_text(transformer, TEXTS), given(plan, 2)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[0, [1, 5]] = False
    masked = dataclasses.replace(known, channels=mask)
    start = noise(plan, [1, 2])
    out = sampler.sample(transformer, plan, text, masked, EULER, start)
    assert not out.action[0, :, [1, 5]].any() and out.action[1].all()
    rows, loud = known.action_rows.clone(), start.action.clone()
    rows[0, :, [1, 5]], loud[0, :, [1, 5]] = 7, 7
    again = sampler.sample(
        transformer, plan, text, dataclasses.replace(masked, action_rows=rows), EULER, sampler.Noise(loud, start.video)
    )
    assert torch.equal(again.action, out.action) and torch.equal(again.video, out.video)
    free = sampler.sample(transformer, plan, text, known, EULER, start)
    torch.testing.assert_close(free.action[1], out.action[1], atol=1e-5, rtol=0)
    assert (free.action[0] - out.action[0]).abs().max() > 1e-4


def test_guidance_runs_only_inside_its_interval(transformer, monkeypatch) -> None:
    plan = policy_plan(2, 3, 4, 20, state_row=True)
    text, known = encode_text(transformer, TEXTS), dataclasses.replace(given(plan, 2), unconditional=[2, 0])
    batches = []
    real = sampler.velocity

    def counted(*args, **kwargs):
        batches.append(torch.as_tensor(args[3]).numel())
        return real(*args, **kwargs)

    monkeypatch.setattr(sampler, "velocity", counted)
    four = SamplerSpec(solver="unipc", steps=4, shift=5.0, guidance=3.0, guidance_interval=(936, 999))
    sampler.sample(transformer, plan, text, known, four, noise(plan, [1, 2]))
    assert batches == [2, 4, 2, 2]  # timesteps 999, 937, 833, 624; the ends are outside


def test_noise_starts_anew_for_each_modality_or_goes_on() -> None:
    plan = wam_plan(2, 2, 3, 4, 20, state_row=True)
    apart, joint = (sampler.draw_noise(plan, 48, 16, 7, [3, 4], rule) for rule in ("per_modality", "joint"))
    assert torch.equal(apart.video, joint.video) and not torch.equal(apart.action, joint.action)
    alone = sampler.draw_noise(policy_plan(2, 3, 4, 20, state_row=True), 48, 16, 7, [3])
    assert torch.equal(alone.action[0], apart.action[0])
    assert not torch.equal(apart.action[0], apart.action[1])


def test_bfloat16_samples_are_near(transformer) -> None:
    plan = wam_plan(2, 2, 3, 4, 20, state_row=True)
    settings = SamplerSpec(solver="unipc", steps=4, shift=5.0, guidance=2.0)
    known, start = dataclasses.replace(given(plan, 2), unconditional=2), noise(plan, [1, 2])
    exact = sampler.sample(transformer, plan, encode_text(transformer, TEXTS), known, settings, start)
    half = copy.deepcopy(transformer).to(torch.bfloat16)
    near = sampler.sample(half, plan, encode_text(half, TEXTS), known, settings, start)
    for ours, other in ((near.action, exact.action), (near.video[:, :, 1:], exact.video[:, :, 1:])):
        assert ours.dtype == torch.float32
        assert (ours - other).norm() < 0.02 * other.norm()


WAM = wam_plan(2, 2, 3, 4, 20, state_row=True)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"domain_id": 32}, "domain_id 32 is out of range: expected 0 to 31"),
        ({"domain_id": [5, -1]}, "domain_id -1 is out of range"),
        ({"domain_id": [5]}, "one for each of 2 samples, got 1"),
        ({"text_index": [0, 9]}, "text_index 9 is out of range"),
        ({"text_index": [0]}, "text_index: expected one for each of 2"),
        ({"action_width": 12}, "commands are 12 and rows 11 wide"),
        ({"action_width": 0}, "commands are 0"),
        ({"action_rows": torch.zeros(2, 5, 17)}, "the width of the model"),
        ({"action_rows": torch.zeros(2, 4, 11)}, r"expected action rows \(2, 5, W\)"),
        ({"action_rows": None}, "got None"),
        ({"action_rows": torch.zeros(2, 5, 11, dtype=torch.float64)}, "action rows: expected float32"),
        ({"latents": torch.zeros(2, 48, 2, 2, 4)}, r"expected latents \(B, 48, 2, 2, 3\)"),
        ({"latents": torch.zeros(2, 48, 2, 2, 3, dtype=torch.bfloat16)}, "latents: expected float32"),
        ({"latents": torch.zeros(2, 48, 2, 2, 3, device="meta")}, "latents are on meta, the model is on cpu"),
        ({"channels": torch.ones(7)}, "channels: expected bool"),
        ({"channels": torch.ones(6, dtype=torch.bool)}, r"channels: expected bool \(7,\)"),
        ({"channels": torch.zeros(7, dtype=torch.bool)}, "without a single valid column"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_any_compute(transformer, monkeypatch, change: dict, words: str) -> None:
    text, known = encode_text(transformer, TEXTS), dataclasses.replace(given(WAM, 2), **change)
    monkeypatch.setattr(sampler, "velocity", lambda *a, **k: pytest.fail("computed"))
    with pytest.raises(InputError, match=words):
        sampler.sample(transformer, WAM, text, known, EULER, noise(WAM, [1, 2]))


def test_noise_and_settings_that_do_not_fit_are_refused(transformer, monkeypatch) -> None:
    text, known, start = encode_text(transformer, TEXTS), given(WAM, 2), noise(WAM, [1, 2])
    monkeypatch.setattr(sampler, "velocity", lambda *a, **k: pytest.fail("computed"))

    def refused(words: str, noise_: sampler.Noise = start, settings: SamplerSpec = EULER, error=InputError) -> None:
        with pytest.raises(error, match=words):
            sampler.sample(transformer, WAM, text, known, settings, noise_)

    refused(r"action noise: expected \(2, 4, 7\), got \(2, 4, 6\)", noise(WAM, [1, 2], 6))
    refused("video noise: expected", sampler.Noise(start.action, None))
    refused("video noise: expected float32", sampler.Noise(start.action, start.video.double()))
    edm = SamplerSpec(solver="edm_2ab", steps=5, sigma_min=0.1, sigma_max=10)
    refused("follows a flow", settings=edm, error=ContractError)
