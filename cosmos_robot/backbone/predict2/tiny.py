"""Small random-weight models of the released architecture, to train on a laptop and to test with."""

from __future__ import annotations

from typing import Any, Final

import torch
from diffusers import AutoencoderKLWan, CosmosTransformer3DModel
from torch import Tensor, nn

from cosmos_robot.backbone.predict2.network import as_published

TRANSFORMER: Final[dict[str, Any]] = {
    "in_channels": 17,
    "out_channels": 16,
    "num_attention_heads": 4,
    "attention_head_dim": 32,
    "num_layers": 2,
    "mlp_ratio": 4.0,
    "text_embed_dim": 32,
    "adaln_lora_dim": 16,
    "max_size": (128, 240, 240),
    "patch_size": (1, 2, 2),
    "rope_scale": (1.0, 3.0, 3.0),
    "concat_padding_mask": True,
    "extra_pos_embed_type": None,
}


def tiny_transformer(seed: int, **changes: Any) -> CosmosTransformer3DModel:
    """A float32 network of the sizes in ``TRANSFORMER``, overridden by ``changes``, initialised for training: linear
    layers std 0.02, those that end a branch / sqrt(2 * layers)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = CosmosTransformer3DModel(**{**TRANSFORMER, **changes})
    generator = torch.Generator().manual_seed(seed)
    residual = 0.02 / (2 * network.config.num_layers) ** 0.5
    with torch.no_grad():
        for name, module in network.named_modules():
            if isinstance(module, nn.Linear):
                ends_branch = name.endswith(("to_out.0", "ff.net.2"))
                module.weight.normal_(0, residual if ends_branch else 0.02, generator=generator)
    return as_published(network.eval())


def tiny_vae(seed: int, base_dim: int = 8) -> AutoencoderKLWan:
    """A float32 Wan 2.1 autoencoder in small: 16 channels, 8x in space, 4x in time, no trained statistics yet."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoencoderKLWan(
            base_dim=base_dim,
            z_dim=16,
            dim_mult=[1, 2, 4, 4],
            num_res_blocks=1,
            latents_mean=[0.0] * 16,
            latents_std=[1.0] * 16,
        ).eval()


def tiny_texts(prompts: list[str], width: int, seed: int = 0) -> dict[str, Tensor]:
    """Random rows (4, width), one text each, for ``TextEmbeddings``: models without a text encoder."""
    generator = torch.Generator().manual_seed(seed)
    return {prompt: torch.randn(4, width, generator=generator) for prompt in prompts}
