"""AutoencoderKLWan on single pictures, as plain 2-D convolutions.

The Wan autoencoder is causal in time: for the first frame every temporal tap but the last reads padding zeros, and the
temporal down- and upsamplers pass it through. Running only the last slice of each kernel therefore gives the same
numbers as ``vae.encode`` and ``vae.decode`` on a one-frame video, several times faster, with gradients to the very
same parameters. Only the residual (Wan 2.2) form is supported.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from torch import Tensor, nn

from cosmos_robot.errors import InputError


def encode_images(vae: AutoencoderKLWan, pixels: Tensor) -> Tensor:
    """Posterior mode of pictures (B, 3, H, W) in [-1, 1]: raw latents (B, z_dim, H/16, W/16), not yet standardised.

    Equal to ``vae.encode(pixels[:, :, None]).latent_dist.mode()[:, :, 0]``. Raises InputError for the Wan 2.1 form.
    """
    _require_residual(vae)
    x = _patchify(pixels, vae.config.patch_size or 1)
    encoder = vae.encoder
    x = _conv(encoder.conv_in, x)
    for block in encoder.down_blocks:
        shortcut = _average_down(block.avg_shortcut, x)
        for resnet in block.resnets:
            x = _resnet(resnet, x)
        if block.downsampler is not None:
            x = block.downsampler.resample(x)
        x = x + shortcut
    x = _mid(encoder.mid_block, x)
    x = _conv(encoder.conv_out, _norm_silu(encoder.norm_out, x))
    # quant_conv is 1x1x1; the mode is the first half of its channels
    weight, bias = vae.quant_conv.weight[: vae.z_dim, :, 0], vae.quant_conv.bias[: vae.z_dim]
    return F.conv2d(x, weight, bias)


def decode_images(vae: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """Pictures (B, 3, 16 h, 16 w) from raw latents (B, z_dim, h, w), not clamped to [-1, 1].

    Clamped, equal to ``vae.decode(latents[:, :, None]).sample[:, :, 0]``.
    """
    _require_residual(vae)
    decoder = vae.decoder
    x = _conv(decoder.conv_in, _conv(vae.post_quant_conv, latents))
    x = _mid(decoder.mid_block, x)
    for block in decoder.up_blocks:
        shortcut = None if block.avg_shortcut is None else _duplicate_up(block.avg_shortcut, x)
        for resnet in block.resnets:
            x = _resnet(resnet, x)
        if block.upsampler is not None:
            x = block.upsampler.resample[1](F.interpolate(x, scale_factor=2, mode="nearest"))
        if shortcut is not None:
            x = x + shortcut
    x = _conv(decoder.conv_out, _norm_silu(decoder.norm_out, x))
    return _unpatchify(x, vae.config.patch_size or 1)


def _require_residual(vae: AutoencoderKLWan) -> None:
    if not vae.config.is_residual:
        raise InputError("image mode needs the residual (Wan 2.2) autoencoder; got is_residual=False, use vae.encode")


def _conv(conv: nn.Conv3d, x: Tensor) -> Tensor:
    weight = conv.weight[:, :, -1]
    return F.conv2d(x, weight, conv.bias, stride=conv.stride[1:], padding=tuple(k // 2 for k in weight.shape[2:]))


class _NormSilu(torch.autograd.Function):
    """silu(x / rms(x) * gamma) over the channels of (B, C, H, W), with the few passes over memory a CPU can afford.

    Built from separate operations the norms cost more than the convolutions: 30 % of a training step.
    """

    @staticmethod
    def forward(ctx, x: Tensor, gamma: Tensor) -> Tensor:
        inverse = _channel_mean(x * x).clamp_min_(1e-20).rsqrt_()
        unit = x * inverse
        ctx.save_for_backward(unit, inverse, gamma)
        return F.silu(unit * gamma.to(x.dtype))

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        unit, inverse, gamma = ctx.saved_tensors
        scale = gamma.to(unit.dtype)
        grad = torch.ops.aten.silu_backward(grad.to(unit.dtype), unit * scale)
        grad_gamma = (grad * unit).sum((0, 2, 3), dtype=torch.float32).reshape(gamma.shape).to(gamma.dtype)
        grad = grad * scale
        return (grad - unit * _channel_mean(grad * unit)).mul_(inverse), grad_gamma


def _channel_mean(x: Tensor) -> Tensor:
    """Mean over channels, (B, 1, H, W); as a product with ones it is several times faster than a short reduction."""
    ones = x.new_full((x.shape[1], 1), 1 / x.shape[1])
    return torch.matmul(x.permute(0, 2, 3, 1), ones).permute(0, 3, 1, 2)


def _norm_silu(norm: nn.Module, x: Tensor) -> Tensor:
    return _NormSilu.apply(x, norm.gamma.reshape(1, -1, 1, 1))


def _norm(norm: nn.Module, x: Tensor) -> Tensor:
    inverse = _channel_mean(x * x).clamp_min(1e-20).rsqrt()
    return x * inverse * norm.gamma.reshape(1, -1, 1, 1).to(x.dtype)


def _resnet(block: nn.Module, x: Tensor) -> Tensor:
    shortcut = x if isinstance(block.conv_shortcut, nn.Identity) else _conv(block.conv_shortcut, x)
    x = _conv(block.conv1, _norm_silu(block.norm1, x))
    return _conv(block.conv2, _norm_silu(block.norm2, x)) + shortcut


def _attention(block: nn.Module, x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    qkv = block.to_qkv(_norm(block.norm, x)).flatten(2).transpose(1, 2)
    q, k, v = qkv.chunk(3, dim=-1)
    out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, channels, height, width)
    return x + block.proj(out)


def _mid(block: nn.Module, x: Tensor) -> Tensor:
    x = _resnet(block.resnets[0], x)
    for attention, resnet in zip(block.attentions, block.resnets[1:], strict=True):
        x = _resnet(resnet, _attention(attention, x))
    return x


def _average_down(module: nn.Module, x: Tensor) -> Tensor:
    """AvgDown3D on the first frame, whose partner in time (if it halves time) is a zero frame before it."""
    batch, _, height, width = x.shape
    s = module.factor_s
    x = F.pixel_unshuffle(x, s) if s > 1 else x
    x = x.view(batch, module.in_channels, 1, s * s, height // s, width // s)
    if module.factor_t > 1:
        x = F.pad(x, (0, 0, 0, 0, 0, 0, module.factor_t - 1, 0))
    return x.reshape(batch, module.out_channels, module.group_size, height // s, width // s).mean(2)


def _duplicate_up(module: nn.Module, x: Tensor) -> Tensor:
    """DupUp3D on the first frame, which keeps only the last of its copies in time."""
    batch, _, height, width = x.shape
    s = module.factor_s
    x = x.repeat_interleave(module.repeats, dim=1)
    x = x.view(batch, module.out_channels, module.factor_t, s * s, height, width)[:, :, -1]
    return F.pixel_shuffle(x.reshape(batch, module.out_channels * s * s, height, width), s)


def _patchify(x: Tensor, size: int) -> Tensor:
    """(B, C, H, W) to (B, C s s, H/s, W/s) in Wan's channel order: channel, then column, then row."""
    batch, channels, height, width = x.shape
    x = x.view(batch, channels, height // size, size, width // size, size)
    return x.permute(0, 1, 5, 3, 2, 4).reshape(batch, channels * size * size, height // size, width // size)


def _unpatchify(x: Tensor, size: int) -> Tensor:
    batch, channels, height, width = x.shape
    x = x.view(batch, channels // (size * size), size, size, height, width)
    return x.permute(0, 1, 4, 3, 5, 2).reshape(batch, channels // (size * size), height * size, width * size)
