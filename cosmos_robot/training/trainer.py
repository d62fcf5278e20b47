"""``train_policy``: recorded episodes and a trained autoencoder in, a checkpoint in the released layout out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, Cosmos3OmniTransformer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from cosmos_robot.backbone.cosmos3.load import load_checkpoint, save_checkpoint
from cosmos_robot.backbone.cosmos3.text import build_word_tokenizer, prompt_tokens
from cosmos_robot.backbone.cosmos3.tiny import tiny_transformer
from cosmos_robot.contract import CONTRACT_FILE, Contract
from cosmos_robot.errors import CheckpointError
from cosmos_robot.ownership import owned
from cosmos_robot.prompts import Prompts
from cosmos_robot.training.batches import BatchMaker
from cosmos_robot.training.cache import EpisodeSource, FrameCache, StoredEpisodes, frame_cache
from cosmos_robot.training.config import PolicyTraining, Stage, plain
from cosmos_robot.training.curves import draw_curves
from cosmos_robot.training.ingredients import autoencoder_fingerprint, ingredients, tensors_fingerprint
from cosmos_robot.training.latents import black_latents, latent_cache
from cosmos_robot.training.learner import PolicyLearner
from cosmos_robot.training.loop import Cycle, Pace, run
from cosmos_robot.training.rows import fit_contract, join_caches
from cosmos_robot.training.session import STATE_FILE, Budget, RunFolder
from cosmos_robot.training.tokenizer import VAE_FOLDER

EXPORT = "export"
TEXT_TOKENIZER = "text_tokenizer"
_MAY_DIFFER = (
    "progress", "save_seconds", "validate_seconds", "validate_steps", "threads", "cache", "largest_normalised",
)  # fmt: skip


def train_policy(config: PolicyTraining, sources: Sequence[EpisodeSource] | None = None) -> Path:
    """Train, or resume, and return the exported checkpoint folder ``config.out/export``.

    The run's folder holds, from its first minute on, the contract with its statistics and the text tokenizer; beside
    them the log, curves and the state to resume from. The exported weights are the average. An export that is already
    there is replaced.

    sources: the episodes, if they are not to be read from ``config.datasets``. Raises as ``model_trainer.train_model``
    does.
    """
    with owned(config.out, f"training into {config.out}"):
        return _train_policy(config, sources)


def _train_policy(config: PolicyTraining, sources: Sequence[EpisodeSource] | None) -> Path:
    torch.set_num_threads(config.threads)
    if sources is None:
        sources = [StoredEpisodes(path, config.contract) for path in config.datasets]
    vae = AutoencoderKLWan.from_pretrained(config.tokenizer / VAE_FOLDER)
    start = None if config.start is None else _load_start(config.start, config.architecture)
    folder = RunFolder(config.out, plain(config) | _ingredients(sources, vae, start), _MAY_DIFFER)
    caches = [frame_cache(source, config.contract, config.cache, config.progress) for source in sources]
    origin = _origin(config, caches, start)
    learner = PolicyLearner(origin.transformer, _batches(config, caches, origin, vae), config)
    if origin.heads is not None:
        learner.adopt_heads(origin.heads)
    run(learner, folder, [_cycle(stage) for stage in config.stages],
        Pace(config.save_seconds, config.validate_seconds, config.validate_steps, config.progress))  # fmt: skip
    exported = save_checkpoint(
        folder.path / EXPORT, transformer=learner.average.module["transformer"], vae=vae, tokenizer=origin.tokenizer,
        contract=origin.contract, overwrite=True,
    )  # fmt: skip
    draw_curves(folder)
    return exported


def _ingredients(sources: Sequence[EpisodeSource], vae: AutoencoderKLWan, start: Origin | None) -> dict:
    weights = {"autoencoder": autoencoder_fingerprint(vae)}
    if start is not None:
        begun = start.transformer.state_dict() | {f"heads.{n}": value for n, value in (start.heads or {}).items()}
        weights["start weights"] = tensors_fingerprint(begun)
    return ingredients({"datasets": [source.fingerprint for source in sources]}, weights)


def _batches(config: PolicyTraining, caches: Sequence[FrameCache], origin: Origin, vae: AutoencoderKLWan) -> BatchMaker:
    contract = origin.contract
    latents = [latent_cache(cache, vae, config.progress) for cache in caches]
    rows = join_caches(contract, caches, latents, config.hand_field, config.largest_normalised)
    spec, canvas = contract.model.prompt, contract.model.canvas
    texts = [*map(Prompts(contract).text, rows.instructions), ""]
    prompts = [prompt_tokens(origin.tokenizer, text, spec.system_prompt) for text in texts]
    black = black_latents(vae, canvas.height, canvas.width) if config.blind else None
    return BatchMaker(rows, prompts, config, contract, black)


def _cycle(stage: Stage) -> Cycle:
    return Cycle(stage.name, Budget(stage.minutes, stage.steps), stage.lr, stage.warmup, stage.final_lr)


@dataclass(frozen=True)
class Origin:
    """What a run begins with. Without weights it begins from scratch; heads only where another run left them."""

    contract: Contract
    tokenizer: PreTrainedTokenizerBase
    transformer: Cosmos3OmniTransformer
    heads: dict[str, torch.Tensor] | None


def _origin(config: PolicyTraining, caches: Sequence[FrameCache], start: Origin | None) -> Origin:
    """Contract and tokenizer are the run's own if it has been here before, else those of ``start``, else made from the
    data; the weights are those of ``start`` (a run's average, or a checkpoint's), else fresh."""
    kept = _kept(config.out)
    if kept is None:
        contract = _new_contract(config, caches, None if start is None else start.contract)
        recorded = {text for cache in caches for text in cache.instructions}
        tokenizer = start.tokenizer if start else build_word_tokenizer(sorted({*config.sentences, *recorded}))
        tokenizer.save_pretrained(config.out / TEXT_TOKENIZER)
        contract.save(config.out)
        kept = contract, tokenizer
    if start is not None:
        return Origin(*kept, start.transformer, start.heads)
    return Origin(*kept, tiny_transformer(len(kept[1]), config.seed, **config.architecture), None)


def _kept(folder: Path) -> tuple[Contract, PreTrainedTokenizerBase] | None:
    """Contract and tokenizer that a run keeps in its folder from its first minute on; the contract is written last."""
    if not (folder / CONTRACT_FILE).exists():
        return None
    tokenizer = AutoTokenizer.from_pretrained(folder / TEXT_TOKENIZER, local_files_only=True)
    return Contract.load(folder), tokenizer


def _load_start(folder: Path, architecture: Mapping[str, object]) -> Origin:
    if not (folder / STATE_FILE).exists():
        checkpoint = load_checkpoint(folder, dtype=torch.float32)
        return Origin(checkpoint.contract, checkpoint.tokenizer, checkpoint.transformer, None)
    kept = _kept(folder)
    if kept is None:
        raise CheckpointError(f"{folder} holds a {STATE_FILE} but no {CONTRACT_FILE}; it is not a policy training run")
    average = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)["learner"]["average"]
    parts = {
        part: {k.removeprefix(f"{part}."): v for k, v in average.items() if k.startswith(f"{part}.")}
        for part in ("transformer", "heads")
    }
    transformer = tiny_transformer(len(kept[1]), 0, **architecture)
    transformer.load_state_dict(parts["transformer"])
    return Origin(*kept, transformer, parts["heads"])


def _new_contract(config: PolicyTraining, caches: Sequence[FrameCache], begun: Contract | None) -> Contract:
    changes: dict[str, object] = {"sees": not config.blind}
    if begun is not None:
        changes |= {name: getattr(begun.model, name) for name in ("state_normalization", "action_normalization")}
    model = config.contract.model.model_copy(update=changes)
    return fit_contract(
        Contract(robot=config.contract.robot, model=model), caches, config.normalization, config.state_scale_floor,
        config.action_scale_floor,
    )  # fmt: skip
