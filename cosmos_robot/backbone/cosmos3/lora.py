"""LoRA on the generator half of a Cosmos 3 transformer, through peft, with its action heads trained in full.

Targets are those of NVIDIA/cosmos-framework (``utils/generator/lora.py``): the generator's attention projections, rank
16, alpha 32; its MLP on request. The text half stays as released, so its cached keys and values stay valid. A domain's
weights in the action heads are rows of an embedding, which a low-rank update of all 32 domains would mix; they are
small (17 M in Nano), so both heads are trained whole (peft's ``modules_to_save``), the released ones kept beside. The
modality embedding is left alone: the input head adds a bias of its own per domain in the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from diffusers import Cosmos3OmniTransformer
from peft import (
    LoraConfig,
    PeftConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file
from torch import Tensor, nn

from cosmos_robot.backbone.cosmos3.folder import refuse_interrupted
from cosmos_robot.backbone.cosmos3.weights import read_json, refuse_misfit
from cosmos_robot.errors import CheckpointError, InputError

ATTENTION: Final = ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
MLP: Final = r"mlp_moe_gen\.(gate_proj|up_proj|down_proj)"
HEADS: Final = ("action_proj_in", "action_proj_out")
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class LoraSpec:
    """What is trained. rank, alpha: y = Wx + alpha/rank * B(Ax). mlp: the generator's MLP too. heads: the action heads,
    in full. dropout: of the adapters' input, in training mode."""

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    mlp: bool = False
    heads: bool = True

    def __post_init__(self) -> None:
        if self.rank < 1 or not self.alpha > 0 or not 0 <= self.dropout < 1:
            raise InputError(
                f"expected a rank of at least 1, alpha above 0 and dropout in [0, 1), got {self.rank}, {self.alpha} "
                f"and {self.dropout}"
            )


def add_lora(transformer: Cosmos3OmniTransformer, spec: LoraSpec, *, seed: int = 0) -> PeftModel:
    """Put adapters into ``transformer`` (in place) and return peft's handle on them. Nothing else requires gradients
    any more. The outputs are unchanged until training starts, since every B is 0. seed: of the A matrices.

    Raises InputError if the transformer already has adapters, or no action heads where they are to be trained.
    """
    _refuse_adapted(transformer)
    if spec.heads and not transformer.config.action_gen:
        raise InputError("this transformer has no action heads to train; pass LoraSpec(heads=False)")
    names = "|".join(ATTENTION)
    patterns = rf"self_attn\.({names})" + (f"|{MLP}" if spec.mlp else "")
    config = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,
        lora_dropout=spec.dropout,
        target_modules=rf"layers\.\d+\.({patterns})",
        modules_to_save=list(HEADS) if spec.heads else None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(transformer, config)


def trained_names(transformer: nn.Module) -> list[str]:
    """Names of the parameters that require gradients."""
    return [name for name, parameter in transformer.named_parameters() if parameter.requires_grad]


def merge(adapted: PeftModel) -> Cosmos3OmniTransformer:
    """The plain transformer with the adapters added to its weights and the trained heads in place (in place, no way
    back). Save it with ``save_checkpoint``: it is a checkpoint of the released layout. Raises CheckpointError if the
    sum is not finite."""
    try:
        merged = adapted.merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise CheckpointError(f"adapters cannot be merged: {error}") from error
    merged.requires_grad_(True)
    return merged


def save_adapter(adapted: PeftModel, folder: str | Path) -> Path:
    """Write the adapters and trained heads alone, in peft's own files, and return the folder. The folder appears whole
    or not at all; an existing one is refused."""
    from cosmos_robot.backbone.cosmos3.load import whole_folder

    folder = Path(folder)
    with whole_folder(folder) as made:
        adapted.save_pretrained(made, save_embedding_layers=False)
        (made / "README.md").unlink(missing_ok=True)  # peft's, without content
    return folder


def load_adapter(transformer: Cosmos3OmniTransformer, folder: str | Path, *, trainable: bool = False) -> PeftModel:
    """Put saved adapters into ``transformer`` (in place). trainable: to go on training them.

    Raises CheckpointError for a folder that is none, and for adapters made for another size.
    """
    folder = Path(folder)
    refuse_interrupted(folder)
    _refuse_adapted(transformer)
    read_json(folder / CONFIG_FILE)
    if not (folder / WEIGHTS_FILE).is_file():
        raise CheckpointError(f"adapter {folder} is half-written: no {WEIGHTS_FILE}; save it again")
    try:
        state = load_file(folder / WEIGHTS_FILE)
        config = PeftConfig.from_pretrained(folder, local_files_only=True)
        config.inference_mode = not trainable
        adapted = get_peft_model(transformer, config)
    except Exception as error:  # the libraries raise whatever their parsers and checks do
        raise CheckpointError(f"adapter {folder} cannot be read: {error}; copy or save it again") from error
    try:
        refuse_misfit(folder, _shapes(state), _shapes(get_peft_model_state_dict(adapted)), CONFIG_FILE)
    except CheckpointError:
        adapted.unload()
        raise
    set_peft_model_state_dict(adapted, state)
    return adapted


def _shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items()}


def _refuse_adapted(transformer: nn.Module) -> None:
    if any(isinstance(module, BaseTunerLayer) for module in transformer.modules()):
        raise InputError("this transformer already has adapters; merge them, or load the checkpoint again")
