"""A published Cosmos Policy weight file as a checkpoint folder: ``cosmos-robot ckpt convert``.

A published repository holds the network (``.pt``), the statistics of its robot (``*_dataset_statistics.json``) and
embedded prompts (``t5_embeddings.pkl``), but no autoencoder and no contract.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from diffusers import AutoencoderKLWan

from cosmos_robot.actions.statistics_files import choose_block, read_blocks
from cosmos_robot.backbone.cosmos3.folder import find_checkpoint
from cosmos_robot.backbone.cosmos3.modules import fill, plan_module
from cosmos_robot.backbone.predict2.load import load_checkpoint, load_network, open_published, save_checkpoint
from cosmos_robot.backbone.predict2.text import TextEmbeddings, read_published
from cosmos_robot.contract import Contract, load_contract
from cosmos_robot.errors import CheckpointError, InputError

MARK: Final = "blocks.0.adaln_modulation_self_attn.1.weight"
"""A weight of every published Cosmos Policy network, and of no Cosmos 3."""


def is_published(source: Path) -> bool:
    """Whether ``source``, a file or folder of weights, holds a network of Cosmos Policy. Reads headers only."""
    if not source.is_dir() and source.suffix not in (".pt", ".safetensors"):
        return False
    return any(key.endswith(MARK) for key in open_published(source).tensors)


def convert_published(
    source: Path,
    target: Path,
    *,
    contract: str | Path | None,
    parts: str | Path | None,
    texts: Path | None = None,
    statistics: Path | None = None,
    copy: str = "net",
    dtype: torch.dtype = torch.bfloat16,
) -> list[str]:
    """Write the folder ``target``, load it and compare every weight; returns notes of what was dropped or is missing.

    contract: name or file. parts: checkpoint, or folder of a Wan 2.1 autoencoder, that gives the ``vae``. texts:
    prompts as published or as ``text_embeddings.safetensors``. statistics: the robot's, for a contract that lacks them.
    copy: ``net`` or ``net_ema``. Raises InputError for what is not given, and as ``load_network`` and
    ``save_checkpoint``.
    """
    if contract is None or parts is None:
        raise InputError(
            f"ckpt convert: {source} is a Cosmos Policy network, which comes without contract and autoencoder; pass "
            "--contract, such as cosmos-policy-libero, and --parts, the folder of a Wan 2.1 autoencoder"
        )
    made_for = with_statistics(load_contract(str(contract)), statistics)
    network = load_network(source, dtype=dtype, copy=copy)
    held = _texts(texts)
    save_checkpoint(
        target,
        transformer=network.transformer,
        vae=_autoencoder(str(parts), dtype),
        texts=held,
        contract=made_for,
        rope="bfloat16",
        dtype=dtype,
    )
    again = load_checkpoint(target, dtype=dtype).transformer.state_dict()
    for key, value in network.transformer.state_dict().items():
        if not torch.equal(again[key], value):
            raise CheckpointError(f"{target}: {key!r} was read back otherwise than written; is the disk sound?")
    return _notes(network.dropped, network.left, held, made_for)


def with_statistics(contract: Contract, path: Path | None) -> Contract:
    """``contract`` with the published statistics of its robot, if a file is given."""
    if path is None:
        return contract
    blocks, changes = read_blocks(path), {}
    for field, key in (("action_normalization", "actions"), ("state_normalization", "proprio")):
        plain = getattr(contract.model, field)
        found = choose_block(blocks, method=plain.method, key=key)
        changes[field] = plain.model_copy(update={"statistics": found, "note": ""})
    return contract.model_copy(update={"model": contract.model.model_copy(update=changes)})


def _autoencoder(parts: str, dtype: torch.dtype) -> AutoencoderKLWan:
    folder = Path(parts)
    if (folder / "vae" / "config.json").is_file():
        part = folder / "vae"
    elif (folder / "config.json").is_file():
        part = folder
    else:
        part = find_checkpoint(parts, needs_contract=False).parts["vae"]
    return fill(plan_module(AutoencoderKLWan, part), dtype, torch.device("cpu"))


def _texts(path: Path | None) -> TextEmbeddings:
    if path is None:
        return TextEmbeddings({})
    return TextEmbeddings.read(path) if path.suffix == ".safetensors" else read_published(path)


def _notes(dropped: tuple[str, ...], left: tuple[str, ...], texts: TextEmbeddings, contract: Contract) -> list[str]:
    notes = []
    if dropped:
        notes.append(f"dropped {len(dropped)} entries that are no weights, such as {dropped[0]!r}")
    if left:
        notes.append(f"left {len(left)} weights of the other copy, such as {left[0]!r}")
    if not len(texts):
        notes.append("no prompts: it answers nothing until they are embedded; pass --texts")
    model = contract.model
    for field in ("action_normalization", "state_normalization"):
        plain = getattr(model, field)
        if plain.statistics is None and plain.method != "identity":
            notes.append(f"model.{field} has no statistics; pass --statistics, the repository's JSON file")
    return notes
