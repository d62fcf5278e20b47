"""From any layout to native or diffusers files and back, bit for bit; all of it is checked before any is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final, Literal

import torch
from diffusers import Cosmos3OmniTransformer
from torch import Tensor

from cosmos_robot.backbone.cosmos3.folder import CONFIG_OF, INDEX_FILE, SHARED_KEY, CheckpointFolder, find_checkpoint
from cosmos_robot.backbone.cosmos3.keys import split_native, to_native
from cosmos_robot.backbone.cosmos3.load import whole_folder
from cosmos_robot.backbone.cosmos3.memory import DTYPES
from cosmos_robot.backbone.cosmos3.modules import (
    SHARD_BYTES,
    Writable,
    cast,
    read_tensors,
    same_bits,
    shapes_of,
    unfilled,
    write_weights,
)
from cosmos_robot.backbone.cosmos3.released import ARCHITECTURES
from cosmos_robot.backbone.cosmos3.sources import Source, open_source
from cosmos_robot.backbone.cosmos3.weights import (
    WEIGHTS,
    Stored,
    part_weights,
    read_json,
    refuse_misfit,
    refuse_quantised,
)
from cosmos_robot.contract import CONTRACT_FILE
from cosmos_robot.errors import CheckpointError, UnknownNameError

Target = Literal["native", "diffusers"]
CONFIG_KEY: Final = "cosmos_robot_transformer"
"""Key of a native folder's config.json under which the diffusers configuration is kept."""
NATIVE_PREFIX, TOWER_PREFIX, TOWER = "model.net.", "language_model.visual.", "vision_encoder"


@dataclass(frozen=True)
class Conversion:
    """What will be written. names: diffusers name to stored key, of the transformer and of the visual tower."""

    source: Source
    config: Mapping[str, Any]
    names: Mapping[str, str]
    tower: Mapping[str, str]
    tower_source: Source
    notes: tuple[str, ...]


