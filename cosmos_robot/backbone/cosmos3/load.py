"""Checkpoints in the released layout, read and written: ``transformer/ vae/ text_tokenizer/ scheduler/
model_index.json`` of diffusers, and the contract beside them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import diffusers
import torch
from accelerate import init_empty_weights
from diffusers import AutoencoderKLWan, Cosmos3OmniTransformer
from diffusers.models.modeling_utils import ModelMixin
from huggingface_hub import save_torch_state_dict
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from cosmos_robot.backbone.cosmos3.folder import (
    INDEX_FILE,
    SHARED_KEY,
    find_checkpoint,
    read_json,
    tensor_shapes,
    weight_files,
)
from cosmos_robot.backbone.cosmos3.sampler import native_scheduler
from cosmos_robot.contract import Contract
from cosmos_robot.errors import CheckpointError, ContractError, InputError


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint: modules in evaluation mode on one device, with the contract they were trained under."""

    name: str
    folder: Path
    transformer: Cosmos3OmniTransformer
    vae: AutoencoderKLWan
    tokenizer: PreTrainedTokenizerBase
    scheduler_config: Mapping[str, object]
    contract: Contract


def load_checkpoint(ref: str | Path, *, device: str = "cpu", dtype: torch.dtype | None = None) -> Checkpoint:
    """Load a shipped checkpoint by name, a local folder, or a hub id ``owner/name[@revision]``.

    dtype: of the weights in memory; None means float32 on a CPU and bfloat16 elsewhere (the time embedder stays
    float32 in any case). Raises UnknownNameError, CheckpointError (missing file, wrong key or shape), ContractError, or
    InputError for a device that is not to be had.
    """
    usable = _usable(device)
    if dtype is None:
        dtype = torch.float32 if usable.type == "cpu" else torch.bfloat16
    found = find_checkpoint(ref)
    contract = Contract.load(found.folder)
    transformer = _load_module(Cosmos3OmniTransformer, found.parts["transformer"], dtype)
    vae = _load_module(AutoencoderKLWan, found.parts["vae"], dtype)
    tokenizer = _load_tokenizer(found.parts["text_tokenizer"])
    check_contract(contract, transformer, vae, tokenizer)
    return Checkpoint(
        name=found.name,
        folder=found.folder,
        transformer=transformer.to(usable).eval(),
        vae=vae.to(usable).eval(),
        tokenizer=tokenizer,
        scheduler_config=read_json(found.parts["scheduler"] / "scheduler_config.json"),
        contract=contract,
    )


