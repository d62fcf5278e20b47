"""``cosmos-robot ckpt ...``: what checkpoints there are, what one holds, whether it is whole, and conversions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional

from cosmos_robot.backbone.cosmos3.folder import CheckpointFolder, find_checkpoint, shipped
from cosmos_robot.backbone.cosmos3.released import RELEASED, Released, released
from cosmos_robot.errors import CheckpointError, InputError

Dtype = Literal["float32", "bfloat16", "float16"]


def ckpt_list() -> None:
    """Every checkpoint that has a name: those in this package, and the released ones, with what they are."""
    from cosmos_robot.backbone.cosmos3.listing import list_parts

    table = Table("name", "where", "download", "GPU memory", "what it is", box=None)
    for name, folder in shipped().items():
        found = find_checkpoint(folder)
        own = [part for part in list_parts(found) if part.folder.is_relative_to(found.folder)]
        model = found.contract().model
        what = f"{sum(part.parameters for part in own):,} parameters, made for {found.contract().robot.name}"
        size = f"{sum(part.size for part in own) / 1e6:.0f} MB"
        table.add_row(name, "in this package", size, "none needed", what + ("" if model.sees else "; sees nothing"))
    for entry in RELEASED.values():
        table.add_row(entry.name, entry.repository, _gb(entry.size_gb), _gb(entry.memory_gb), entry.summary)
    Console(highlight=False, width=max(120, Console().width)).print(table)


def ckpt_inspect(checkpoint: str) -> None:
    """What a checkpoint of any layout holds, and its contract if it has one. Reads headers only, fetches nothing.

    Args:
        checkpoint: shipped or released name, folder, file or hub id.
    """
    console = Console(highlight=False)
    entry = released(checkpoint)
    if entry and "/" not in checkpoint:
        console.print("\n".join(_about(entry)), markup=False, soft_wrap=True)
    path = Path(checkpoint)
    if checkpoint not in shipped() and path.exists() and not (path / "model_index.json").is_file():
        console.print("\n".join(_source_lines(path)), markup=False, soft_wrap=True)
        return
    try:
        found = find_checkpoint(checkpoint, needs_contract=False, fetch=False)
    except CheckpointError as error:
        if entry is None:
            raise
        console.print(f"\n{error}", markup=False, soft_wrap=True)
        return
    _show(console, found)


def ckpt_check(checkpoint: Positional[str], contract: str | None = None) -> None:
    """Load a checkpoint as a policy would: every file, key and shape, the contract, and that every weight is a number.

    Args:
        checkpoint: shipped or released name, folder or hub id.
        contract: name or file, instead of the checkpoint's own; base models have none.
    """
    import torch

    from cosmos_robot.backbone.cosmos3.load import load_checkpoint

    loaded = load_checkpoint(checkpoint, contract=contract)
    for part in (loaded.transformer, loaded.vae):
        bad = [name for name, value in part.state_dict().items() if not torch.isfinite(value).all()]
        if bad:
            raise CheckpointError(f"{loaded.name}: {len(bad)} weights hold NaN or infinite values, such as {bad[0]!r}")
    count = sum(parameter.numel() for parameter in loaded.transformer.parameters())
    lines = [
        f"{loaded.name}: whole, a transformer of {count:,} parameters, trained for {loaded.contract.robot.name}",
        *loaded.notes,
    ]
    Console(highlight=False).print("\n".join(lines), markup=False, soft_wrap=True)


def ckpt_convert(
    source: Positional[Path],
    target: Positional[Path],
    *,
    to: Literal["native", "diffusers"],
    dtype: Dtype | None = None,
    copy: Literal["net", "net_ema"] = "net",
    architecture: str | None = None,
    parts: str | None = None,
    contract: str | None = None,
    texts: Path | None = None,
    statistics: Path | None = None,
) -> None:
    """Write a checkpoint in the other layout, and read it back to compare every bit. An existing target is refused.

    A published Cosmos Policy network becomes a folder of this package, with the contract and what its repository has
    beside it.

    Args:
        source: folder or file: diffusers, native safetensors, torch.distributed.checkpoint, or .pt; or a shipped name.
        target: folder to make.
        to: layout of the target.
        dtype: of the written weights; by default as stored.
        copy: of a native checkpoint, the trained weights or their running average.
        architecture: nano, super, edge or a config.json, where the source does not say.
        parts: checkpoint that gives vae, tokenizer and scheduler, where the source has none.
        contract: Cosmos Policy: name or file, such as cosmos-policy-libero.
        texts: Cosmos Policy: embedded prompts, t5_embeddings.pkl as published.
        statistics: Cosmos Policy: *_dataset_statistics.json as published.
    """
    import torch

    from cosmos_robot.backbone.cosmos3.convert import convert
    from cosmos_robot.backbone.predict2.convert import convert_published, is_published

    source = source if source.exists() else shipped().get(str(source), source)
    if not source.exists():
        raise InputError(f"no {source}; expected a checkpoint's folder or file")
    kind = getattr(torch, dtype) if dtype else None
    policy = {"contract": contract, "texts": texts, "statistics": statistics}
    if is_published(source):
        if to != "diffusers" or architecture is not None:
            raise InputError(
                "ckpt convert: a Cosmos Policy network is converted --to diffusers, without --architecture"
            )
        notes = convert_published(source, target, parts=parts, copy=copy, dtype=kind or torch.bfloat16, **policy)
    elif any(value is not None for value in policy.values()):
        given = ", ".join(f"--{name}" for name, value in policy.items() if value is not None)
        raise InputError(f"ckpt convert: {given} is for Cosmos Policy, and {source} holds no such network")
    else:
        notes = convert(source, target, to, dtype=kind, copy=copy, architecture=architecture, parts=parts)
    lines = [f"{target}: {to}, read back and compared", *notes]
    Console(highlight=False).print("\n".join(lines), markup=False, soft_wrap=True)


def _show(console: Console, found: CheckpointFolder) -> None:
    from cosmos_robot.backbone.cosmos3.listing import describe, list_parts

    table = Table("part", "class", "tensors", "parameters", "dtype", "MB", box=None)
    for part in list_parts(found):
        counts = (f"{part.tensors:,}", f"{part.parameters:,}") if part.tensors else ("", "")
        name = part.name if part.folder.parent == found.folder else f"{part.name} (of {part.folder.parent.name})"
        table.add_row(name, part.kind, *counts, ", ".join(part.dtypes), f"{part.size / 1e6:.2f}")
    console.print(f"{found.name}: {found.folder}", soft_wrap=True)
    console.print(table)
    for line in _beware(found):
        console.print(line, markup=False, soft_wrap=True)
    if found.contract_file is None:
        console.print("no contract: it is loaded only with one that the caller brings")
        return
    console.print("\n".join(describe(found.contract())), markup=False, soft_wrap=True)


def _beware(found: CheckpointFolder) -> Iterator[str]:
    from cosmos_robot.backbone.cosmos3.weights import index_notes, part_weights, quantised_part, read_json

    for part in (found.parts["transformer"], found.parts["vae"]):
        weights = part_weights(part)
        how = quantised_part(part, read_json(part / "config.json"), weights.dtypes)
        if how:
            yield f"beware: {part.name} is quantised ({how}); it is not loaded"
        yield from (f"beware: {note}" for note in index_notes(part, weights))


def _about(entry: Released) -> Iterator[str]:
    yield f"{entry.name}: {entry.summary}"
    yield f"  repository: {entry.repository}"
    yield f"  revision: {entry.revision or 'none is known to be good'} ({entry.revision_basis})"
    yield f"  download: {_gb(entry.size_gb)}; GPU memory: {_gb(entry.memory_gb)}"
    yield f"  contract: {entry.contract or 'none of its own'}"
    yield from (f"  beware: {hazard}" for hazard in entry.hazards)


def _source_lines(path: Path) -> Iterator[str]:
    from cosmos_robot.backbone.cosmos3.keys import COPIES, split_native, strip_prefix
    from cosmos_robot.backbone.cosmos3.sources import LAYOUTS, open_source
    from cosmos_robot.backbone.cosmos3.weights import bytes_of, quantisation

    source = open_source(path)
    dtypes = {key: stored.dtype for key, stored in source.tensors.items()}
    yield f"{path}: {source.layout}, {LAYOUTS[source.layout]}"
    kinds = ", ".join(sorted(set(dtypes.values())))
    yield f"  {len(dtypes):,} tensors of {kinds}, {bytes_of(source.tensors.values()) / 1e6:.2f} MB"
    how = quantisation(source.config, dtypes)
    if how:
        yield f"  quantised: {how}; it is not loaded"
    if source.strays:
        yield f"  {len(source.strays)} names of its index that no file holds, such as {source.strays[0]!r}"
    if source.layout == "part":
        return
    for copy in COPIES:
        held = [key for key in source.tensors if strip_prefix(key)[0] == copy]
        if held:
            split = split_native(held, copy)
            counts = (len(split.transformer), len(split.visual), len(split.legacy))
            yield "  {}: {:,} weights of the transformer, {:,} of the visual tower, {:,} legacy".format(copy, *counts)
    yield "  to load it: cosmos-robot ckpt convert PATH FOLDER --to diffusers --parts CHECKPOINT"


def _gb(size: float | None) -> str:
    return "unknown" if size is None else f"{size:g} GB"
