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


def join_texts(caches: Sequence[TextCache]) -> TextCache:
    """One cache with the prompts of ``caches`` in order. Nothing is copied."""
    return TextCache(tuple(block for cache in caches for block in cache.blocks))


class TextStore:
    """Text caches by prompt, the least recently used dropped where their bytes together pass ``limit``.

    ``encode`` makes the cache of one prompt; ``encoded`` counts its calls. A prompt that alone is larger than ``limit``
    is not kept. Clear the store when the weights have changed.
    """

    def __init__(self, encode: Callable[[str], TextCache], limit: int):
        if limit < 0:
            raise InputError(f"text store: expected a limit of at least 0 bytes, got {limit}")
        self._encode, self._limit = encode, limit
        self._kept: OrderedDict[str, TextCache] = OrderedDict()
        self.nbytes = self.encoded = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def prompts(self) -> tuple[str, ...]:
        """Those that are kept, the least recently used first."""
        return tuple(self._kept)

    def get(self, prompts: Sequence[str]) -> TextCache:
        """One cache with ``prompts`` in order."""
        return join_texts([self._one(prompt) for prompt in prompts])

    def clear(self) -> None:
        self._kept.clear()
        self.nbytes = 0

    def _one(self, prompt: str) -> TextCache:
        cache = self._kept.get(prompt)
        if cache is None:
            cache = self._kept[prompt] = self._encode(prompt)
            self.nbytes += cache.nbytes
            self.encoded += 1
        self._kept.move_to_end(prompt)
        while self.nbytes > self._limit:
            self.nbytes -= self._kept.popitem(last=False)[1].nbytes
        return cache


def _rows(x: Tensor, index: Sequence[int]) -> Tensor:
    """x[index] along axis 0; a view where each row is taken once in order, or the only row by all."""
    if len(x) == 1 or list(index) == list(range(len(x))):
        return x.expand(len(index), *x.shape[1:])
    return x.index_select(0, torch.tensor(index, device=x.device))
