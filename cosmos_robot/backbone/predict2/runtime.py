"""The forward of Cosmos Policy's network for sampling, over the modules of diffusers' ``CosmosTransformer3DModel``.

Equal to ``network.network_output`` up to rounding, without a gradient, for samples that share their text and the
pattern of their clean frames. What such samples and their steps have in common is computed once:

- a norm's shift, scale and gate for each of the two times, of clean and of noisy frames, instead of each token;
- keys and values of the text, for all samples and steps; its last rows, which are padding and all alike, are one key
  that counts as many times; the products behind them are folded into the values;
- what the first layer makes of the clean frames, for all steps; the last layer answers noisy tokens only.

Modules are called, not their weights read, except those of norms, so that adapters around them (LoRA) count.

Legend: B samples, L latent frames of h x w cells, P patches of a frame, N = L * P tokens, n noisy ones among them, E
width, H heads of d, m keys of the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from diffusers import CosmosTransformer3DModel
from torch import Tensor, nn


class Text(NamedTuple):
    """What one layer reads of a text. keys (E, H * m): head by head, the norm of queries and the scale in it. values
    (H * m, E): what each key adds to the stream. weight (m,): added to the scores, None where every key counts once."""

    keys: Tensor
    values: Tensor
    weight: Tensor | None


class Modulation(NamedTuple):
    """shift, 1 + scale and gate of one norm: of clean tokens and of noisy ones (E,) each, and frame by frame (L, 1, E),
    all of them in this order."""

    clean: tuple[Tensor, ...]
    noisy: tuple[Tensor, ...]
    frames: tuple[Tensor, ...]


class Tables(NamedTuple):
    """Rotary cosines and signed sines of all tokens (N, 1, d), times the weight of a norm."""

    cos: Tensor
    sin: Tensor


class SharedForward:
    """The network for samples of one text (tokens, width) and one pattern of clean frames (L,), at some times.

    times: of the noisy frames in each call, from 0 to 1. grid: L, h, w.
    """

    def __init__(
        self,
        network: CosmosTransformer3DModel,
        text: Tensor,
        clean: Sequence[bool],
        grid: tuple[int, int, int],
        times: Sequence[float],
    ):
        self.network, self.grid, self.clean = network, grid, tuple(clean)
        self.device, self.kind = text.device, network.dtype
        self.noisy_frames = [i for i, c in enumerate(clean) if not c]
        patch = network.config.patch_size[1]
        self.patches = grid[1] // patch * (grid[2] // patch)
        self.noisy = _places(self.noisy_frames, self.patches, self.device)
        self.known = _places([i for i, c in enumerate(clean) if c], self.patches, self.device)
        blocks = network.transformer_blocks
        short, weight = _without_padding(text.to(self.kind))
        self.texts = [_read_text(block.attn2, short, weight) for block in blocks]
        turn = network.rope(torch.empty(1, 1, *grid, device=self.device))
        self.turns = [tuple(_tables(turn, norm) for norm in (b.attn1.norm_q, b.attn1.norm_k)) for b in blocks]
        self._modulate(times)

    def piece(self, latents: Tensor) -> Piece:
        """Some samples (B, C, L, h, w), whose clean frames are read now."""
        return Piece(self, latents)

    def _modulate(self, times: Sequence[float]) -> None:
        """``layers`` and ``ends``: for each call the modulations of every layer's three norms, and of the last norm."""
        rows = torch.tensor([0.0, *times], dtype=torch.float32).to(self.device, self.kind)
        like = torch.empty(0, dtype=self.kind, device=self.device)
        shared, waves = self.network.time_embed(like, rows)
        pattern = torch.tensor([0 if c else 1 for c in self.clean], device=self.device)
        parts = [
            [_modulation(norm, shared, waves, 3) for norm in (block.norm1, block.norm2, block.norm3)]
            for block in self.network.transformer_blocks
        ]
        end = _modulation(self.network.norm_out, shared, waves, 2)
        self.layers, self.ends = [], []
        for call in range(1, len(rows)):
            self.layers.append([[_framed(table[[0, call]], pattern) for table in layer] for layer in parts])
            self.ends.append(tuple(part[call] for part in end.unbind(1)))

    def embed(self, latents: Tensor, clean: Sequence[bool]) -> Tensor:
        """(B, C, frames, h, w) to tokens (B, frames * P, E); clean: of these frames."""
        mask = torch.tensor(clean, dtype=self.kind, device=latents.device)[None, None, :, None, None]
        parts = [latents.to(self.kind), mask.expand(len(latents), 1, -1, *latents.shape[3:])]
        if self.network.config.concat_padding_mask:
            parts.append(torch.zeros_like(latents[:, :1], dtype=self.kind))
        return self.network.patch_embed(torch.cat(parts, dim=1)).flatten(1, 3)

    def unpatched(self, tokens: Tensor) -> Tensor:
        """(B, n, p * p * C) to (B, C, noisy frames, h, w) float32."""
        patch = self.network.config.patch_size[1]
        frames, (_, height, width) = len(self.noisy_frames), self.grid
        grid = tokens.unflatten(2, (patch, patch, -1)).unflatten(1, (frames, height // patch, width // patch))
        return grid.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4).float()


class Piece:
    """Samples that go through the calls together."""

    def __init__(self, shared: SharedForward, latents: Tensor):
        self.shared = shared
        whole = shared.embed(latents, shared.clean)
        block, layer = shared.network.transformer_blocks[0], shared.layers[0][0]
        self._tokens = whole
        self._heads = (block.attn1.heads, -1)
        self._given = [torch.empty(*whole.shape[:2], *self._split(whole).shape[2:]) for _ in range(3)]
        self._given = [part.to(whole) for part in self._given]
        if shared.known is not None:
            self._first(whole[:, shared.known], layer[0].clean, shared.known)

    def __call__(self, noisy: Tensor, call: int) -> Tensor:
        """The network's output (B, C, noisy frames, h, w) float32. noisy: what enters, of the noisy frames alone."""
        shared, network = self.shared, self.shared.network
        embedded = shared.embed(noisy, [False] * noisy.shape[2])
        self._tokens[:, shared.noisy] = embedded
        self._first(embedded, shared.layers[call][0][0].noisy, shared.noisy)
        x, own = self._tokens, True
        last = len(network.transformer_blocks) - 1
        for number, block in enumerate(network.transformer_blocks):
            x = self._layer(block, number, x, shared.layers[call][number], own, number == last)
            own = False
        shift, scale = shared.ends[call]
        return shared.unpatched(network.proj_out(_normed(network.norm_out.norm, x, shift, scale)))

    def _first(self, x: Tensor, how: tuple[Tensor, ...], where: Any) -> None:
        """Queries, keys and values of some tokens entering the first layer, kept in their places."""
        attention = self.shared.network.transformer_blocks[0].attn1
        normed = _normed(self.shared.network.transformer_blocks[0].norm1.norm, x, how[0], how[1])
        turns = [Tables(t.cos[where], t.sin[where]) for t in self.shared.turns[0]]
        for kept, part in zip(self._given, self._qkv(attention, normed, normed, turns), strict=True):
            kept[:, where] = part

    def _layer(
        self, block: nn.Module, number: int, x: Tensor, how: Sequence[Modulation], given: bool, last: bool
    ) -> Tensor:
        """(B, N, E) to the same, or to noisy tokens alone (B, n, E) in the last layer. given: whether queries, keys and
        values are there already, as they are in the first."""
        noisy, turns = self.shared.noisy, self.shared.turns[number]
        if given:
            query, key, value = self._given
            query = query[:, noisy] if last else query
        else:
            normed = self._modulated(block.norm1.norm, x, how[0], False)
            asked = normed[:, noisy] if last else normed
            asking = Tables(turns[0].cos[noisy], turns[0].sin[noisy]) if last else turns[0]
            query, key, value = self._qkv(block.attn1, asked, normed, (asking, turns[1]))
        x = x[:, noisy] if last else x
        parts = [part.transpose(1, 2) for part in (query, key, value)]
        found = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        x = self._added(x, block.attn1.to_out[0](found), how[0], last)
        found = _attend_text(block.attn2, self._modulated(block.norm2.norm, x, how[1], last), self.shared.texts[number])
        x = self._added(x, found, how[1], last)
        return self._added(x, block.ff(self._modulated(block.norm3.norm, x, how[2], last)), how[2], last)

    def _qkv(self, attention: nn.Module, asked: Tensor, read: Tensor, turns: Sequence[Tables]) -> tuple[Tensor, ...]:
        query, key = self._split(attention.to_q(asked)), self._split(attention.to_k(read))
        return (
            _turned(attention.norm_q, query, turns[0]),
            _turned(attention.norm_k, key, turns[1]),
            self._split(attention.to_v(read)),
        )

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, self._heads)

    def _modulated(self, norm: nn.Module, x: Tensor, how: Modulation, noisy: bool) -> Tensor:
        if noisy:
            return _normed(norm, x, how.noisy[0], how.noisy[1])
        frames = norm(x).unflatten(1, (-1, self.shared.patches))
        return torch.addcmul(how.frames[0], frames, how.frames[1]).flatten(1, 2)

    def _added(self, x: Tensor, found: Tensor, how: Modulation, noisy: bool) -> Tensor:
        if noisy:
            return torch.addcmul(x, how.noisy[2], found)
        shape = (-1, self.shared.patches)
        return torch.addcmul(x.unflatten(1, shape), how.frames[2], found.unflatten(1, shape)).flatten(1, 2)


