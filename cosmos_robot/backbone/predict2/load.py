"""Cosmos Policy checkpoints: published weight files, and this package's folder of them.

A folder holds ``transformer/`` and ``vae/`` in diffusers' layout, ``text_embeddings.safetensors``, ``model_index.json``
and the contract. A published repository holds one ``.pt`` without autoencoder: ``convert.py`` makes a folder
of it.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import diffusers
import torch
from diffusers import AutoencoderKLWan, CosmosTransformer3DModel
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor

from cosmos_robot.backbone.cosmos3.folder import INDEX_FILE, TEXTS_FILE, find_checkpoint
from cosmos_robot.backbone.cosmos3.load import usable_device, whole_folder, write_module
from cosmos_robot.backbone.cosmos3.memory import require_memory
from cosmos_robot.backbone.cosmos3.modules import fill, plan_module, read_tensors, shapes_of
from cosmos_robot.backbone.cosmos3.sources import Source, open_source
from cosmos_robot.backbone.cosmos3.weights import (
    Stored,
    read_header,
    read_json,
    refuse_misfit,
    refuse_quantised,
)
from cosmos_robot.backbone.predict2.keys import config_of, split_published
from cosmos_robot.backbone.predict2.network import Rope, as_published, empty_network
from cosmos_robot.backbone.predict2.text import Encode, TextEmbeddings
from cosmos_robot.contract import Contract
from cosmos_robot.contract.library import load_contract
from cosmos_robot.errors import CheckpointError, ContractError
from cosmos_robot.latent_frames.layout import layout_of

_LOG = logging.getLogger(__name__)
PIPELINE: Final = "CosmosPolicyPipeline"
ROPE_KEY: Final = "cosmos_robot_rope"
"""Key of model_index.json that says how the network was trained to round its positions."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint: modules in evaluation mode on one device, embedded prompts, and the contract."""

    name: str
    folder: Path
    transformer: CosmosTransformer3DModel
    vae: AutoencoderKLWan
    texts: TextEmbeddings
    contract: Contract
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Network:
    """A network read from a published file. dropped: stored names that carry no weight. left: of the other copy."""

    transformer: CosmosTransformer3DModel
    dropped: tuple[str, ...]
    left: tuple[str, ...]


def load_network(
    path: Path,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    rope: Rope = "bfloat16",
    copy: str = "net",
) -> Network:
    """The network of a published checkpoint: a ``.pt``, ``.safetensors`` or distributed folder, under ``net.`` keys.

    Its sizes are read off the weights. rope: released weights were run with rounded positions. copy: ``net`` or
    ``net_ema``. Nothing that the file could run is run. Raises CheckpointError for a weight that is missing, unknown or
    of another shape, for quantised weights, and where memory is short.
    """
    usable, source = usable_device(device), open_published(path)
    keys = split_published(source.tensors, copy)
    stored = {name: source.tensors[key] for key, name in keys.transformer.items()}
    shapes = {name: entry.shape for name, entry in stored.items()}
    refuse_quantised(path, {}, {name: entry.dtype for name, entry in stored.items()})
    network = empty_network(config_of(shapes), path)
    refuse_misfit(path, shapes, shapes_of(network), "a Cosmos Policy network of their own sizes")
    require_memory(path.name, list(stored.values()), dtype, usable)
    state = {keys.transformer[key]: value.to(usable, dtype) for key, value in source.read(keys.transformer)}
    network.load_state_dict(state, strict=True, assign=True)
    return Network(as_published(network.eval(), rope), keys.dropped, keys.left)


