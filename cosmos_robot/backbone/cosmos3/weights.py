"""What weight files hold, read from their headers: shapes and dtypes, shards, stray index names, quantisation.

No torch, and no weights in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from cosmos_robot.errors import CheckpointError

WEIGHTS: Final = "diffusion_pytorch_model"
ROOT_INDEX: Final = "model.safetensors.index.json"
BYTES: Final = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Bytes of one element, by safetensors' name of its type; float8 and smaller count as 1."""

_FLOAT8 = re.compile(r"F8|F4|F6|E8M0|float8", re.IGNORECASE)
_SCALE = re.compile(r"(\.|_)(scale|scale_inv|scale_2|absmax|amax|zeros|qweight|qzeros|SCB|quant_map|nested_absmax)$")
_BITSANDBYTES = re.compile(r"(\.SCB|absmax|quant_map|quant_state\.bitsandbytes__\w+)$")


@dataclass(frozen=True)
class Stored:
    """One tensor in a file: its shape, and its type by safetensors' name (``BF16``, ``F32``, ``F8_E4M3``)."""

    file: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * BYTES.get(self.dtype, 1)


@dataclass(frozen=True)
class Weights:
    """The tensors of one part, by name. strays: names that its index lists and no file holds. unlisted: safetensors
    files in its folder that its index does not name."""

    tensors: Mapping[str, Stored]
    strays: tuple[str, ...] = ()
    unlisted: tuple[Path, ...] = ()

    @property
    def dtypes(self) -> dict[str, str]:
        """Type of each tensor by its name."""
        return {key: stored.dtype for key, stored in self.tensors.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor by its name."""
        return {key: stored.shape for key, stored in self.tensors.items()}


def read_json(path: Path) -> dict[str, Any]:
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


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file. Raises CheckpointError if it is absent or cut."""
    if not path.is_file():
        raise CheckpointError(f"{path.parent} is half-written: no {path.name}; copy or save it again")
    try:
        with safe_open(path, "numpy") as weights:
            slices = {key: weights.get_slice(key) for key in weights.keys()}  # noqa: SIM118, not a mapping
            return {key: Stored(path, tuple(entry.get_shape()), entry.get_dtype()) for key, entry in slices.items()}
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}; copy or save it again") from error


def weight_map(index: Path) -> dict[str, str]:
    """Name to file of an index. Raises CheckpointError if it lists none, or a file outside its own folder."""
    found = read_json(index).get("weight_map")
    if not found or not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise CheckpointError(f"{index} lists no weights under weight_map; copy or save it again")
    outside = sorted(name for name in set(found.values()) if Path(name).is_absolute() or ".." in Path(name).parts)
    if outside:
        raise CheckpointError(f"{index} names files outside its folder: {outside}; a checkpoint stays in one folder")
    return found


def listed_files(part: Path, stem: str = WEIGHTS) -> tuple[list[Path], dict[str, str]]:
    """The safetensors files a part consists of, whether or not they are there, and its index (empty without one).

    A part with neither file nor index of its own takes its share of the index in the folder above, as the released
    repositories have one that spans ``transformer/`` and ``vision_encoder/``.
    """
    own, above = part / f"{stem}.safetensors.index.json", part.parent / ROOT_INDEX
    if own.is_file():
        listed = weight_map(own)
    elif not (part / f"{stem}.safetensors").is_file() and above.is_file():
        within = f"{part.name}/"
        found = weight_map(above).items()
        listed = {key: name.removeprefix(within) for key, name in found if name.startswith(within)}
    else:
        listed = {}
    names = sorted(set(listed.values())) or [f"{stem}.safetensors"]
    return [part / name for name in names], listed


def part_weights(part: Path, stem: str = WEIGHTS) -> Weights:
    """Every tensor of a part. Raises CheckpointError for a missing or cut file, or a tensor that two files hold."""
    files, listed = listed_files(part, stem)
    tensors: dict[str, Stored] = {}
    for path in files:
        held = read_header(path)
        twice = sorted(held.keys() & tensors.keys())
        if twice:
            raise CheckpointError(f"{twice[0]!r} is in both {tensors[twice[0]].file} and {path}; keep one of them")
        tensors |= held
    unlisted = sorted(set(part.glob("*.safetensors")) - set(files))
    return Weights(tensors, tuple(sorted(listed.keys() - tensors.keys())), tuple(unlisted))


