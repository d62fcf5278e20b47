"""Texts are kept once, joined and shared without copies, and forgotten by their bytes."""

from __future__ import annotations

import pytest
import torch

from cosmos_robot.backbone.cosmos3 import runtime
from cosmos_robot.backbone.cosmos3.kernels import full_attention, shared_attention
from cosmos_robot.backbone.cosmos3.layout import wam_plan
from cosmos_robot.backbone.cosmos3.text_cache import TextCache, TextStore, join_texts
from cosmos_robot.backbone.cosmos3.tiny import tiny_transformer
from cosmos_robot.errors import InputError

TEXTS = {"short": [3, 7, 1], "long": [9, 2, 8, 4, 4, 0], "other": [5, 5, 5]}
PLAN = wam_plan(2, 3, 4, chunk=4, fps=10, state_row=True)


@pytest.fixture(scope="module")
def transformer() -> torch.nn.Module:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
    model = tiny_transformer(
        16, seed=1, rope_axes_dim=[4, 2, 2], latent_channel=4, patch_latent_dim=4, action_dim=6, **sizes
    )
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def store(transformer: torch.nn.Module, limit: int) -> TextStore:
    return TextStore(lambda prompt: runtime.encode_text(transformer, [TEXTS[prompt]]), limit)


@torch.no_grad()
def test_joining_and_reading_copy_nothing(transformer):
    one, two = (runtime.encode_text(transformer, [TEXTS[name]]) for name in ("short", "long"))
    joined = join_texts([one, two])
    assert joined.lengths == (3, 6) and len(joined) == 2
    assert joined.one(0, 1)[0].data_ptr() == two.blocks[0].keys[0].data_ptr()
    assert joined.nbytes == one.nbytes + two.nbytes


@torch.no_grad()
def test_a_padded_prompt_is_read_without_its_padding(transformer):
    together = runtime.encode_text(transformer, list(TEXTS.values()))
    alone = runtime.encode_text(transformer, [TEXTS["short"]])
    for layer in range(2):
        for found, expected in zip(together.one(layer, 0), alone.one(layer, 0), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_rows_of_several_blocks_are_padded_to_the_longest(transformer):
    blocks = join_texts([runtime.encode_text(transformer, [ids]) for ids in TEXTS.values()])
    together = runtime.encode_text(transformer, list(TEXTS.values()))
    keys, _ = blocks.rows(1, [1, 0, 1])
    expected, _ = together.rows(1, [1, 0, 1])
    assert keys.shape == expected.shape == (3, 2, 6, 16)
    torch.testing.assert_close(keys[0], expected[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(keys[1, :, :3], expected[1, :, :3], atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_least_recently_used_prompt_is_forgotten_first(transformer):
    each = runtime.encode_text(transformer, [TEXTS["short"]]).nbytes
    kept = store(transformer, limit=2 * each)
    for prompts in (["short"], ["other"], ["short"]):
        kept.get(prompts)
    assert kept.encoded == 2 and kept.nbytes == 2 * each
    kept.get(["long"])  # alone as large as both
    assert kept.prompts == ("long",) and kept.nbytes == 2 * each
    kept.get(["short"])
    assert kept.encoded == 4 and kept.prompts == ("short",)
    kept.clear()
    assert kept.nbytes == len(kept) == 0


@torch.no_grad()
def test_a_prompt_over_the_limit_is_served_and_not_kept(transformer):
    kept = store(transformer, limit=1)
    assert kept.get(["short", "long"]).lengths == (3, 6)
    assert kept.nbytes == len(kept) == 0
    with pytest.raises(InputError, match="at least 0 bytes"):
        store(transformer, limit=-1)


@torch.no_grad()
def test_shared_attention_equals_attention_over_everything():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(4, 5, heads, 8, generator=generator) for heads in (6, 2, 2))
    texts = [tuple(torch.randn(1, 2, n, 8, generator=generator) for _ in range(2)) for n in (3, 7)]
    places = [slice(1, 3), torch.tensor([0, 3])]
    key, value = key.transpose(1, 2), value.transpose(1, 2)
    shared = shared_attention(query, key, value, [(p, *t) for p, t in zip(places, texts, strict=True)])
    for sample, text in ((0, 1), (1, 0), (2, 0), (3, 1)):
        keys, values = (
            torch.cat([t, own[sample : sample + 1]], dim=2) for t, own in zip(texts[text], (key, value), strict=True)
        )
        expected = full_attention(query[sample : sample + 1], keys, values, None)
        torch.testing.assert_close(shared[sample], expected[0], atol=1e-5, rtol=0)


def sample(batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn(batch, 4, *PLAN.latent_grid, generator=generator)
    return latents, torch.randn(batch, PLAN.rows, 6, generator=generator), torch.linspace(120, 990, batch)


def velocities(transformer, text: TextCache, index, latents, rows, times) -> runtime.Velocity:
    domains = list(range(len(latents)))
    return runtime.velocity(transformer, PLAN, text, index, latents, rows, times, domains, ("action", "video"))


def assert_equal(one: runtime.Velocity, other: runtime.Velocity) -> None:
    torch.testing.assert_close(one.action, other.action, atol=1e-5, rtol=0)
    torch.testing.assert_close(one.video, other.video, atol=1e-5, rtol=0)


def test_with_and_without_gradients_is_the_same(transformer):
    """Without gradients a text is shared; with them every sample has a padded row of it."""
    latents, rows, times = sample(4)
    text = runtime.encode_text(transformer, list(TEXTS.values()))
    kept = velocities(transformer, text, [1, 0, 2, 0], latents, rows, times)
    with torch.no_grad():
        shared = velocities(transformer, text, [1, 0, 2, 0], latents, rows, times)
    assert kept.action.requires_grad and not shared.action.requires_grad
    assert_equal(shared, kept)


@pytest.mark.parametrize("gradients", [False, True])
def test_branches_of_guidance_equal_a_batch_of_twice_the_size(transformer, gradients):
    latents, rows, times = sample(2)
    text = runtime.encode_text(transformer, list(TEXTS.values()))
    with torch.set_grad_enabled(gradients):
        branches = velocities(transformer, text, [[1, 2], [0, 0]], latents, rows, times)
        twice = runtime.velocity(
            transformer, PLAN, text, [1, 2, 0, 0], *(torch.cat([t, t]) for t in (latents, rows, times)), [0, 1, 0, 1],
            ("action", "video"),
        )  # fmt: skip
    assert branches.action.shape[0] == 4
    assert_equal(branches, twice)


@torch.no_grad()
def test_the_stream_of_branches_has_a_row_for_each(transformer):
    latents, rows, times = sample(2)
    text = runtime.encode_text(transformer, list(TEXTS.values()))
    streams = [
        runtime.velocity(transformer, PLAN, text, [[1, 2], [0, 0]], latents, rows, times, [0, 0], hidden_at=at).hidden
        for at in (0, 1)
    ]
    assert streams[0].shape == streams[1].shape and len(streams[0]) == 4
    assert torch.equal(streams[0][:2], streams[0][2:]) and not torch.equal(streams[1][:2], streams[1][2:])


def test_branches_of_another_length_are_refused(transformer):
    latents, rows, times = sample(2)
    text = runtime.encode_text(transformer, list(TEXTS.values()))
    with pytest.raises(InputError, match="in each branch"):
        velocities(transformer, text, [[1, 2, 0], [0, 0, 0]], latents, rows, times)