def _places(frames: Sequence[int], patches: int, device: torch.device) -> slice | Tensor | None:
    """The tokens of some frames: a slice where they stand together, None where there are none."""
    if not frames:
        return None
    if frames[-1] - frames[0] + 1 == len(frames):
        return slice(frames[0] * patches, (frames[-1] + 1) * patches)
    return torch.tensor([f * patches + i for f in frames for i in range(patches)], device=device)


def _without_padding(text: Tensor) -> tuple[Tensor, Tensor | None]:
    """(tokens, width) whose last rows, if they are all alike, are one row; and what to add to its score for that."""
    unlike = (text != text[-1]).any(-1).nonzero()
    keep = int(unlike[-1]) + 1 if len(unlike) else 0
    count = len(text) - keep
    if count == 1:
        return text, None
    weight = torch.zeros(keep + 1, device=text.device)
    weight[-1] = math.log(count)
    return text[: keep + 1], weight


def _read_text(attention: nn.Module, text: Tensor, weight: Tensor | None) -> Text:
    heads = attention.heads
    key = attention.norm_k(attention.to_k(text).unflatten(-1, (heads, -1)))
    value = attention.to_v(text).unflatten(-1, (heads, -1))
    count, _, width = key.shape
    key = key * attention.norm_q.weight * width**-0.5
    keys = torch.block_diag(*key.unbind(1)).T.contiguous()
    rows = torch.block_diag(*value.unbind(1))
    out = attention.to_out[0]
    base = out(torch.zeros(1, heads * width, dtype=text.dtype, device=text.device))
    return Text(keys, out(rows) - base + base / heads, weight)