def check_contract(
    contract: Contract, transformer: Cosmos3OmniTransformer, vae: AutoencoderKLWan, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raise ContractError naming the field of ``contract`` that the modules cannot serve."""
    model, config, cell = contract.model, transformer.config, vae.config.scale_factor_spatial
    widths = {"robot.action": contract.robot.action_width}
    if model.state_row:
        widths["robot.state"] = contract.robot.state_width
    if not config.action_gen:
        raise ContractError(f"contract {model.name!r} wants actions, but the transformer has no action heads")
    for field, width in widths.items():
        if width > config.action_dim:
            raise ContractError(f"{field} is {width} wide, but the transformer's action rows hold {config.action_dim}")
    if model.domain_id >= config.num_embodiment_domains:
        raise ContractError(f"model.domain_id is {model.domain_id}, expected below {config.num_embodiment_domains}")
    if model.canvas.height % cell or model.canvas.width % cell:
        size = f"{model.canvas.height}x{model.canvas.width}"
        raise ContractError(f"model.canvas is {size} pixels, but the autoencoder needs multiples of {cell}")
    if config.latent_channel != vae.config.z_dim:
        raise CheckpointError(
            f"the autoencoder makes {vae.config.z_dim} latent channels, the transformer reads {config.latent_channel}"
        )
    if len(tokenizer) > transformer.vocab_size:
        raise CheckpointError(f"the tokenizer knows {len(tokenizer)} tokens, the transformer {transformer.vocab_size}")


def save_checkpoint(
    folder: str | Path,
    *,
    transformer: Cosmos3OmniTransformer,
    contract: Contract,
    vae: AutoencoderKLWan | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    share_with: str | None = None,
    dtype: torch.dtype = torch.bfloat16,
    overwrite: bool = False,
) -> Path:
    """Write a checkpoint in the released layout and return its folder.

    The folder appears whole or not at all: it is written under another name and renamed. An existing one is refused
    unless ``overwrite``. With ``share_with`` (the name of a neighbour folder) only the transformer and the contract are
    written and the rest is taken from there; otherwise ``vae`` and ``tokenizer`` are needed.
    """
    folder = Path(folder)
    if (share_with is None) != (vae is not None and tokenizer is not None):
        raise InputError("save_checkpoint: pass either vae and tokenizer, or share_with, not both and not neither")
    if folder.exists() and not overwrite:
        raise CheckpointError(f"{folder} exists; choose another folder or say that it may be overwritten")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    try:
        partial.mkdir()
        _write_module(transformer, partial / "transformer", dtype)
        if vae is not None:
            _write_module(vae, partial / "vae", dtype)
            tokenizer.save_pretrained(partial / "text_tokenizer")
            native_scheduler(contract.model.sampler.shift).save_pretrained(partial / "scheduler")
        contract.save(partial)
        index = _index(type(tokenizer).__name__, share_with)
        (partial / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")
        _put_in_place(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _usable(device: str) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {device!r} cannot be used here: {reason}; 'cpu' always can") from error


def _load_tokenizer(part: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(part, local_files_only=True)
    except Exception as error:  # the library raises whatever its parsers do
        raise CheckpointError(f"{part} is not a whole tokenizer: {error}; copy or save it again") from error


def _unfilled(kind: type[ModelMixin], part: Path) -> ModelMixin:
    """The module that a part's config.json describes, without weights."""
    config = read_json(part / "config.json")
    try:
        with init_empty_weights():
            return kind.from_config(config)
    except Exception as error:  # the library checks no field: whatever its constructor stumbles over
        raise CheckpointError(f"{part / 'config.json'} describes no {kind.__name__}: {error}") from error


def _load_module(kind: type[ModelMixin], part: Path, dtype: torch.dtype) -> ModelMixin:
    """A module from its part folder, after comparing every key and shape on disk with what its config asks for."""
    expected = {k: tuple(v.shape) for k, v in _unfilled(kind, part).state_dict().items()}
    stored = tensor_shapes(part)
    problems = [f"missing {key}" for key in sorted(expected.keys() - stored.keys())]
    problems += [f"unknown {key}" for key in sorted(stored.keys() - expected.keys())]
    problems += [
        f"{key} is {stored[key]}, expected {expected[key]}"
        for key in sorted(stored.keys() & expected.keys())
        if stored[key] != expected[key]
    ]
    if problems:
        shown = "\n  - ".join(problems[:8] + ([f"and {len(problems) - 8} more"] if len(problems) > 8 else []))
        raise CheckpointError(f"weights in {part} do not fit its config.json:\n  - {shown}")
    return kind.from_pretrained(part, torch_dtype=dtype, local_files_only=True)


def _write_module(module: ModelMixin, part: Path, dtype: torch.dtype) -> None:
    part.mkdir()
    module.save_config(part)
    config = read_json(part / "config.json")
    config.pop("_name_or_path", None)  # where it was once loaded from: a path of one machine
    (part / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    state = {k: v.detach().to("cpu", dtype).contiguous() for k, v in module.state_dict().items()}
    save_torch_state_dict(state, part, filename_pattern="diffusion_pytorch_model{suffix}.safetensors")
    for path in weight_files(part):
        path.chmod(0o644)  # safetensors writes files that only their owner may read


def _index(tokenizer_class: str, share_with: str | None) -> dict:
    shared = {} if share_with is None else {SHARED_KEY: f"../{share_with}"}
    return {
        "_class_name": "Cosmos3OmniPipeline",
        "_diffusers_version": diffusers.__version__,
        **shared,
        "transformer": ["diffusers", "Cosmos3OmniTransformer"],
        "vae": ["diffusers", "AutoencoderKLWan"],
        "text_tokenizer": ["transformers", "AutoTokenizer" if share_with else tokenizer_class],
        "scheduler": ["diffusers", "UniPCMultistepScheduler"],
        "sound_tokenizer": [None, None],
        "enable_safety_checker": False,
        "default_use_system_prompt": False,
        "use_native_flow_schedule": True,
    }


def _put_in_place(partial: Path, folder: Path) -> None:
    if not folder.exists():
        partial.rename(folder)
        return
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old)