def convert(
    source: Path,
    target: Path,
    to: Target,
    *,
    dtype: torch.dtype | None = None,
    copy: str = "net",
    architecture: str | Path | None = None,
    parts: str | Path | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> list[str]:
    """Write ``source`` as ``target``, read it back, and return notes of what was dropped or left out.

    dtype: of the written weights; None keeps the stored types. copy: which weights of a native checkpoint, ``net`` or
    ``net_ema``. architecture: name or config.json, where the source does not say. parts: checkpoint that gives vae,
    tokenizer and scheduler where the source has none. The target appears whole or not at all, and an existing one is
    refused. Raises CheckpointError.
    """
    plan = plan_conversion(source, copy, architecture)
    whole = _whole(plan.source, source, parts) if to == "diffusers" else None
    notes = list(plan.notes)
    with whole_folder(target) as made:
        for files in _files(plan, made, to):
            _write(files, dtype, shard_bytes)
            _verify(files, dtype)
        _write_config(plan, made, to)
        if whole:
            _copy_parts(whole, made)
        elif to == "diffusers":
            notes.append("no vae, text_tokenizer and scheduler were written; name a checkpoint that has them as parts")
        elif plan.source.layout == "checkpoint":
            notes.append("native folders hold no vae, tokenizer and scheduler; keep the source for them")
        contract = (source if source.is_dir() else source.parent) / CONTRACT_FILE
        if contract.is_file():
            shutil.copyfile(contract, made / CONTRACT_FILE)
        else:
            notes.append(f"the source has no {CONTRACT_FILE}, so the target has none; write it before loading")
    return notes


def plan_conversion(path: Path, copy: str = "net", architecture: str | Path | None = None) -> Conversion:
    """Name, shape and type of everything in ``path``, checked against its architecture; no weights are read."""
    source = open_source(path)
    dtypes = {key: stored.dtype for key, stored in source.tensors.items()}
    refuse_quantised(source.where, source.config, dtypes)
    notes, tower, tower_source = [], {}, source
    if source.layout in ("checkpoint", "part"):
        names = {key: key for key in source.tensors}
        config = dict(source.config)
        beside = path / TOWER
        if source.layout == "checkpoint" and (beside / "model.safetensors").is_file():
            tower_source = _tower_source(beside)
            tower = {key: key for key in tower_source.tensors}
    else:
        split = split_native(source.tensors, copy)
        names = {name: key for key, name in split.transformer.items()}
        tower = {name: key for key, name in split.visual.items()}
        config = _architecture(source, {name: source.tensors[key].shape for name, key in names.items()}, architecture)
        notes += _native_notes(split.copy, split.legacy, split.left)
    if source.strays:
        notes.append(f"{len(source.strays)} names of the index that no file holds were dropped: {source.strays[0]!r}")
    module = unfilled(Cosmos3OmniTransformer, config, source.where)
    refuse_misfit(source.where, {name: source.tensors[key].shape for name, key in names.items()}, shapes_of(module))
    return Conversion(source, config, names, tower, tower_source, tuple(notes))


def _native_notes(copy: str, legacy: tuple[str, ...], left: tuple[str, ...]) -> Iterator[str]:
    if legacy:
        yield f"weights that nothing reads any more were dropped: {', '.join(legacy)}"
    if left:
        yield f"{len(left)} weights of another copy than {copy!r} were left out"


def _architecture(source: Source, shapes: Mapping[str, tuple[int, ...]], given: str | Path | None) -> dict[str, Any]:
    """The diffusers configuration of native weights: given, kept in the source, or the released one they fit."""
    if given is not None:
        if str(given) in ARCHITECTURES:
            return dict(ARCHITECTURES[str(given)])
        if Path(given).is_file():
            return read_json(Path(given))
        raise UnknownNameError("architecture", str(given), ARCHITECTURES)
    if CONFIG_KEY in source.config:
        return dict(source.config[CONFIG_KEY])
    for config in ARCHITECTURES.values():
        for heads in ({}, {"sound_gen": False, "sound_dim": None}, {"action_gen": False, "action_dim": None}):
            tried = {**config, **heads}
            if shapes_of(unfilled(Cosmos3OmniTransformer, tried, source.where)) == shapes:
                return tried
    raise CheckpointError(
        f"{source.where} does not say its architecture and fits none of {', '.join(ARCHITECTURES)}; name one, or a "
        "config.json of diffusers' Cosmos3OmniTransformer"
    )


def _tower_source(folder: Path) -> Source:
    tensors = part_weights(folder, "model").tensors
    return Source("part", folder, {}, tensors, lambda keys: read_tensors({key: tensors[key] for key in keys}))


def _whole(source: Source, path: Path, parts: str | Path | None) -> CheckpointFolder | None:
    """The checkpoint whose vae, tokenizer and scheduler go along."""
    if parts is not None:
        return find_checkpoint(parts, needs_contract=False)
    return find_checkpoint(path, needs_contract=False) if source.layout == "checkpoint" else None


@dataclass(frozen=True)
class _Files:
    """Weight files to be written into a folder: for each written key, whose tensor it is and its name there."""

    folder: Path
    stem: str
    keys: Mapping[str, tuple[Source, str]]


def _files(plan: Conversion, made: Path, to: Target) -> list[_Files]:
    transformer = {name: (plan.source, key) for name, key in sorted(plan.names.items())}
    tower = {name: (plan.tower_source, key) for name, key in sorted(plan.tower.items())}
    if to == "diffusers":
        both = (made / "transformer", WEIGHTS, transformer), (made / TOWER, "model", tower)
        return [_Files(*files) for files in both if files[2]]
    native = {NATIVE_PREFIX + to_native(name): found for name, found in transformer.items()}
    native |= {NATIVE_PREFIX + TOWER_PREFIX + name: found for name, found in tower.items()}
    return [_Files(made, "model", dict(sorted(native.items())))]


def _write(files: _Files, dtype: torch.dtype | None, limit: int) -> None:
    files.folder.mkdir(exist_ok=True)
    tensors = {
        written: Writable(_size(source.tensors[key], dtype), partial(_load, source, key, dtype))
        for written, (source, key) in files.keys.items()
    }
    write_weights(files.folder, files.stem, tensors, limit)


def _verify(files: _Files, dtype: torch.dtype | None) -> None:
    """Read back what was written. Raises CheckpointError for a tensor that is not, bit for bit, the source's."""
    stored = part_weights(files.folder, files.stem).tensors
    if stored.keys() != files.keys.keys():
        raise CheckpointError(f"{files.folder} does not hold what was written to it; check the disk and try again")
    for written, value in read_tensors(stored):
        if not same_bits(value, _load(*files.keys[written], dtype)):
            raise CheckpointError(f"{files.folder}: {written} did not come back as written; check the disk, try again")


def _load(source: Source, key: str, dtype: torch.dtype | None) -> Tensor:
    ((_, value),) = source.read([key])
    return cast(value, dtype)


def _size(stored: Stored, dtype: torch.dtype | None) -> int:
    return stored.size if dtype is None or stored.dtype not in DTYPES else prod(stored.shape) * dtype.itemsize


def _write_config(plan: Conversion, made: Path, to: Target) -> None:
    config = {key: value for key, value in plan.config.items() if key != "_name_or_path"}
    if to == "native":
        kind = "cosmos3_edge" if config.get("hidden_act") == "relu2" else "cosmos3_omni"
        text = {"model_type": kind, "include_visual": bool(plan.tower), CONFIG_KEY: config}
        path = made / "config.json"
    else:
        path = made / "transformer" / "config.json"
        unfilled(Cosmos3OmniTransformer, config, plan.source.where).save_config(path.parent)
        text = {**read_json(path), **config}
        text.pop("_name_or_path", None)
    path.write_text(json.dumps(text, indent=2, sort_keys=True) + "\n")


def _copy_parts(whole: CheckpointFolder, made: Path) -> None:
    """The parts beside the transformer, and the index of the pipeline without a note of where they were shared."""
    for part in CONFIG_OF:
        if part != "transformer":
            shutil.copytree(whole.parts[part], made / part)
    index = read_json(whole.folder / INDEX_FILE)
    index.pop(SHARED_KEY, None)
    (made / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")