def _attend_text(attention: nn.Module, x: Tensor, text: Text) -> Tensor:
    """(B, N, E) to what the text adds to it, all samples as one long row of tokens."""
    query = attention.to_q(x)
    inverse = _inverse_rms(query.unflatten(-1, (attention.heads, -1)), attention.norm_q.eps)
    scores = (query @ text.keys).unflatten(-1, (attention.heads, -1)).float() * inverse
    if text.weight is not None:
        scores = scores + text.weight
    return scores.softmax(-1).flatten(-2).to(x.dtype) @ text.values


def _tables(turn: tuple[Tensor, Tensor], norm: nn.Module) -> Tables:
    cos, sin = (part.float().unsqueeze(1) for part in turn)
    weight = norm.weight.float()
    half = cos.shape[-1] // 2
    other = torch.cat([-weight[half:], weight[:half]])
    return Tables(cos * weight, sin * other)


def _turned(norm: nn.Module, x: Tensor, tables: Tables) -> Tensor:
    """(B, n, H, d) after the norm and the rotation, which pairs the two halves of a head."""
    wide = x.float()
    swapped = wide.roll(wide.shape[-1] // 2, -1)
    turned = (wide * tables.cos).addcmul_(swapped, tables.sin)
    return turned.mul_(_inverse_rms(wide, norm.eps)).to(x.dtype)


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return size.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def _modulation(norm: nn.Module, shared: Tensor, waves: Tensor, parts: int) -> Tensor:
    """(times, parts, E): shift, 1 + scale and, of three parts, gate."""
    found = norm.linear_2(norm.linear_1(norm.activation(waves)))
    table = (found + shared[..., : found.shape[-1]]).unflatten(-1, (parts, -1)).clone()
    table[:, 1] += 1
    return table


def _framed(table: Tensor, pattern: Tensor) -> Modulation:
    clean, noisy = (tuple(part.unbind()) for part in table)
    return Modulation(clean, noisy, tuple(part[:, None] for part in table[pattern].unbind(1)))


def _normed(norm: nn.Module, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return F.layer_norm(x, norm.normalized_shape, scale, shift, norm.eps)
