"""The inner operations that decide the speed on a CPU: RMS norm with a lean backward, attention of generation tokens
to themselves and to a text that many samples share, and long layers in pieces. In a bfloat16 training step of the tiny
model they take less than half the time of diffusers' norm modules and torch's fused attention.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PIECE = 4096
"""Tokens that go through a feed-forward layer at a time where no gradient is kept."""

SharedText = tuple[slice | Tensor, Tensor, Tensor]
"""Samples of a batch (along its first axis) and the keys and values (1, Hk, n, d) that all of them read."""


class _RMSNorm(torch.autograd.Function):
    """Root-mean-square norm over the last axis in float32; saves its input instead of four intermediates."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        wide = x.float()
        mean_square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        inverse = mean_square.add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (wide * inverse).mul_(weight).to(dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        x, weight, inverse = ctx.saved_tensors
        grad, weight32 = grad.float(), weight.float()
        unit = x.float() * inverse
        product = grad * unit
        along = (product @ weight32).unsqueeze(-1).div_(-x.shape[-1])
        grad_x = unit.mul_(along).addcmul_(grad, weight32).mul_(inverse)
        return grad_x.to(x.dtype), product.flatten(0, -2).sum(0).to(weight.dtype), None, None


def rms_norm(module: nn.Module, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """What an RMS norm module of diffusers computes, in ``dtype`` (default: that of its weight). ``nn.Identity``, which
    stands where a model has no norm, passes through."""
    if isinstance(module, nn.Identity):
        return x
    with torch.autocast(x.device.type, enabled=False):
        return _RMSNorm.apply(x, module.weight, module.eps, dtype or module.weight.dtype)


def matmul_dtype(x: Tensor) -> torch.dtype:
    """The precision in which a linear layer would read ``x``: autocast's where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def full_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """(B, N, heads, d) over (B, Hk, M, d) to (B, N, heads * d); mask (B, 1, 1, M) is True where a key may be read.

    Query heads that share a key head are laid end to end along the query axis (no mask depends on the query), so
    keys are never repeated.
    """
    width, dtype = query.shape[-1], matmul_dtype(query)
    groups = _grouped(query, key.shape[1]).to(dtype)
    key, value = key.to(dtype), value.to(dtype)
    if dtype == torch.bfloat16 and query.device.type == "cpu":
        # The fused kernel's bfloat16 backward is three times slower on a CPU than plain products.
        scores = (groups * width**-0.5) @ key.transpose(-1, -2)
        if mask is not None:
            scores = scores + torch.where(mask, 0.0, -torch.inf).to(dtype)
        out = scores.softmax(-1) @ value
    else:
        out = F.scaled_dot_product_attention(groups, key, value, attn_mask=mask)
    return _ungrouped(out, query.shape[1])


def can_share_text(x: Tensor) -> bool:
    """Whether ``shared_attention`` serves here: no gradient, and a kernel that also returns its normaliser."""
    fused = hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
    return x.device.type == "cpu" and fused and not torch.is_grad_enabled()


def shared_attention(query: Tensor, key: Tensor, value: Tensor, texts: Sequence[SharedText]) -> Tensor:
    """(B, N, heads, d) over each sample's own (B, Hk, N, d) and over its text, to (B, N, heads * d); no gradient.

    The two softmaxes are merged by their normalisers, o + sigmoid(log z_text - log z) (o_text - o), so that a text is
    neither padded nor copied for the samples that read it.
    """
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    dtype = matmul_dtype(query)
    groups = _grouped(query, key.shape[1]).to(dtype)
    out, norm = attend(groups, key.to(dtype), value.to(dtype))
    for where, text_key, text_value in texts:
        part = groups[where]
        shape = (len(part), *text_key.shape[1:])
        read, text_norm = attend(part, text_key.to(dtype).expand(shape), text_value.to(dtype).expand(shape))
        share = torch.sigmoid(text_norm - norm[where]).to(dtype).unsqueeze(-1).expand_as(read)
        out[where] = torch.lerp(out[where], read, share)
    return _ungrouped(out, query.shape[1])


def in_pieces(module: nn.Module, x: Tensor) -> Tensor:
    """``module(x)`` over (B, N, E), token by token alike; at most ``PIECE`` tokens at a time where no gradient is kept,
    so that the wide intermediates of a large batch never exist all at once."""
    tokens = x.shape[0] * x.shape[1]
    if torch.is_grad_enabled() or tokens <= PIECE:
        return module(x)
    out = torch.empty_like(x)
    pieces = -(-tokens // PIECE)
    for source, target in zip(x.flatten(0, 1).chunk(pieces), out.flatten(0, 1).chunk(pieces), strict=True):
        target.copy_(module(source))
    return out


def _grouped(query: Tensor, key_heads: int) -> Tensor:
    return query.unflatten(2, (key_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)


def _ungrouped(out: Tensor, count: int) -> Tensor:
    return out.unflatten(2, (-1, count)).permute(0, 3, 1, 2, 4).reshape(len(out), count, -1)
