"""Optional ways to run the generation layers: compiled, replayed from CUDA graphs, or recomputed in the backward pass.
All are off unless asked for, and none changes what is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from diffusers import Cosmos3OmniTransformer
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from cosmos_robot.backbone.cosmos3.layers import generation_layer, text_layer
from cosmos_robot.errors import DependencyError, InputError

_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
_by_method: WeakSet[Cosmos3OmniTransformer] = WeakSet()
_compiled: WeakKeyDictionary[Cosmos3OmniTransformer, Callable[..., torch.Tensor]] = WeakKeyDictionary()


def compile_layers(transformer: Cosmos3OmniTransformer, cuda_graphs: bool = False) -> None:
    """Run this model's generation layers through ``torch.compile`` from now on; one graph serves all layers alike.

    cuda_graphs: also record and replay CUDA graphs (``reduce-overhead``), for shapes that repeat, as in a control loop.
    Raises InputError for CUDA graphs of a model that is on no CUDA device, DependencyError without a working compiler.
    """
    device = transformer.embed_tokens.weight.device
    if cuda_graphs and device.type != "cuda":
        raise InputError(f"compile_layers: CUDA graphs need a model on a CUDA device, this one is on {device}")
    compiled = torch.compile(generation_layer, mode="reduce-overhead" if cuda_graphs else "default", dynamic=False)
    try:
        torch.compile(lambda x: x + 1, dynamic=False)(torch.zeros(1, device=device))
    except Exception as error:  # whatever the compiler's tool chain stumbles over
        reason = str(error).strip().splitlines()[0]
        raise DependencyError(
            f"compile_layers: torch.compile does not work here: {reason}; install a C++ compiler (g++), or do without"
        ) from error
    _compiled[transformer] = compiled


def run_eagerly(transformer: Cosmos3OmniTransformer) -> None:
    """Undo ``compile_layers``."""
    _compiled.pop(transformer, None)


def generation_step(transformer: Cosmos3OmniTransformer) -> Callable[..., torch.Tensor]:
    """``layers.generation_layer`` as this model is to run it."""
    if transformer in _by_method:
        return lambda layer, *args: layer.run_generation(*args)
    return recomputed(transformer, _compiled.get(transformer, generation_layer))


def text_step(transformer: Cosmos3OmniTransformer) -> Callable[..., tuple[torch.Tensor, ...]]:
    """``layers.text_layer`` as this model is to run it."""
    if transformer in _by_method:
        return lambda layer, *args: layer.run_text(*args)
    return recomputed(transformer, text_layer)


def run_by_methods(transformer: Cosmos3OmniTransformer) -> tuple[str, ...]:
    """Run each layer through methods of its own from now on, and return their names: what shards a model gathers a
    layer's weights when it is told of a method (``register_fsdp_forward_method``), not when its parts are called."""
    for layer in transformer.layers:
        layer.run_generation = MethodType(_generation_method(transformer), layer)
        layer.run_text = MethodType(lambda layer, *args: recomputed(transformer, text_layer)(layer, *args), layer)
    _by_method.add(transformer)
    return "run_generation", "run_text"


def _generation_method(transformer: Cosmos3OmniTransformer) -> Callable[..., torch.Tensor]:
    return lambda layer, *args: recomputed(transformer, _compiled.get(transformer, generation_layer))(layer, *args)


def recomputed(transformer: Cosmos3OmniTransformer, layer: Callable[..., Any]) -> Callable[..., Any]:
    """``layer``, recomputed in the backward pass where the model has gradient checkpointing on (diffusers'
    ``enable_gradient_checkpointing``). The outputs of attention are kept: they are small and dear."""
    if not (transformer.gradient_checkpointing and torch.is_grad_enabled()):
        return layer
    kept = [getattr(torch.ops.aten, name).default for name in _ATTENTION if hasattr(torch.ops.aten, name)]
    return partial(
        checkpoint, layer, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, kept)
    )
