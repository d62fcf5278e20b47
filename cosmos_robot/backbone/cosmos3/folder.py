"""Checkpoint folders in the released (diffusers) layout: found by name, completeness checked, nothing loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from cosmos_robot.contract import CONTRACT_FILE
from cosmos_robot.errors import CheckpointError, UnknownNameError

ASSETS = Path(__file__).parents[2] / "assets"
INDEX_FILE = "model_index.json"
SHARED_KEY = "cosmos_robot_shared_parts"
"""Key of model_index.json that names a neighbour folder holding every part but the transformer."""

CONFIG_OF = {
    "transformer": "config.json",
    "vae": "config.json",
    "text_tokenizer": "tokenizer_config.json",
    "scheduler": "scheduler_config.json",
}
_WEIGHTS = "diffusion_pytorch_model.safetensors"
_HUB_ID = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True)
class CheckpointFolder:
    """A complete checkpoint on disk. parts: where transformer, vae, text_tokenizer and scheduler lie."""

    name: str
    folder: Path
    parts: Mapping[str, Path]


def shipped() -> dict[str, Path]:
    """The checkpoints inside this package, by name."""
    return {path.parent.name: path.parent for path in sorted(ASSETS.glob(f"*/{CONTRACT_FILE}"))}


def find_checkpoint(ref: str | Path) -> CheckpointFolder:
    """The checkpoint called ``ref``: a shipped name, a local folder, or a hub id ``owner/name[@revision]``.

    A shipped name wins over a folder of that name; write ``./name`` for the folder. Raises UnknownNameError with the
    nearest shipped names, or CheckpointError naming the file that is missing.
    """
    known = shipped()
    if str(ref) in known:
        return check_complete(known[str(ref)])
    if Path(ref).is_dir():
        return check_complete(Path(ref))
    hub = _HUB_ID.fullmatch(str(ref))
    if isinstance(ref, str) and hub:
        return check_complete(_download(hub["id"], hub["revision"]), name=hub["id"])
    if isinstance(ref, Path) or "/" in str(ref):
        raise CheckpointError(f"no checkpoint folder {ref}; expected a folder with {INDEX_FILE} and {CONTRACT_FILE}")
    raise UnknownNameError("checkpoint", str(ref), known)


def check_complete(folder: Path, name: str | None = None) -> CheckpointFolder:
    """``folder`` with its parts located. Raises CheckpointError naming each file that should be there and is not."""
    folder = folder.resolve()
    index = read_json(folder / INDEX_FILE)
    home = _shared_folder(folder, index)
    parts = {part: (folder if part == "transformer" else home) / part for part in CONFIG_OF}
    missing = [path for part, config in CONFIG_OF.items() if not (path := parts[part] / config).is_file()]
    for part in ("transformer", "vae"):
        missing += [path for path in weight_files(parts[part]) if not path.is_file()]
    if not (folder / CONTRACT_FILE).is_file():
        missing.append(folder / CONTRACT_FILE)
    if missing:
        listed = ", ".join(str(path.relative_to(folder.parent)) for path in missing)
        raise CheckpointError(f"checkpoint {folder.name} is half-written or of another layout; missing: {listed}")
    return CheckpointFolder(name or folder.name, folder, parts)


def weight_files(part: Path) -> list[Path]:
    """The safetensors files a part consists of: one, or the shards its index lists (whether or not they are there)."""
    index = part / f"{_WEIGHTS}.index.json"
    if not index.is_file():
        return [part / _WEIGHTS]
    shards = read_json(index).get("weight_map")
    if not shards or not isinstance(shards, dict):
        raise CheckpointError(f"{index} lists no weights under weight_map; copy or save it again")
    return [part / name for name in sorted(set(shards.values()))]


def tensor_shapes(part: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a part, from the files' headers. Raises CheckpointError for a truncated file."""
    shapes = {}
    for path in weight_files(part):
        try:
            with safe_open(path, "numpy") as weights:
                shapes |= {key: tuple(weights.get_slice(key).get_shape()) for key in weights.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise CheckpointError(f"{path} is not a whole safetensors file: {error}; copy or save it again") from error
    return shapes


def read_json(path: Path) -> dict:
    """The object in a JSON file. Raises CheckpointError if it is absent or broken."""
    if not path.is_file():
        raise CheckpointError(f"{path.parent} is not a checkpoint folder, or a half-written one: no {path.name}")
    try:
        found = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}; copy or save it again") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds a {type(found).__name__}, expected a JSON object; copy or save it again")
    return found


def _shared_folder(folder: Path, index: dict) -> Path:
    shared = index.get(SHARED_KEY)
    if shared is None:
        return folder
    if not re.fullmatch(r"\.\./[\w.-]*\w[\w.-]*", str(shared)):
        raise CheckpointError(
            f"{folder / INDEX_FILE}: {SHARED_KEY} is {shared!r}, expected a neighbour such as '../name'"
        )
    home = folder.parent / shared.removeprefix("../")
    if not home.is_dir():
        raise CheckpointError(f"checkpoint {folder.name} takes its vae, tokenizer and scheduler from {home}: not there")
    return home


def _download(repository: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = [INDEX_FILE, CONTRACT_FILE, *(f"{part}/*" for part in CONFIG_OF)]
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise CheckpointError(
            f"checkpoint {repository!r} is neither a local folder nor could it be fetched from the hub: {error}. Check "
            "the name and the connection, or pass a folder"
        ) from error