def load_checkpoint(
    ref: str | Path,
    *,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    contract: Contract | str | Path | None = None,
    encode: Encode | None = None,
) -> Checkpoint:
    """Load a checkpoint folder by name, path or hub id.

    dtype: None means float32 on a CPU and bfloat16 elsewhere. contract: instead of its own. encode: makes embeddings of
    prompts that the folder lacks (``text.load_t5``). Raises as ``backbone.cosmos3.load.load_checkpoint``.
    """
    usable = usable_device(device)
    if dtype is None:
        dtype = torch.float32 if usable.type == "cpu" else torch.bfloat16
    found = find_checkpoint(ref, needs_contract=contract is None)
    if contract is None:
        contract = found.contract()
    elif not isinstance(contract, Contract):
        contract = load_contract(contract)
    plans = [
        plan_module(kind, found.parts[part])
        for kind, part in ((CosmosTransformer3DModel, "transformer"), (AutoencoderKLWan, "vae"))
    ]
    texts = found.folder / TEXTS_FILE
    held = TextEmbeddings.read(texts, encode) if texts.is_file() else TextEmbeddings({}, encode=encode)
    check_contract(contract, plans[0].module, plans[1].module)
    notes = tuple(note for plan in plans for note in plan.notes)
    for note in notes:
        _LOG.warning("%s: %s", found.name, note)
    require_memory(found.name, [stored for plan in plans for stored in plan.weights.tensors.values()], dtype, usable)
    transformer, vae = (fill(plan, dtype, usable) for plan in plans)
    as_published(transformer, read_json(found.folder / INDEX_FILE).get(ROPE_KEY, "exact"))
    return Checkpoint(found.name, found.folder, transformer, vae, held, contract, notes)


def save_checkpoint(
    folder: str | Path,
    *,
    transformer: CosmosTransformer3DModel,
    vae: AutoencoderKLWan,
    texts: TextEmbeddings,
    contract: Contract,
    rope: Rope = "exact",
    dtype: torch.dtype = torch.bfloat16,
    overwrite: bool = False,
) -> Path:
    """Write a checkpoint folder, whole or not at all, and return it. rope: how the network was trained."""
    check_contract(contract, transformer, vae)
    parts: Mapping[str, ModelMixin] = {"transformer": transformer, "vae": vae}
    with whole_folder(Path(folder), overwrite) as partial_folder:
        for name, module in parts.items():
            write_module(module, partial_folder / name, dtype)
        texts.write(partial_folder / TEXTS_FILE)
        contract.save(partial_folder)
        index = {
            "_class_name": PIPELINE,
            "_diffusers_version": diffusers.__version__,
            ROPE_KEY: rope,
            **{name: ["diffusers", type(module).__name__] for name, module in parts.items()},
        }
        (partial_folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")
    return Path(folder)


def check_contract(contract: Contract, transformer: CosmosTransformer3DModel, vae: AutoencoderKLWan) -> None:
    """Raise ContractError naming the field of ``contract`` that the modules cannot serve."""
    model, config = contract.model, transformer.config
    if model.backbone != "predict2":
        raise ContractError(f"model.backbone is {model.backbone!r}, but the transformer is of 'predict2'")
    layout = layout_of(contract)
    sizes = {(p.to.height, p.to.width) for p in model.canvas.placements}
    if len(sizes) != 1:
        raise ContractError(f"model.canvas: latent frames need pictures of one size, got {sorted(sizes)}")
    ((height, width),) = sizes
    cell = vae.config.scale_factor_spatial * config.patch_size[1]
    if height % cell or width % cell:
        raise ContractError(f"model.canvas: pictures are {height}x{width}, expected multiples of {cell}")
    if len(layout) > config.max_size[0]:
        raise ContractError(f"model.frames: {len(layout)} latent frames, the transformer has {config.max_size[0]}")
    if config.in_channels - 1 != vae.config.z_dim:
        raise CheckpointError(
            f"the autoencoder makes {vae.config.z_dim} latent channels, the transformer reads {config.in_channels - 1}"
        )
    numbers = (
        vae.config.z_dim * (height // vae.config.scale_factor_spatial) * (width // vae.config.scale_factor_spatial)
    )
    if model.chunk * contract.action_width > numbers:
        raise ContractError(
            f"model.chunk: {model.chunk} rows of {contract.action_width} do not fit a latent frame of {numbers}"
        )


def open_published(path: Path) -> Source:
    """A published file or distributed folder, by name, shape and type. Nothing that it could run is run."""
    if path.suffix == ".safetensors":
        tensors = read_header(path)
        return Source("native", path, {}, tensors, partial(_read, tensors))
    with torch.serialization.safe_globals([io.BytesIO]):  # Transformer Engine's states, which are dropped
        return open_source(path)


def _read(tensors: Mapping[str, Stored], keys: Mapping[str, str]) -> Iterator[tuple[str, Tensor]]:
    return read_tensors({key: tensors[key] for key in keys})
