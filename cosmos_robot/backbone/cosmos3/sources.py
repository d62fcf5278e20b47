"""Transformer weights in any layout they come in, behind one interface: what is there, and one tensor after another.

Layouts: ``checkpoint`` (a diffusers folder with model_index.json), ``part`` (its ``transformer/`` alone), ``native``
(safetensors under ``net.`` or ``model.net.`` names), ``dcp`` (a folder of torch.distributed.checkpoint), ``pt`` (one
file of torch.save). Nothing that a file could run is run: pickles are read with a short list of allowed types.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, FileSystemReader
from torch.distributed.checkpoint import load as load_dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from cosmos_robot.backbone.cosmos3.keys import is_native
from cosmos_robot.backbone.cosmos3.memory import DTYPES
from cosmos_robot.backbone.cosmos3.modules import read_tensors
from cosmos_robot.backbone.cosmos3.weights import WEIGHTS, Stored, listed_files, part_weights, read_header, read_json
from cosmos_robot.errors import CheckpointError

Layout = Literal["checkpoint", "part", "native", "dcp", "pt"]
LAYOUTS: Mapping[str, str] = {
    "checkpoint": "a diffusers folder with model_index.json and transformer/",
    "part": "a transformer folder with config.json and diffusion_pytorch_model safetensors",
    "native": "a folder of safetensors under net. or model.net. names",
    "dcp": "a folder of torch.distributed.checkpoint: .metadata and *.distcp, or model/ with them",
    "pt": "a .pt or .pth file of torch.save",
}
_ALLOWED = {
    "builtins": {"set", "frozenset", "slice", "complex", "bytearray"},
    "collections": {"OrderedDict", "defaultdict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
}
_METADATA = "torch.distributed.checkpoint.metadata"


@dataclass(frozen=True)
class Source:
    """Weights in one layout. where: the file or folder that holds them. config: its configuration, {} without one.
    read: yields the named tensors, in any order."""

    layout: Layout
    where: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Stored]
    read: Callable[[Iterable[str]], Iterator[tuple[str, Tensor]]]
    strays: tuple[str, ...] = ()


def layout_of(path: Path) -> Layout:
    """Which layout a file or folder has. Raises CheckpointError naming all of them if it has none."""
    if path.suffix in (".pt", ".pth") and path.is_file():
        return "pt"
    if (path / "model_index.json").is_file():
        return "checkpoint"
    if _dcp_folder(path):
        return "dcp"
    if (path / f"{WEIGHTS}.safetensors").is_file() or (path / f"{WEIGHTS}.safetensors.index.json").is_file():
        return "part"
    if path.is_dir() and any(path.glob("*.safetensors")) and is_native(_native_keys(path)):
        return "native"
    known = "\n".join(f"  - {words}" for words in LAYOUTS.values())
    raise CheckpointError(f"{path} holds no checkpoint of a layout that is known:\n{known}")


def open_source(path: Path) -> Source:
    """Read what ``path`` holds from headers and metadata. Raises CheckpointError for anything broken or unsafe."""
    layout = layout_of(path)
    if layout == "pt":
        return _open_pt(path)
    if layout == "dcp":
        return _open_dcp(path)
    where = path / "transformer" if layout == "checkpoint" else path
    weights = part_weights(where, _native_stem(where) if layout == "native" else WEIGHTS)
    config = read_json(where / "config.json") if layout != "native" or (where / "config.json").is_file() else {}
    return Source(layout, where, config, weights.tensors, partial(_read_safetensors, weights.tensors), weights.strays)


def _read_safetensors(tensors: Mapping[str, Stored], keys: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    return read_tensors({key: tensors[key] for key in keys})


def _native_keys(path: Path) -> list[str]:
    stem = _native_stem(path)
    files, listed = listed_files(path, stem)
    return list(listed) or [key for file in files for key in read_header(file)]


def _native_stem(path: Path) -> str:
    """Name of the files of a native export before ``.safetensors``: ``model``, or that of the only file."""
    files = sorted(path.glob("*.safetensors"))
    return files[0].stem if len(files) == 1 else "model"


def _open_pt(path: Path) -> Source:
    try:
        held = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # torch raises whatever its readers stumble over
        first = str(error).splitlines()[0]
        raise CheckpointError(f"{path} cannot be read as plain tensors: {first}; nothing else is loaded") from error
    state = dict(_flat(held, ""))
    if not state:
        raise CheckpointError(f"{path} holds no tensors; expected a state dict of torch.save")
    tensors = {key: _stored(path, value.shape, value.dtype) for key, value in state.items()}
    return Source("pt", path, {}, tensors, lambda keys: ((key, state[key]) for key in keys))


def _flat(held: object, prefix: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(held, Tensor):
        yield prefix.removesuffix("."), held
    elif isinstance(held, Mapping):
        for key, value in held.items():
            yield from _flat(value, prefix if key in ("state_dict", "module") else f"{prefix}{key}.")


def _dcp_folder(path: Path) -> Path | None:
    return next((folder for folder in (path, path / "model") if (folder / ".metadata").is_file()), None)


def _open_dcp(path: Path) -> Source:
    folder = _dcp_folder(path)
    metadata = _read_metadata(folder)
    entries = {k: v for k, v in metadata.state_dict_metadata.items() if isinstance(v, TensorStorageMetadata)}
    tensors = {key: _stored(folder, entry.size, entry.properties.dtype) for key, entry in entries.items()}

    def read(keys: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        for key in keys:
            one = {key: torch.empty(entries[key].size, dtype=entries[key].properties.dtype)}
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "torch.distributed is disabled")  # it is meant to be
                    load_dcp(one, storage_reader=_KnownReader(folder, metadata), no_dist=True)
            except (CheckpointException, Exception) as error:  # the first is no Exception and wraps whatever went wrong
                raise CheckpointError(f"{folder}: {key} cannot be read; copy or save the folder again") from error
            yield key, one[key]

    return Source("dcp", folder, {}, tensors, read)


class _KnownReader(FileSystemReader):
    """torch's reader with metadata that was read before, and safely."""

    def __init__(self, folder: Path, metadata: Metadata):
        super().__init__(folder)
        self._metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self._metadata.storage_meta.load_id = self.load_id
        return self._metadata


def _read_metadata(folder: Path) -> Metadata:
    path = folder / ".metadata"
    try:
        with path.open("rb") as stream:
            metadata = _Restricted(stream).load()
    except CheckpointError:
        raise
    except Exception as error:  # a pickle can fail in any way
        raise CheckpointError(f"{path} is not the metadata of a checkpoint: {error}") from error
    if not isinstance(metadata, Metadata):
        raise CheckpointError(f"{path} holds a {type(metadata).__name__}, expected a checkpoint's metadata")
    metadata.storage_meta = metadata.storage_meta or StorageMeta()
    return metadata


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        plain_torch = module == "torch" and (name == "Size" or isinstance(getattr(torch, name, None), torch.dtype))
        if module == _METADATA or plain_torch or name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        raise CheckpointError(f"checkpoint metadata asks to load {module}.{name}, which no checkpoint needs: refused")


def _stored(file: Path, shape: Iterable[int], dtype: torch.dtype) -> Stored:
    names = {value: name for name, value in DTYPES.items()}
    return Stored(file, tuple(shape), names.get(dtype, str(dtype).removeprefix("torch.")))
