"""What a checkpoint folder holds, read without loading it: no torch, no weights in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from math import prod
from pathlib import Path

from pydantic import BaseModel

from cosmos_robot.contract import Contract, Statistics
from cosmos_robot.errors import CheckpointError, UnknownNameError


@dataclass(frozen=True)
class Part:
    """One subfolder. ``kind``: the class its configuration names, if any. ``size``: bytes of all its files."""

    name: str
    kind: str
    tensors: int
    parameters: int
    dtypes: tuple[str, ...]
    size: int


def find_folder(reference: str) -> Path:
    """The folder of a shipped checkpoint's name, or ``reference`` itself if it is a folder.

    Raises UnknownNameError with the nearest shipped names.
    """
    if Path(reference).is_dir():
        return Path(reference)
    assets = resources.files("cosmos_robot") / "assets"
    shipped = {child.name: Path(str(child)) for child in assets.iterdir() if child.is_dir()} if assets.is_dir() else {}
    if reference not in shipped:
        raise UnknownNameError("checkpoint", reference, shipped)
    return shipped[reference]


def list_parts(folder: Path) -> list[Part]:
    """The parts of a checkpoint, by name. Raises CheckpointError for a weights file that cannot be read."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder")
    return [_part(child) for child in sorted(folder.iterdir()) if child.is_dir()]


def describe(contract: Contract) -> list[str]:
    """A contract as indented lines, each fact on its own; statistics are told by their row count only."""
    return [*_lines("robot", contract.robot, 0), *_lines("model", contract.model, 0)]


def _part(folder: Path) -> Part:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    tensors, parameters, dtypes = 0, 0, set()
    for path in files:
        if path.suffix == ".safetensors":
            for shape, dtype in _headers(path):
                tensors, parameters = tensors + 1, parameters + prod(shape)
                dtypes.add(dtype)
    size = sum(path.stat().st_size for path in files)
    return Part(folder.name, _kind(folder), tensors, parameters, tuple(sorted(dtypes)), size)


def _headers(path: Path) -> Iterator[tuple[list[int], str]]:
    """Shape and dtype of every tensor of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as weights:
            for key in weights.keys():  # noqa: SIM118, not a mapping
                entry = weights.get_slice(key)
                yield entry.get_shape(), entry.get_dtype()
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}") from error


def _kind(folder: Path) -> str:
    for name in ("config.json", "scheduler_config.json", "tokenizer_config.json"):
        path = folder / name
        if path.is_file():
            try:
                config = json.loads(path.read_text())
            except json.JSONDecodeError as error:
                raise CheckpointError(f"{path} is not JSON: {error}") from error
            return str(config.get("_class_name") or config.get("tokenizer_class") or "")
    return ""


def _lines(name: str, value: object, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if isinstance(value, Statistics):
        yield f"{indent}{name}: of {value.count} rows, {len(value.mean)} dimensions"
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
