"""Memory and time of a training, told before anything is loaded: sizes come from configs, on the meta device."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from cosmos_robot.backbone.cosmos3.folder import CheckpointFolder, find_checkpoint
from cosmos_robot.backbone.cosmos3.layout import PlanMode, contract_plan, video_frames
from cosmos_robot.backbone.cosmos3.memory import available_bytes
from cosmos_robot.backbone.cosmos3.weights import read_json
from cosmos_robot.contract import Contract
from cosmos_robot.errors import CheckpointError
from cosmos_robot.images import model_size
from cosmos_robot.recipes.finetune.description import Description, TrainingSpec
from cosmos_robot.recipes.finetune.stages import Run, Say
from cosmos_robot.training.model_config import Stream
from cosmos_robot.training.session import LOG_FILE

FLOAT32, HALF = 4, 2
KEPT_PER_LAYER: Final = 16
"""Vectors of the model's width that a layer keeps for the backward pass, per token: inputs of two norms and of the
attention, query, key, value and its output (6), and of the feed-forward part two of three times the width (10). A rule
of thumb; the probe measures."""
PROBE_LIMIT: Final = 100_000_000
"""Parameters up to which steps are tried."""
PROBE_STEPS: Final = 6


@dataclass(frozen=True)
class Memory:
    """Bytes of a training, each part by itself. activations: of one step, estimated."""

    weights: int
    compute_copy: int
    gradients: int
    optimiser: int
    average: int
    activations: int
    autoencoder: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


def plan(run: Run, probe: bool, say: Say) -> dict[str, Any]:
    """What training will take. With ``probe``, a few steps of a small model are made and timed."""

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        description, contract = run.description(), run.contract()
        start = find_checkpoint(description.start)
        sizes = parameter_counts(start, description.training)
        tokens = tokens_per_sample(start, contract)
        memory = training_memory(start, sizes, max(tokens.values()), description.training)
        training = description.training
        tell(
            f"{description.start}: {sizes['all'] / 1e6:.3g} M parameters, {sizes['trained'] / 1e6:.3g} M trained"
            + (f" (LoRA of rank {training.lora})" if training.lora else "")
        )
        counted = ", ".join(f"{count} tokens ({mode})" for mode, count in tokens.items())
        tell(f"a sample is {counted} besides its text; {training.batch} samples a step, {training.steps} steps")
        if len(tokens) > 1:
            tell("memory is for a step whose samples are all of the largest mode, as may be drawn")
        for name, size in asdict(memory).items():
            tell(f"memory, {name.replace('_', ' ')}: {_size(size)}")
        free = available_bytes(torch.device(training.device))
        tell(f"memory in all: {_size(memory.total)} of {_size(free)} free on {training.device}")
        if memory.total > free:
            raise CheckpointError(
                f"plan: training takes about {_size(memory.total)}, {training.device} has {_size(free)} free; set a "
                "smaller training.batch, training.checkpoint_layers = true, or training.lora"
            )
        seconds = _probed(run, description, contract, folder) if probe and sizes["all"] <= PROBE_LIMIT else None
        tell(_time_line(seconds, training, probe))
        return {"parameters": sizes, "tokens": tokens, "memory": asdict(memory), "seconds_per_step": seconds}

    return run.perform("plan", work, say, {"probe": probe})


def parameter_counts(start: CheckpointFolder, training: TrainingSpec) -> dict[str, int]:
    """``all`` parameters of the start's transformer and those ``trained``, from its config alone."""
    from diffusers import Cosmos3OmniTransformer

    from cosmos_robot.backbone.cosmos3.lora import LoraSpec, add_lora
    from cosmos_robot.training.parameters import choose_trained

    config = read_json(start.parts["transformer"] / "config.json")
    with torch.device("meta"):
        model = Cosmos3OmniTransformer.from_config(config)
        total = sum(p.numel() for p in model.parameters())
        if training.lora:
            add_lora(model, LoraSpec(rank=training.lora), seed=training.seed)
        else:
            choose_trained(model, recipe_of(training))
    return {"all": total, "trained": sum(p.numel() for p in model.parameters() if p.requires_grad)}


def tokens_per_sample(start: CheckpointFolder, contract: Contract) -> dict[PlanMode, int]:
    """Picture tokens and rows of one sample of each mode that is trained. Raises ContractError as ``contract_plan``."""
    config = read_json(start.parts["transformer"] / "config.json")
    cell = read_json(start.parts["vae"] / "config.json")["scale_factor_spatial"]
    height, width = model_size(contract.model.canvas)
    found = {}
    for mode in contract.model.modes:
        tokens = contract_plan(contract, mode, (height // cell, width // cell), contract.model.history_rows)
        found[mode] = tokens.latent_grid[0] * tokens.patches(config["latent_patch_size"]) + tokens.rows
    return found


def training_memory(start: CheckpointFolder, sizes: dict[str, int], tokens: int, training: TrainingSpec) -> Memory:
    """Bytes: float32 weights, their copy in the precision of computing, gradients, two moments, the average, and what a
    step keeps for its backward pass."""
    config = read_json(start.parts["transformer"] / "config.json")
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    size = HALF if training.compute == "bfloat16" else FLOAT32
    kept = 1 if training.checkpoint_layers else KEPT_PER_LAYER
    vae = sum(f.stat().st_size for f in start.parts["vae"].glob("*.safetensors"))
    return Memory(
        weights=FLOAT32 * sizes["all"],
        compute_copy=size * sizes["all"] if size != FLOAT32 else 0,
        gradients=FLOAT32 * sizes["trained"],
        optimiser=2 * FLOAT32 * sizes["trained"],
        average=FLOAT32 * sizes["trained"],
        activations=training.batch * tokens * width * layers * kept * size,
        autoencoder=2 * vae,
    )


def recipe_of(training: TrainingSpec):
    """The published recipe with what the description changes. Raises ContractError for an unknown setting."""
    from cosmos_robot.errors import UnknownNameError
    from cosmos_robot.training.model_config import PostTraining

    known = PostTraining.__dataclass_fields__
    for name in training.recipe:
        if name not in known:
            raise UnknownNameError("setting in training.recipe", name, known)
    return PostTraining(**{n: tuple(v) if isinstance(v, list) else v for n, v in training.recipe.items()})


def stream_of(description: Description, contract: Contract) -> Stream:
    """What is learnt, and as which modes. Raises ContractError where the chunk has no whole video though a mode needs
    one, InputError where the rows of the recordings do not fall on its pictures."""
    stream = Stream(
        name=contract.model.name, contract=contract, modes=description.training.shares, stride=description.data.stride
    )
    if stream.has_video:
        video_frames(contract.model)
    return stream


def _probed(run: Run, description: Description, contract: Contract, folder: Path) -> float:
    """Seconds of a step: the mean of a few on the first training episode, loading and writing left out."""
    from cosmos_robot.recipes.finetune.learn import train_on

    probe = folder / "probe"
    train_on(run, description, contract, probe, steps=PROBE_STEPS, only=0, validate=False)
    last = json.loads((probe / LOG_FILE).read_text().splitlines()[-1])
    shutil.rmtree(probe)
    return last["cycle_seconds"] / last["step"]


def _time_line(seconds: float | None, training: TrainingSpec, probe: bool) -> str:
    if seconds is None:
        why = "the probe was switched off" if not probe else "the model is too large to try"
        return f"time: unknown ({why})"
    return f"time: {seconds:.2f} s a step here and now, {seconds * training.steps / 60:.0f} minutes for all"


def _size(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
