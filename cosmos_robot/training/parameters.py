"""Which weights of a transformer are trained, how fast, and which begin anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from diffusers import Cosmos3OmniTransformer
from torch import nn

from cosmos_robot.training.model_config import PostTraining

HEADS: Final = ("action_proj_in", "action_proj_out", "action_modality_embed")
GENERATOR: Final = (
    "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "norm_added_q", "norm_added_k", "time_embedder", "proj_in",
    "proj_out", *HEADS,
)  # fmt: skip
"""Parts of a name that belong to the generator half, besides all that end in ``_moe_gen`` (cosmos-framework trains what
holds moe_gen, time_embedder, vae2llm, llm2vae, action2llm, llm2action or action_modality_embed)."""


def is_generator(name: str) -> bool:
    """Whether the parameter ``name`` is one of the generator half."""
    parts = name.split(".")
    return any(part in GENERATOR or part.endswith("_moe_gen") for part in parts)


def is_head(name: str) -> bool:
    """Whether the parameter ``name`` is one of the action heads or their embedding."""
    return any(part in HEADS for part in name.split("."))


def choose_trained(transformer: nn.Module, recipe: PostTraining) -> None:
    """Let those parameters require gradients that ``recipe`` trains, and no others."""
    for name, parameter in transformer.named_parameters():
        parameter.requires_grad_(recipe.trainable == "all" or is_generator(name))


def cast_frozen(transformer: nn.Module, dtype: torch.dtype) -> None:
    """Keep what is not trained in ``dtype``, so that it is there once; the time embedder stays float32."""
    for name, parameter in transformer.named_parameters():
        if not parameter.requires_grad and "time_embedder" not in name.split("."):
            parameter.data = parameter.data.to(dtype)


def parameter_groups(module: nn.Module, recipe: PostTraining) -> list[dict]:
    """AdamW's groups of what requires gradients. Vectors are not decayed, nor are action heads, whose rows of other
    domains would fade. ``factor``: how much faster than the rate a group learns."""
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    rest = [p for name, p in trained if not is_head(name)]
    groups = [
        {"name": "matrices", "params": [p for p in rest if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"name": "vectors", "params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
        {"name": "heads", "params": [p for n, p in trained if is_head(n)], "weight_decay": 0.0},
    ]
    factors = {"heads": recipe.head_factor}
    return [group | {"factor": factors.get(group["name"], 1.0)} for group in groups if group["params"]]


def optimizer(module: nn.Module, recipe: PostTraining) -> torch.optim.AdamW:
    """AdamW over ``parameter_groups``; the rate is set every step."""
    return torch.optim.AdamW(parameter_groups(module, recipe), lr=0.0, betas=recipe.betas, eps=recipe.eps, fused=True)


@torch.no_grad()
def reinitialise_heads(transformer: Cosmos3OmniTransformer, domains: Iterable[int], seed: int) -> None:
    """Draw the action heads' weights of ``domains`` anew, as ``backbone.cosmos3.tiny.initialise`` draws those of all:
    rows in with a standard deviation of action_dim ** -0.5, rows out 0.01, biases 0."""
    generator = torch.Generator().manual_seed(seed)
    width_in = transformer.config.action_dim**-0.5
    for domain in sorted(set(domains)):
        for projection, std in ((transformer.action_proj_in, width_in), (transformer.action_proj_out, 0.01)):
            row = projection.fc.weight[domain]
            row.copy_(std * torch.randn(row.shape, generator=generator))
            projection.bias.weight[domain].zero_()