def index_notes(part: Path, weights: Weights) -> Iterator[str]:
    """What of a part is ignored, in words."""
    if weights.strays:
        yield (
            f"the index of {part.name} lists {len(weights.strays)} names that no file holds, such as "
            f"{weights.strays[0]!r}; they are ignored"
        )
    if weights.unlisted:
        names = ", ".join(path.name for path in weights.unlisted[:3])
        yield f"{part.name} has {len(weights.unlisted)} safetensors files that it does not list ({names}); ignored"


def quantisation(config: Mapping[str, Any], dtypes: Mapping[str, str]) -> str | None:
    """How weights are quantised, in words; None if they are not.

    config: of the part. dtypes: type of each tensor by its name. Recognises a ``quantization_config`` (ModelOpt,
    bitsandbytes and others), float8 and smaller types, and the scales that such weights come with.
    """
    declared = config.get("quantization_config") or config.get("quantization")
    if declared:
        known = declared if isinstance(declared, Mapping) else {}
        names = [str(known[key]) for key in ("quant_method", "quant_algo", "quant_type") if known.get(key)]
        return f"quantization_config says {' '.join(names) or declared!r}"
    small = [name for name, dtype in dtypes.items() if _FLOAT8.search(dtype)]
    if small:
        return f"{len(small)} tensors are {dtypes[small[0]]}, such as {small[0]!r}"
    bits = [name for name in dtypes if _BITSANDBYTES.search(name)]
    if bits:
        return f"bitsandbytes keys, such as {bits[0]!r}"
    scales = [name for name in dtypes if _SCALE.search(name)]
    if scales:
        return f"{len(scales)} scales of quantised weights, such as {scales[0]!r}"
    whole = [name for name, dtype in dtypes.items() if re.fullmatch(r"[IU]\d+|u?int\d+", dtype)]
    return f"{len(whole)} tensors are {dtypes[whole[0]]}, such as {whole[0]!r}" if whole else None


def quantised_part(part: Path, config: Mapping[str, Any], dtypes: Mapping[str, str]) -> str | None:
    """The same of a part in its folder, where ModelOpt may leave a file that says so."""
    declared = (folder / "hf_quant_config.json" for folder in (part, part.parent))
    return quantisation(config, dtypes) or next((f"{path} says so" for path in declared if path.is_file()), None)


def refuse_quantised(part: Path, config: Mapping[str, Any], dtypes: Mapping[str, str]) -> None:
    """Raise CheckpointError naming the quantisation, if there is one."""
    how = quantised_part(part, config, dtypes)
    if how:
        raise CheckpointError(
            f"weights in {part} are quantised ({how}); expected float32, bfloat16 or float16. Fetch the bfloat16 "
            "revision of the repository (released ones keep FP8 on a branch of its own); quantised weights are not run"
        )


def refuse_misfit(
    where: Path,
    stored: Mapping[str, tuple[int, ...]],
    expected: Mapping[str, tuple[int, ...]],
    wanted_by: str = "its config.json",
) -> None:
    """Raise CheckpointError listing every weight that is missing, unknown or of another shape."""
    problems = [f"missing {key}" for key in sorted(expected.keys() - stored.keys())]
    problems += [f"unknown {key}" for key in sorted(stored.keys() - expected.keys())]
    both = sorted(stored.keys() & expected.keys())
    problems += [f"{key} is {stored[key]}, expected {expected[key]}" for key in both if stored[key] != expected[key]]
    if not problems:
        return
    shown = "\n  - ".join(problems[:8] + ([f"and {len(problems) - 8} more"] if len(problems) > 8 else []))
    heads = [key for key in expected.keys() - stored.keys() if key.startswith("action_")]
    remedy = f"\n{NO_HEADS}" if heads else ""
    raise CheckpointError(f"weights in {where} do not fit {wanted_by}:\n  - {shown}{remedy}")


NO_HEADS: Final = (
    "the trained action heads are missing: Edge snapshots older than 2026-07-16 have none; fetch a newer revision"
)


def bytes_of(tensors: Iterable[Stored]) -> int:
    return sum(stored.size for stored in tensors)
