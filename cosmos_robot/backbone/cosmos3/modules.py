"""From weight files to diffusers' modules and back: headers checked first, read in place, written in shards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from diffusers.models.modeling_utils import ModelMixin
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from cosmos_robot.backbone.cosmos3.weights import (
    Stored,
    Weights,
    index_notes,
    part_weights,
    read_json,
    refuse_misfit,
    refuse_quantised,
)
from cosmos_robot.errors import CheckpointError

SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True)
class Planned:
    """A module without weights, and the files that hold exactly the weights it asks for. notes: what is ignored."""

    part: Path
    module: ModelMixin
    weights: Weights
    notes: tuple[str, ...]


def unfilled(kind: type[ModelMixin], config: Mapping[str, Any], where: Path) -> ModelMixin:
    """The module that a configuration describes, on the meta device (buffers are real). ``where`` is for messages."""
    try:
        with init_empty_weights():
            return kind.from_config(dict(config))
    except Exception as error:  # the library checks no field: whatever its constructor stumbles over
        raise CheckpointError(f"{where} describes no {kind.__name__}: {error}") from error


def shapes_of(module: ModelMixin) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight that a module asks for."""
    return {key: tuple(value.shape) for key, value in module.state_dict().items()}


def plan_module(kind: type[ModelMixin], part: Path) -> Planned:
    """Compare every key, shape and type on disk with what a part's config.json asks for, from headers alone.

    Raises CheckpointError for a broken file, quantised weights, or a weight that is missing, unknown or of another
    shape. Names that an index lists and no file holds are ignored, with a note.
    """
    config = read_json(part / "config.json")
    module = unfilled(kind, config, part / "config.json")
    weights = part_weights(part)
    refuse_quantised(part, config, weights.dtypes)
    refuse_misfit(part, weights.shapes, shapes_of(module))
    return Planned(part, module, weights, tuple(index_notes(part, weights)))


def fill(plan: Planned, dtype: torch.dtype, device: torch.device) -> ModelMixin:
    """The module with its weights on ``device``, in evaluation mode. On a CPU, weights stored in ``dtype`` stay where
    they are: parameters are views of the mapped file, private to this process."""
    kept = getattr(plan.module, "_keep_in_fp32_modules", None) or []
    state = {}
    for key, value in read_tensors(plan.weights.tensors):
        wide = any(word in kept for word in key.split("."))
        state[key] = value.to(device, torch.float32 if wide else dtype)
    plan.module.load_state_dict(state, strict=True, assign=True)
    return plan.module.to(device).eval()  # buffers


def read_tensors(tensors: Mapping[str, Stored]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its name, file by file, as a view of the mapped file."""
    by_file: dict[Path, list[str]] = {}
    for key, stored in tensors.items():
        by_file.setdefault(stored.file, []).append(key)
    for path, keys in by_file.items():
        with safe_open(path, "pt") as weights:
            for key in keys:
                yield key, weights.get_tensor(key)


@dataclass(frozen=True)
class Writable:
    """A tensor to be written: how many bytes it will be, and how to get it."""

    size: int
    load: Callable[[], Tensor]


def cast(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A contiguous copy or view on the CPU in ``dtype``; only real numbers are converted, None keeps the type."""
    wanted = dtype if dtype is not None and value.is_floating_point() else value.dtype
    return value.detach().to("cpu", wanted).contiguous()


def writable_state(module: ModelMixin, dtype: torch.dtype) -> dict[str, Writable]:
    """The weights of a module, to be written in ``dtype``. Raises CheckpointError if they are not exactly those that
    its configuration asks for, as with an adapter that was not merged."""
    state = module.state_dict()
    expected = shapes_of(unfilled(type(module), module.config, Path("the module")))
    if state.keys() != expected.keys():
        extra = sorted(state.keys() ^ expected.keys())
        raise CheckpointError(
            f"the module's weights are not those of its configuration, such as {extra[0]!r}; merge its adapter first"
        )
    return {
        key: Writable(prod(value.shape) * dtype.itemsize, lambda value=value: cast(value, dtype))
        for key, value in sorted(state.items())
    }


def write_weights(folder: Path, stem: str, tensors: Mapping[str, Writable], limit: int = SHARD_BYTES) -> list[Path]:
    """Write safetensors files of at most ``limit`` bytes into ``folder``, and an index if they are several.

    One shard is in memory at a time. A tensor larger than ``limit`` gets a file of its own.
    """
    shards = list(_shards(tensors, limit))
    names = [f"{stem}.safetensors"]
    if len(shards) > 1:
        names = [f"{stem}-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for name, keys in zip(names, shards, strict=True):
        save_file({key: tensors[key].load() for key in keys}, folder / name, metadata={"format": "pt"})
        (folder / name).chmod(0o644)  # safetensors writes files that only their owner may read
    if len(shards) > 1:
        total = sum(tensor.size for tensor in tensors.values())
        listed = {key: name for name, keys in zip(names, shards, strict=True) for key in keys}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(listed.items()))}
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return [folder / name for name in names]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have one type and shape and the same bits, NaN included."""
    return (
        (one.dtype, one.shape) == (other.dtype, other.shape)
        and torch.equal(one.contiguous().flatten().view(torch.uint8), other.contiguous().flatten().view(torch.uint8))
    )  # fmt: skip


def _shards(tensors: Mapping[str, Writable], limit: int) -> Iterable[list[str]]:
    keys, size = [], 0
    for key, tensor in tensors.items():
        if keys and size + tensor.size > limit:
            yield keys
            keys, size = [], 0
        keys.append(key)
        size += tensor.size
    yield keys
