import pytest
import torch
from diffusers import AutoencoderKLWan

from cosmos_robot.backbone.cosmos3.image_codec import decode_images, encode_images
from cosmos_robot.backbone.cosmos3.tiny import tiny_vae
from cosmos_robot.errors import InputError


@pytest.fixture(scope="module")
def vae() -> AutoencoderKLWan:
    return tiny_vae(seed=3, base_dim=8)


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0)) * 2 - 1


def test_encode_equals_diffusers(vae, pixels):
    with torch.no_grad():
        expected = vae.encode(pixels.unsqueeze(2)).latent_dist.mode()[:, :, 0]
        found = encode_images(vae, pixels)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_decode_equals_diffusers(vae):
    latents = torch.randn(2, 48, 4, 6, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = vae.decode(latents.unsqueeze(2)).sample[:, :, 0]
        found = decode_images(vae, latents).clamp(-1, 1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_gradients_equal_diffusers(vae, pixels):
    """Through encoder and decoder, for every parameter; temporal taps that one frame never reads get zeros in both."""

    def gradients(encode, decode) -> dict[str, torch.Tensor]:
        vae.zero_grad()
        decode(encode(pixels)).square().mean().backward()
        return {name: p.grad.clone() for name, p in vae.named_parameters() if p.grad is not None}

    expected = gradients(
        lambda x: vae.encode(x.unsqueeze(2)).latent_dist.mode(), lambda z: vae.decode(z * 0.1).sample[:, :, 0]
    )
    found = gradients(lambda x: encode_images(vae, x), lambda z: decode_images(vae, z * 0.1))
    assert len(found) > 100
    for name, gradient in found.items():
        scale = expected[name].abs().max().clamp_min(1e-6)
        assert (gradient - expected[name]).abs().max() / scale < 1e-3, name


def test_wan21_form_is_refused(pixels):
    plain = AutoencoderKLWan(base_dim=4, z_dim=4, dim_mult=[1, 1], num_res_blocks=1, temperal_downsample=[False])
    with pytest.raises(InputError, match="is_residual"):
        encode_images(plain, pixels)
