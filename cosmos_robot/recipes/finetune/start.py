"""The weights that training begins with, by their content: a folder may change under the same name."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from cosmos_robot.errors import CosmosRobotError

PARTS: Final = ("transformer", "vae")


def start_note(start: str, noted: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """``weights``, a digest of a checkpoint's parts, and ``files`` by path, with size in bytes and time in ns.

    noted: by this function before; where no file has changed since, it is believed: large weights take long to read.
    Raises CheckpointError or UnknownNameError if there is no such checkpoint.
    """
    stamps = _stamps(start)
    files = {str(path): list(stamp) for path, stamp in stamps.items()}
    if noted and noted["files"] == files:
        return dict(noted)
    return {"weights": _digest(tuple(stamps.items())), "files": files}


def start_weights(start: str, noted: Mapping[str, Any]) -> str:
    """The digest of ``start`` as it is now; the noted one of a checkpoint that is no longer there."""
    try:
        return start_note(start, noted)["weights"]
    except CosmosRobotError:  # who loads it says so
        return noted["weights"]


def weights_digest(folder: Path) -> str:
    """Changes with any weight below ``folder``."""
    return _total((str(path.relative_to(folder)), path) for path in sorted(folder.rglob("*.safetensors")))


def _stamps(start: str) -> dict[Path, tuple[int, int]]:
    """Size and time of each file of weights, in the order of ``PARTS``."""
    from cosmos_robot.backbone.cosmos3.folder import find_checkpoint

    parts = find_checkpoint(start, fetch=False).parts
    files = [path for part in PARTS for path in sorted(parts[part].rglob("*.safetensors"))]
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


@functools.lru_cache(4)
def _digest(stamps: tuple[tuple[Path, tuple[int, int]], ...]) -> str:
    """Of the files' contents; where they lie and when they were written changes nothing."""
    return _total((f"{path.parent.name}/{path.name}", path) for path, _ in stamps)


def _total(files: Iterable[tuple[str, Path]]) -> str:
    """Of names and contents, in this order."""
    total = hashlib.blake2b(digest_size=16)
    for name, path in files:
        with path.open("rb") as file:
            total.update(f"{name} ".encode() + hashlib.file_digest(file, "blake2b").digest())
    return total.hexdigest()
