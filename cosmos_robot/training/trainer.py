"""``train_policy``: recorded episodes and a trained autoencoder in, a checkpoint in the released layout out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, Cosmos3OmniTransformer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from cosmos_robot.backbone.cosmos3.load import save_checkpoint
from cosmos_robot.backbone.cosmos3.text import build_word_tokenizer, prompt_tokens
from cosmos_robot.backbone.cosmos3.tiny import tiny_transformer
from cosmos_robot.contract import CONTRACT_FILE, Contract
from cosmos_robot.errors import CheckpointError
from cosmos_robot.prompts import render_prompt
from cosmos_robot.training.batches import BatchMaker
from cosmos_robot.training.cache import EpisodeSource, FrameCache, StoredEpisodes, frame_cache
from cosmos_robot.training.config import PolicyTraining, plain
from cosmos_robot.training.curves import draw_curves
from cosmos_robot.training.latents import black_latents, latent_cache
from cosmos_robot.training.learner import PolicyLearner
from cosmos_robot.training.loop import Cycle, Pace, run
from cosmos_robot.training.rows import fit_contract, join_caches
from cosmos_robot.training.session import STATE_FILE, Budget, RunFolder
from cosmos_robot.training.tokenizer import VAE_FOLDER

EXPORT = "export"
TEXT_TOKENIZER = "text_tokenizer"
_MAY_DIFFER = ("progress", "save_seconds", "validate_seconds", "validate_steps", "threads", "cache")


def train_policy(config: PolicyTraining, sources: Sequence[EpisodeSource] | None = None) -> Path:
    """Train, or resume, and return the exported checkpoint folder ``config.out/export``.

    The run's folder holds, from its first minute on, the contract with its statistics and the text tokenizer; beside
    them the log, curves and the state to resume from. The exported weights are the average. An export that is already
    there is replaced.

    sources: the episodes, if they are not to be read from ``config.datasets``. Raises Interrupted on Ctrl-C.
    """
    torch.set_num_threads(config.threads)
    if sources is None:
        sources = [StoredEpisodes(path, config.contract) for path in config.datasets]
    folder = RunFolder(config.out, plain(config), _MAY_DIFFER)
    caches = [frame_cache(source, config.contract, config.cache, config.progress) for source in sources]
    contract = _contract(config, caches)
    tokenizer = _tokenizer(config, caches)
    vae = AutoencoderKLWan.from_pretrained(config.tokenizer / VAE_FOLDER)
    latents = [latent_cache(cache, vae, config.progress) for cache in caches]
    rows = join_caches(contract, caches, latents, config.hand_field)
    spec = contract.model.prompt
    texts = [render_prompt(spec, text) for text in rows.instructions] + [""]
    prompts = [prompt_tokens(tokenizer, text, spec.system_prompt) for text in texts]
    canvas = contract.model.canvas
    black = black_latents(vae, canvas.height, canvas.width) if config.blind else None
    batches = BatchMaker(rows, prompts, config, contract, black)
    learner = PolicyLearner(_transformer(config, len(tokenizer)), batches, config)
    if config.start is not None and (config.start / STATE_FILE).exists():
        learner.adopt_heads(_saved_average(config.start))
    run(learner, folder, [_cycle(stage) for stage in config.stages],
        Pace(config.save_seconds, config.validate_seconds, config.validate_steps, config.progress))  # fmt: skip
    draw_curves(folder)
    return save_checkpoint(
        folder.path / EXPORT, transformer=learner.average.module["transformer"], vae=vae, tokenizer=tokenizer,
        contract=contract, overwrite=True,
    )  # fmt: skip


def _cycle(stage) -> Cycle:
    return Cycle(stage.name, Budget(stage.minutes, stage.steps), stage.lr, stage.warmup, stage.final_lr)


def _contract(config: PolicyTraining, caches: Sequence[FrameCache]) -> Contract:
    """The contract with its statistics: the run's own if it has one, else those of ``start``, else of the data."""
    if (config.out / CONTRACT_FILE).exists():
        return Contract.load(config.out)
    model = config.contract.model.model_copy(update={"sees": not config.blind})
    if config.start is not None:
        begun = Contract.load(config.start).model
        kept = {name: getattr(begun, name) for name in ("state_normalization", "action_normalization")}
        model = model.model_copy(update=kept)
    contract = fit_contract(
        Contract(robot=config.contract.robot, model=model), caches, config.normalization, config.state_scale_floor,
        config.action_scale_floor,
    )  # fmt: skip
    contract.save(config.out)
    return contract


def _tokenizer(config: PolicyTraining, caches: Sequence[FrameCache]) -> PreTrainedTokenizerBase:
    """The run's own tokenizer if it has one, else that of ``start``, else one built from every known sentence."""
    own = config.out / TEXT_TOKENIZER
    if own.is_dir():
        return AutoTokenizer.from_pretrained(own)
    if config.start is not None:
        tokenizer = AutoTokenizer.from_pretrained(config.start / TEXT_TOKENIZER)
    else:
        recorded = (text for cache in caches for text in cache.instructions)
        tokenizer = build_word_tokenizer(sorted({*config.sentences, *recorded}))
    tokenizer.save_pretrained(own)
    return tokenizer


def _transformer(config: PolicyTraining, vocabulary: int) -> Cosmos3OmniTransformer:
    transformer = tiny_transformer(vocabulary, config.seed)
    if config.start is None:
        return transformer
    if (config.start / STATE_FILE).exists():
        average = _saved_average(config.start)
        prefix = "transformer."
        transformer.load_state_dict({k.removeprefix(prefix): v for k, v in average.items() if k.startswith(prefix)})
        return transformer
    if (config.start / "transformer").is_dir():
        return Cosmos3OmniTransformer.from_pretrained(config.start / "transformer", torch_dtype=torch.float32)
    raise CheckpointError(f"{config.start} is neither a training run (no {STATE_FILE}) nor a checkpoint (no transformer/)")


def _saved_average(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)["learner"]["average"]
