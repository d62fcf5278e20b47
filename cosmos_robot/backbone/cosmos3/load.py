"""Checkpoints in the released layout, read and written: ``transformer/ vae/ text_tokenizer/ scheduler/
model_index.json`` of diffusers, and the contract beside them.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import diffusers
import torch
from diffusers import AutoencoderKLWan, Cosmos3OmniTransformer
from diffusers.models.modeling_utils import ModelMixin
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from cosmos_robot.backbone.cosmos3.folder import (
    INDEX_FILE,
    SHARED_KEY,
    CheckpointFolder,
    find_checkpoint,
    leftovers,
    refuse_interrupted,
)
from cosmos_robot.backbone.cosmos3.memory import require_memory
from cosmos_robot.backbone.cosmos3.modules import fill, plan_module, writable_state, write_weights
from cosmos_robot.backbone.cosmos3.sampler import native_scheduler
from cosmos_robot.backbone.cosmos3.weights import WEIGHTS, read_json
from cosmos_robot.contract import Contract
from cosmos_robot.contract.library import load_contract
from cosmos_robot.errors import CheckpointError, ContractError, InputError
from cosmos_robot.images import model_size

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint: modules in evaluation mode on one device, with the contract they were trained under.

    notes: what of the folder was ignored or replaced, in words.
    """

    name: str
    folder: Path
    transformer: Cosmos3OmniTransformer
    vae: AutoencoderKLWan
    tokenizer: PreTrainedTokenizerBase
    scheduler_config: Mapping[str, object]
    contract: Contract
    notes: tuple[str, ...] = ()


def load_checkpoint(
    ref: str | Path,
    *,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    contract: Contract | str | Path | None = None,
) -> Checkpoint:
    """Load a shipped or released checkpoint by name, a local folder, or a hub id ``owner/name[@revision]``.

    dtype: of the weights in memory; None means float32 on a CPU and bfloat16 elsewhere (the time embedder stays
    float32 in any case). Weights stored in that type are used in place from their files, with no second copy.
    contract: instead of the checkpoint's own, or its name or file; base models have none. Raises UnknownNameError,
    CheckpointError (missing file, wrong key or shape, quantised weights, not enough memory), ContractError, or
    InputError for a device that is not to be had.
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
        for kind, part in ((Cosmos3OmniTransformer, "transformer"), (AutoencoderKLWan, "vae"))
    ]
    tokenizer = _load_tokenizer(found.parts["text_tokenizer"])
    check_contract(contract, plans[0].module, plans[1].module, tokenizer)
    scheduler, replaced = _scheduler(found, contract)
    notes = tuple(note for plan in plans for note in plan.notes) + replaced
    for note in notes:
        _LOG.warning("%s: %s", found.name, note)
    require_memory(found.name, [stored for plan in plans for stored in plan.weights.tensors.values()], dtype, usable)
    transformer, vae = (fill(plan, dtype, usable) for plan in plans)
    check_heads(transformer, found.parts["transformer"])
    return Checkpoint(found.name, found.folder, transformer, vae, tokenizer, scheduler, contract, notes)


def check_heads(transformer: Cosmos3OmniTransformer, where: Path) -> None:
    """Raise CheckpointError if the action heads hold values that are no numbers."""
    heads = {name: value for name, value in transformer.named_parameters() if name.startswith("action_")}
    bad = [name for name, value in heads.items() if not torch.isfinite(value).all()]
    if bad:
        raise CheckpointError(
            f"weights in {where}: {', '.join(bad)} hold NaN or infinite values. Edge snapshots older than 2026-07-16 "
            "have no trained action heads; fetch a newer revision"
        )


def check_contract(
    contract: Contract, transformer: Cosmos3OmniTransformer, vae: AutoencoderKLWan, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raise ContractError naming the field of ``contract`` that the modules cannot serve."""
    model, config, cell = contract.model, transformer.config, vae.config.scale_factor_spatial
    widths = {"model.action_space" if model.action_space else "robot.action": contract.action_width}
    if model.state_row:
        widths["model.state_space" if model.state_space else "robot.state"] = contract.state_width
    if not config.action_gen:
        raise ContractError(f"contract {model.name!r} wants actions, but the transformer has no action heads")
    for field, width in widths.items():
        if width > config.action_dim:
            raise ContractError(f"{field} is {width} wide, but the transformer's action rows hold {config.action_dim}")
    if model.domain_id >= config.num_embodiment_domains:
        raise ContractError(f"model.domain_id is {model.domain_id}, expected below {config.num_embodiment_domains}")
    height, width = model_size(model.canvas)
    if height % cell or width % cell:
        size = f"{height}x{width}"
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
    with whole_folder(folder, overwrite) as partial:
        write_module(transformer, partial / "transformer", dtype)
        if vae is not None:
            write_module(vae, partial / "vae", dtype)
            tokenizer.save_pretrained(partial / "text_tokenizer")
            native_scheduler(contract.model.sampler.shift).save_pretrained(partial / "scheduler")
        contract.save(partial)
        index = _index(type(tokenizer).__name__, share_with)
        (partial / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")
    return folder


@contextmanager
def whole_folder(folder: Path, overwrite: bool = False) -> Iterator[Path]:
    """A folder to write into that takes the place of ``folder`` when the block ends without an error.

    An existing one is refused unless ``overwrite``; it is moved aside first and deleted last, so a kill at any moment
    leaves it, or the new one, or a message of ``find_checkpoint`` how to get either back.
    """
    if not overwrite:
        refuse_interrupted(folder)
        if folder.exists():
            raise CheckpointError(f"{folder} exists; choose another folder or say that it may be overwritten")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial, old = (folder.with_name(f".{folder.name}.{kind}-{os.getpid()}") for kind in ("partial", "old"))
    try:
        partial.mkdir()
        yield partial
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
    except BaseException:
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    for earlier in leftovers(folder)[0]:
        shutil.rmtree(earlier)


def _scheduler(found: CheckpointFolder, contract: Contract) -> tuple[Mapping[str, object], tuple[str, ...]]:
    """The schedule's settings, and what was replaced: this runtime knows the native flow schedule only."""
    exported = read_json(found.parts["scheduler"] / "scheduler_config.json")
    native = dict(native_scheduler(contract.model.sampler.shift).config)
    kind = exported.get("_class_name")
    if exported.get("use_karras_sigmas"):
        why = "its scheduler imitates a flow schedule with Karras sigmas"
    elif not hasattr(diffusers, str(kind)):
        why = f"its scheduler {kind!r} is not in diffusers {diffusers.__version__}"
    else:
        return exported, ()
    return native, (f"{why}; the native schedule with the contract's shift {native['flow_shift']:g} is used instead",)


def usable_device(device: str) -> torch.device:
    """The device called ``device``. Raises InputError if it is not to be had."""
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


def write_module(module: ModelMixin, part: Path, dtype: torch.dtype) -> None:
    """Write a module's weights and configuration into the new folder ``part``."""
    part.mkdir()
    module.save_config(part)
    config = read_json(part / "config.json")
    config.pop("_name_or_path", None)  # where it was once loaded from: a path of one machine
    (part / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    write_weights(part, WEIGHTS, writable_state(module, dtype))


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
