"""What a checkpoint folder holds, read without loading it: no torch, no weights in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from pydantic import BaseModel
from safetensors import SafetensorError, safe_open

from cosmos_robot.backbone.cosmos3.folder import CONFIG_OF, CheckpointFolder, read_json
from cosmos_robot.contract import Contract, Statistics
from cosmos_robot.errors import CheckpointError


@dataclass(frozen=True)
class Part:
    """One part. ``kind``: the class its configuration names, if any. ``size``: bytes of all its files."""

    name: str
    folder: Path
    kind: str
    tensors: int
    parameters: int
    dtypes: tuple[str, ...]
    size: int


def list_parts(checkpoint: CheckpointFolder) -> list[Part]:
    """The parts of a checkpoint. Raises CheckpointError for a file that cannot be read."""
    return [_part(name, folder) for name, folder in checkpoint.parts.items()]


def describe(contract: Contract) -> list[str]:
    """A contract as indented lines, each fact on its own; statistics are told by their row count only."""
    return [*_lines("robot", contract.robot, 0), *_lines("model", contract.model, 0)]


def _part(name: str, folder: Path) -> Part:
    config = read_json(folder / CONFIG_OF[name])
    tensors, parameters, dtypes = 0, 0, set()
    for path in sorted(folder.glob("*.safetensors")):
        for shape, dtype in _headers(path):
            tensors, parameters = tensors + 1, parameters + prod(shape)
            dtypes.add(dtype)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    kind = str(config.get("_class_name") or config.get("tokenizer_class") or "")
    return Part(name, folder, kind, tensors, parameters, tuple(sorted(dtypes)), size)


def _headers(path: Path) -> Iterator[tuple[list[int], str]]:
    """Shape and dtype of every tensor of a safetensors file."""
    try:
        with safe_open(path, "numpy") as weights:
            for key in weights.keys():  # noqa: SIM118, not a mapping
                entry = weights.get_slice(key)
                yield entry.get_shape(), entry.get_dtype()
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}; copy or save it again") from error


def _lines(name: str, value: object, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if isinstance(value, Statistics):
        yield f"{indent}{name}: of {value.count} rows, {value.width} dimensions"
    elif isinstance(value, BaseModel) and not _flat(value):
        yield f"{indent}{name}:"
        for field in type(value).model_fields:
            yield from _lines(field, getattr(value, field), depth + 1)
    elif isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
        yield f"{indent}{name}:"
        for item in value:
            yield f"{indent}  - {_one_line(item)}"
    elif value not in (None, ""):
        yield f"{indent}{name}: {_one_line(value)}"


def _flat(value: BaseModel) -> bool:
    return not any(isinstance(getattr(value, f), BaseModel | tuple) for f in type(value).model_fields)


def _one_line(value: object) -> str:
    if isinstance(value, BaseModel):
        shown = {f: getattr(value, f) for f in type(value).model_fields}
        return ", ".join(
            f"{name} ({_one_line(item)})" if isinstance(item, BaseModel) else f"{name}={item}"
            for name, item in shown.items()
            if item not in (None, "")
        )
    return str(value)
