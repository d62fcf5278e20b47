"""What a checkpoint folder holds, read without loading it: no torch, no weights in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from pydantic import BaseModel

from cosmos_robot.backbone.cosmos3.folder import CONFIG_OF, CheckpointFolder
from cosmos_robot.backbone.cosmos3.weights import read_header, read_json
from cosmos_robot.contract import Contract, Statistics


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
    held = [stored for path in sorted(folder.glob("*.safetensors")) for stored in read_header(path).values()]
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    kind = str(config.get("_class_name") or config.get("tokenizer_class") or "")
    dtypes = tuple(sorted({stored.dtype for stored in held}))
    return Part(name, folder, kind, len(held), sum(prod(stored.shape) for stored in held), dtypes, size)


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
