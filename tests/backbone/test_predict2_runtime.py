"""The forward that samples use against diffusers' own, for every kind of input that it shares work over."""

from __future__ import annotations

import pytest
import torch

from cosmos_robot.backbone.predict2 import sampler
from cosmos_robot.backbone.predict2.edm import denoise, noise_levels, start_noise
from cosmos_robot.backbone.predict2.network import Given, network_output, predict_clean
from cosmos_robot.backbone.predict2.runtime import SharedForward
from cosmos_robot.backbone.predict2.sampler import sample
from cosmos_robot.backbone.predict2.tiny import tiny_transformer
from cosmos_robot.errors import InputError

PATTERNS = ("11110", "11000", "10010", "00000", "01101")
GRID = (5, 4, 6)
LEVELS = noise_levels(4, 4, 80)


@pytest.fixture(scope="module")
def network():
    """Weights large enough that everything counts, norms included."""
    found = tiny_transformer(0, num_attention_heads=2, text_embed_dim=8, num_layers=3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in found.parameters():
            if parameter.ndim == 1:
                parameter.normal_(1, 0.3, generator=generator)
            else:
                parameter.mul_(4)
    return found


def padded(rows: int, seed: int = 0, tokens: int = 6) -> torch.Tensor:
    text = torch.zeros(tokens, 8)
    text[:rows] = torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))
    return text


@pytest.mark.parametrize("rows", [1, 4, 6])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_the_networks_output(network, pattern: str, rows: int) -> None:
    clean, times = torch.tensor([c == "1" for c in pattern]), (0.9, 0.4)
    latents, text = start_noise([1, 2], (16, *GRID)), padded(rows)
    shared = SharedForward(network, text, clean.tolist(), GRID, times)
    with torch.no_grad():
        piece = shared.piece(latents)
        for call in (1, 0, 1):  # the order of calls leaves no trace
            noisy = latents * (1 + call)
            entered = torch.where(clean[:, None, None], latents, noisy)
            time = torch.where(clean, 0.0, times[call])[None, None, :, None, None].expand(2, 1, -1, 1, 1)
            given = Given(latents, clean.expand(2, -1), text.expand(2, -1, -1))
            expected = network_output(network, entered, time, given)[:, :, ~clean]
            torch.testing.assert_close(piece(noisy[:, :, ~clean], call), expected, atol=2e-5, rtol=1e-4)


def plainly(network, given: Given, seeds) -> torch.Tensor:
    """The same solver over diffusers' forward, for each sample by itself."""
    out = []
    for i, seed in enumerate(seeds):
        own = Given(given.latents[i : i + 1], given.clean[i : i + 1], given.text[[given.reads[i]]])

        def clean(state: torch.Tensor, level: float, own: Given = own) -> torch.Tensor:
            return predict_clean(network, own, state, torch.tensor([level]))

        out.append(denoise(clean, start_noise([seed], (16, *GRID)) * LEVELS[0], LEVELS))
    return torch.cat(out).float()


def mixed() -> Given:
    """Seven samples of two texts and two patterns, in no order."""
    clean = torch.tensor([[c == "1" for c in PATTERNS[i % 2]] for i in (0, 1, 0, 1, 1, 0, 0)])
    latents = start_noise(range(7), (16, *GRID))
    return Given(latents, clean, torch.stack([padded(2), padded(5, 1)]), [1, 0, 0, 1, 0, 0, 1])


@pytest.mark.parametrize("cached", [1, 2**17])
def test_samples_of_several_texts_and_patterns(network, monkeypatch, cached: int) -> None:
    """In parts that a cache holds or one by one, in float32."""
    monkeypatch.setattr(sampler, "CACHED", cached)
    with torch.no_grad():
        expected = plainly(network, mixed(), range(10, 17))
    found = sample(network, mixed(), range(10, 17), LEVELS)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)


def test_all_clean_is_left_alone(network) -> None:
    given = mixed()
    whole = Given(given.latents, torch.ones_like(given.clean), given.text, given.text_index)
    assert torch.equal(sample(network, whole, range(7), LEVELS), given.latents)


class Wrapped(torch.nn.Module):
    """An adapter around a linear layer."""

    def __init__(self, base: torch.nn.Module):
        super().__init__()
        self.base = base

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1.5 * self.base(x)


@pytest.mark.parametrize("place", ["attn1.to_v", "attn2.to_v", "attn2.to_out.0", "ff.net.2"])
def test_adapters_count(network, place: str) -> None:
    """A layer that is wrapped is called: in self-attention, in cross-attention, in the feed-forward."""
    block, (where, _, name) = network.transformer_blocks[1], place.rpartition(".")
    owner, before = block.get_submodule(where), sample(network, mixed(), range(7), LEVELS)
    inner = owner.get_submodule(name)
    owner._modules[name] = Wrapped(inner)
    try:
        changed = sample(network, mixed(), range(7), LEVELS)
        with torch.no_grad():
            expected = plainly(network, mixed(), range(7))
    finally:
        owner._modules[name] = inner
    assert (changed - before).abs().max() > 1e-3
    torch.testing.assert_close(changed, expected, atol=5e-4, rtol=1e-3)


def test_texts_that_are_not_there_are_refused(network) -> None:
    given = mixed()
    for wrong in ([0, 1], [0, 0, 0, 0, 0, 0, 2]):
        with pytest.raises(InputError, match="read the texts"):
            sample(network, Given(given.latents, given.clean, given.text, wrong), range(7), LEVELS)
