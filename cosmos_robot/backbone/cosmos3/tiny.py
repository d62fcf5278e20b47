"""Small random-weight models of exactly the released architecture, to train on a laptop and to test with."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLWan, Cosmos3OmniTransformer
from torch import nn

TRANSFORMER = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rope_axes_dim": [12, 10, 10],
    "latent_channel": 48,
    "latent_patch_size": 1,
    "patch_latent_dim": 48,
    "action_gen": True,
    "action_dim": 16,
    "num_embodiment_domains": 32,
}


def tiny_transformer(vocab_size: int, seed: int, **changes) -> Cosmos3OmniTransformer:
    """A float32 transformer of the sizes in ``TRANSFORMER``, overridden by ``changes``, initialised for training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Cosmos3OmniTransformer(**{**TRANSFORMER, "vocab_size": vocab_size, **changes})
    initialise(model, seed)
    return model


@torch.no_grad()
def initialise(model: Cosmos3OmniTransformer, seed: int) -> None:
    """Re-draw every weight: linear layers std 0.02 (those that end a residual branch / sqrt(2 * layers)), token
    embedding 0.5, action rows in 0.25 and out 0.01, biases 0.

    Left to diffusers, the action projections are embeddings of std 1: their outputs would have a std near 16.
    """
    generator = torch.Generator().manual_seed(seed)
    residual = 0.02 / (2 * model.config.num_hidden_layers) ** 0.5
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            ends_branch = name.endswith(("to_out", "to_add_out", "down_proj"))
            module.weight.normal_(0, residual if ends_branch else 0.02, generator=generator)
            if module.bias is not None:
                module.bias.zero_()
    model.embed_tokens.weight.normal_(0, 0.5, generator=generator)
    if model.config.action_gen:
        for projection, std in ((model.action_proj_in, 0.25), (model.action_proj_out, 0.01)):
            projection.fc.weight.normal_(0, std, generator=generator)
            projection.bias.weight.zero_()


def tiny_vae(seed: int, base_dim: int = 8, decoder_base_dim: int | None = None) -> AutoencoderKLWan:
    """A float32 Wan 2.2 autoencoder in small: 48 channels, 16x in space, 4x in time, no trained statistics yet.
    The decoder is as wide as the encoder unless ``decoder_base_dim`` is given."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoencoderKLWan(
            base_dim=base_dim,
            decoder_base_dim=decoder_base_dim,
            z_dim=48,
            dim_mult=[1, 2, 4, 4],
            num_res_blocks=1,
            temperal_downsample=[False, True, True],
            is_residual=True,
            in_channels=12,
            out_channels=12,
            patch_size=2,
            scale_factor_spatial=16,
            scale_factor_temporal=4,
            latents_mean=[0.0] * 48,
            latents_std=[1.0] * 48,
        )
