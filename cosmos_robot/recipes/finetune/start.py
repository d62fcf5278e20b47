"""The weights that training begins with, by their content: a folder may change under the same name."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cosmos_robot.errors import CosmosRobotError

PARTS: Final = ("transformer", "vae")


def start_note(start: str) -> dict[str, Any]:
    """``weights``, a digest of a checkpoint's parts, and ``files`` by path, with size in bytes and time in ns, which
    tell whether to look again. Raises CheckpointError or UnknownNameError if there is no such checkpoint."""
    stamps = _stamps(start)
    return {"weights": _digest(tuple(stamps.items())), "files": {str(p): list(s) for p, s in stamps.items()}}


def start_weights(start: str, noted: Mapping[str, Any]) -> str:
    """The digest of ``start`` as it is now. noted: by ``start_note``, what is believed of files that did not change,
    and of a checkpoint that is no longer there."""
    try:
        stamps = _stamps(start)
    except CosmosRobotError:  # who loads it says so
        return noted["weights"]
    unchanged = noted["files"] == {str(p): list(s) for p, s in stamps.items()}
    return noted["weights"] if unchanged else _digest(tuple(stamps.items()))


def weights_digest(folder: Path) -> str:
    """Changes with any weight below ``folder``."""
    total = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*.safetensors")):
        with path.open("rb") as file:
            total.update(f"{path.relative_to(folder)} ".encode())
            total.update(hashlib.file_digest(file, "blake2b").digest())
    return total.hexdigest()


def _stamps(start: str) -> dict[Path, tuple[int, int]]:
    """Size and time of each file of weights, in the order of ``PARTS``."""
    from cosmos_robot.backbone.cosmos3.folder import find_checkpoint

    parts = find_checkpoint(start, fetch=False).parts
    files = [path for part in PARTS for path in sorted(parts[part].rglob("*.safetensors"))]
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


@functools.lru_cache(4)
def _digest(stamps: tuple[tuple[Path, tuple[int, int]], ...]) -> str:
    """Of the files' contents; where they lie and when they were written changes nothing."""
    total = hashlib.blake2b(digest_size=16)
    for path, _ in stamps:
        with path.open("rb") as file:
            total.update(f"{path.parent.name}/{path.name} ".encode() + hashlib.file_digest(file, "blake2b").digest())
    return total.hexdigest()
