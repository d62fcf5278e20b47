"""What generation tokens read of the text half, kept once per prompt: joined, shared and looked up without copies.

The text half sees neither generation tokens nor time, so its keys and values are constants of a prompt
(cosmos-framework, omni_mot_model.py). Axis legend: U prompts, n text tokens, Hk key-value heads, d head width.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from cosmos_robot.errors import InputError


@dataclass(frozen=True)
class TextBlock:
    """Prompts that ran together: per layer rotated keys and values (U, Hk, n, d), right-padded.

    lengths: real tokens of each prompt.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class TextCache:
    """Prompts in order, block after block."""

    blocks: tuple[TextBlock, ...]

    def __len__(self) -> int:
        return len(self._places)

    @cached_property
    def _places(self) -> tuple[tuple[TextBlock, int], ...]:
        return tuple((block, row) for block in self.blocks for row in range(len(block.lengths)))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Real tokens of each prompt."""
        return tuple(block.lengths[row] for block, row in self._places)

    @property
    def device(self) -> torch.device:
        return self.blocks[0].keys[0].device

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values, padding included."""
        return sum(t.nbytes for block in self.blocks for t in (*block.keys, *block.values))

    def one(self, layer: int, prompt: int) -> tuple[Tensor, Tensor]:
        """Keys and values (1, Hk, n, d) of one prompt without its padding: views."""
        block, row = self._places[prompt]
        span = block.lengths[row]
        return block.keys[layer][row : row + 1, :, :span], block.values[layer][row : row + 1, :, :span]

    def rows(self, layer: int, index: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Keys and values (B, Hk, n, d) of the prompts in ``index``, right-padded to the same n in every layer."""
        if len(self.blocks) == 1:
            block = self.blocks[0]
            return _rows(block.keys[layer], index), _rows(block.values[layer], index)
        pairs = [self.one(layer, prompt) for prompt in index]
        longest = max(key.shape[2] for key, _ in pairs)
        keys, values = ([F.pad(t, (0, 0, 0, longest - t.shape[2])) for t in part] for part in zip(*pairs, strict=True))
        return torch.cat(keys), torch.cat(values)

    def trimmed(self) -> TextCache:
        """The same prompts, each in storage of its own without padding: what is worth keeping."""
        layers = range(len(self.blocks[0].keys))
        blocks = []
        for prompt, length in enumerate(self.lengths):
            pairs = [self.one(layer, prompt) for layer in layers]
            keys, values = (tuple(t.clone() for t in part) for part in zip(*pairs, strict=True))
            blocks.append(TextBlock(keys, values, (length,)))
        return TextCache(tuple(blocks))


def join_texts(caches: Sequence[TextCache]) -> TextCache:
    """One cache with the prompts of ``caches`` in order. Nothing is copied."""
    return TextCache(tuple(block for cache in caches for block in cache.blocks))


class TextStore:
    """Text caches by token ids, the least recently used dropped where their bytes pass ``limit``.

    A prompt that alone is larger than ``limit`` is encoded and not kept. Clear it when the weights have changed.
    """

    def __init__(self, encode: Callable[[Sequence[Sequence[int]]], TextCache], limit: int):
        if limit < 0:
            raise InputError(f"text store: expected a limit of at least 0 bytes, got {limit}")
        self._encode, self._limit = encode, limit
        self._kept: OrderedDict[tuple[int, ...], TextCache] = OrderedDict()
        self.nbytes = 0
        self.encoded = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, prompts: Sequence[Sequence[int]]) -> TextCache:
        """The cache of ``prompts``, in order; those not kept are encoded together. ``encoded`` counts them."""
        names = [tuple(ids) for ids in prompts]
        found = {name: self._kept[name] for name in names if name in self._kept}
        missing = [name for name in dict.fromkeys(names) if name not in found]
        if missing:
            self.encoded += len(missing)
            fresh = self._encode(missing)
            fresh = fresh.trimmed() if len(missing) > 1 else fresh
            found.update((name, TextCache((block,))) for name, block in zip(missing, fresh.blocks, strict=True))
        for name in names:
            self._keep(name, found[name])
        return join_texts([found[name] for name in names])

    def clear(self) -> None:
        self._kept.clear()
        self.nbytes = 0

    def _keep(self, name: tuple[int, ...], cache: TextCache) -> None:
        if cache.nbytes > self._limit:
            return
        if name not in self._kept:
            self._kept[name] = cache
            self.nbytes += cache.nbytes
        self._kept.move_to_end(name)
        while self.nbytes > self._limit:
            self.nbytes -= self._kept.popitem(last=False)[1].nbytes


def _rows(x: Tensor, index: Sequence[int]) -> Tensor:
    """x[index] along axis 0; a view where each row is taken once in order, or the only row by all."""
    if len(x) == 1 or list(index) == list(range(len(x))):
        return x.expand(len(index), *x.shape[1:])
    return x.index_select(0, torch.tensor(index, device=x.device))
