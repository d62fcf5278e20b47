"""Checkpoint folders in the released (diffusers) layout: found by name, completeness checked, nothing loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from cosmos_robot.backbone.cosmos3.released import RELEASED, Released, released
from cosmos_robot.backbone.cosmos3.weights import listed_files, read_json
from cosmos_robot.contract import CONTRACT_FILE, Contract, read_contract
from cosmos_robot.errors import CheckpointError, UnknownNameError

ASSETS = Path(__file__).parents[2] / "assets"
CONTRACTS = ASSETS / "contracts"
INDEX_FILE = "model_index.json"
SHARED_KEY = "cosmos_robot_shared_parts"
"""Key of model_index.json that names a neighbour folder holding every part but the transformer."""

CONFIG_OF = {
    "transformer": "config.json",
    "vae": "config.json",
    "text_tokenizer": "tokenizer_config.json",
    "scheduler": "scheduler_config.json",
}
TEXTS_FILE = "text_embeddings.safetensors"
"""Beside the parts of a Cosmos Policy checkpoint: its embedded prompts."""
PARTS_OF = {"CosmosPolicyPipeline": ("transformer", "vae")}
"""Parts by the pipeline that model_index.json names; all of ``CONFIG_OF`` for any other."""

_HUB_ID = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True)
class CheckpointFolder:
    """A complete checkpoint on disk. parts: where transformer, vae, text_tokenizer and scheduler lie, of which its
    pipeline may lack the last two. contract_file: beside the weights, or this package's own for a released checkpoint;
    None where the caller has to bring one."""

    name: str
    folder: Path
    parts: Mapping[str, Path]
    contract_file: Path | None

    def contract(self) -> Contract:
        """The contract it was trained under. Raises CheckpointError if there is none, ContractError if it is broken."""
        if self.contract_file is None:
            raise CheckpointError(f"checkpoint {self.name!r} has no {CONTRACT_FILE}; {_CONTRACT_REMEDY}")
        return read_contract(self.contract_file)


_CONTRACT_REMEDY = (
    "base models have none, since they serve many robots, and released repositories hold none. 'cosmos-robot contract "
    f"list' names those of this package: 'cosmos-robot contract show NAME --json > FOLDER/{CONTRACT_FILE}', "
    "or pass one when loading"
)


def shipped() -> dict[str, Path]:
    """The checkpoints inside this package, by name."""
    return {path.parent.name: path.parent for path in sorted(ASSETS.glob(f"*/{CONTRACT_FILE}"))}


def known_names() -> list[str]:
    """Every name that stands for a checkpoint: shipped ones, then released ones."""
    return [*shipped(), *RELEASED]


def find_checkpoint(ref: str | Path, *, needs_contract: bool = True, fetch: bool = True) -> CheckpointFolder:
    """The checkpoint called ``ref``: a shipped or released name, a local folder, or a hub id ``owner/name[@revision]``.

    A known name wins over a folder of that name; write ``./name`` for the folder. needs_contract: False where the
    caller brings one. fetch: False to look on this machine only. Raises UnknownNameError with the nearest names, or
    CheckpointError naming the file that is missing, or what would be downloaded and how to place it.
    """
    known = shipped()
    if str(ref) in known:
        return check_complete(known[str(ref)], needs_contract=needs_contract)
    entry = released(ref) if isinstance(ref, str) else None
    if entry and "/" not in str(ref):
        return _released_folder(entry, needs_contract, fetch)
    if Path(ref).is_dir():
        return check_complete(Path(ref), needs_contract=needs_contract)
    if entry:
        return _released_folder(entry, needs_contract, fetch)
    refuse_interrupted(Path(ref))
    hub = _HUB_ID.fullmatch(str(ref))
    if isinstance(ref, str) and hub:
        folder = _download(hub["id"], hub["revision"], fetch)
        own = released(hub["id"])
        return check_complete(folder, hub["id"], own and _contract_of(own), needs_contract=needs_contract)
    if isinstance(ref, Path) or "/" in str(ref):
        raise CheckpointError(f"no checkpoint folder {ref}; expected a folder with {INDEX_FILE} and {CONTRACT_FILE}")
    raise UnknownNameError("checkpoint", str(ref), known_names())


def check_complete(
    folder: Path, name: str | None = None, contract_file: Path | None = None, *, needs_contract: bool = True
) -> CheckpointFolder:
    """``folder`` with its parts located. Raises CheckpointError naming each file that should be there and is not.

    contract_file: where the contract lies if not beside the weights.
    """
    folder = folder.resolve()
    index = read_json(folder / INDEX_FILE)
    home = _shared_folder(folder, index)
    needed = PARTS_OF.get(str(index.get("_class_name")), tuple(CONFIG_OF))
    parts = {part: (folder if part == "transformer" else home) / part for part in needed}
    missing = [path for part in needed if not (path := parts[part] / CONFIG_OF[part]).is_file()]
    for part in ("transformer", "vae"):
        missing += [path for path in listed_files(parts[part])[0] if not path.is_file()]
    beside = folder / CONTRACT_FILE
    found = beside if beside.is_file() else contract_file
    if found is None and needs_contract:
        missing.append(beside)
    if missing:
        listed = ", ".join(str(path.relative_to(folder.parent)) for path in missing)
        remedy = f" ({_CONTRACT_REMEDY})" if missing == [beside] else ""
        raise CheckpointError(
            f"checkpoint {folder.name} is half-written or of another layout; missing: {listed}{remedy}"
        )
    return CheckpointFolder(name or folder.name, folder, parts, found)


def leftovers(folder: Path) -> tuple[list[Path], list[Path]]:
    """What killed calls of ``save_checkpoint`` left of ``folder``: checkpoints moved aside, and new ones, by age."""
    found = [sorted(folder.parent.glob(f".{escape(folder.name)}.{kind}-*"), key=_made) for kind in ("old", "partial")]
    return found[0], found[1]


def _made(path: Path) -> float:
    return path.stat().st_mtime


def refuse_interrupted(folder: Path) -> None:
    """Raise CheckpointError if ``folder`` is not there because its replacement was interrupted."""
    old, new = leftovers(folder) if folder.parent.is_dir() and not folder.exists() else ([], [])
    if old:
        written = f", or 'mv {new[-1]} {folder}' for the new one" if new else ""
        raise CheckpointError(
            f"no checkpoint {folder}: replacing it was interrupted. Nothing is lost: 'mv {old[-1]} {folder}' brings "
            f"back the one before{written}"
        )


def _contract_of(entry: Released) -> Path | None:
    path = CONTRACTS / f"{entry.contract}.json"
    return path if entry.contract and path.is_file() else None


def _released_folder(entry: Released, needs_contract: bool, fetch: bool) -> CheckpointFolder:
    try:
        folder = _download(entry.repository, entry.revision, fetch)
    except CheckpointError as error:
        size = f", about {entry.size_gb:g} GB" if entry.size_gb else ""
        at = f" --revision {entry.revision}" if entry.revision else ""
        raise CheckpointError(
            f"{entry.name!r} is {entry.repository}{f'@{entry.revision}' if entry.revision else ''}{size}, which is not "
            f"on this machine and could not be fetched ({error.__cause__ or error}). On a machine with a connection: "
            f"'hf download {entry.repository}{at}', then copy that machine's Hugging Face cache here, or pass "
            "'--local-dir FOLDER' to it, copy FOLDER here and give its path"
        ) from error
    return check_complete(folder, entry.name, _contract_of(entry), needs_contract=needs_contract)


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


def _download(repository: str, revision: str | None, fetch: bool) -> Path:
    from huggingface_hub import snapshot_download

    wanted = [INDEX_FILE, CONTRACT_FILE, TEXTS_FILE, *(f"{part}/*" for part in CONFIG_OF)]
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=wanted, local_files_only=not fetch))
    except Exception as error:  # the hub client raises whatever its transport does
        raise CheckpointError(
            f"checkpoint {repository!r} is neither a local folder nor could it be fetched from the hub: {error}. Check "
            "the name and the connection, or pass a folder"
        ) from error
