"""``train_frames``: demonstrations, rollouts and a checkpoint in, a policy that is world model and value too out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from cosmos_robot.backbone.cosmos3.load import Checkpoint, load_checkpoint, save_checkpoint
from cosmos_robot.backbone.cosmos3.patches import with_patch
from cosmos_robot.backbone.cosmos3.text import prompt_tokens
from cosmos_robot.contract import CanvasSpec, Contract
from cosmos_robot.data.rollouts import RolloutStore
from cosmos_robot.data.store import EpisodeStore
from cosmos_robot.ownership import owned
from cosmos_robot.prompts import Prompts
from cosmos_robot.training.cache import FrameCache, StoredEpisodes, frame_cache
from cosmos_robot.training.config import plain
from cosmos_robot.training.curves import draw_curves
from cosmos_robot.training.frame_augment import changed_canvases, draw_change
from cosmos_robot.training.frame_batches import FrameBatches
from cosmos_robot.training.frame_config import FrameTraining
from cosmos_robot.training.frame_learner import FrameLearner
from cosmos_robot.training.frame_rows import FrameSource, join_frames
from cosmos_robot.training.ingredients import ingredients, start_weights
from cosmos_robot.training.latents import Alter, latent_cache
from cosmos_robot.training.loop import Cycle, Pace, run
from cosmos_robot.training.session import Budget, RunFolder

EXPORT = "export"
_MAY_DIFFER = ("progress", "save_seconds", "validate_steps", "threads", "cache")


def train_frames(
    config: FrameTraining, share_with: str | None = None, sources: Sequence[FrameSource] | None = None
) -> Path:
    """Train, or resume, and return the exported checkpoint folder ``config.out/export``.

    sources: the data, if they are not to be read from ``config.demos`` and ``config.rollouts``. share_with: name of the
    folder that will lie beside the export and holds its autoencoder and tokenizer, see ``save_checkpoint``. Raises as
    ``model_trainer.train_model`` does.
    """
    with owned(config.out, f"training into {config.out}"):
        torch.set_num_threads(config.threads)
        start = load_checkpoint(config.start, dtype=torch.float32)
        contract = begun_contract(config, start)
        if sources is None:
            sources = stored_sources(config, start, contract)
        weights = start_weights(start.transformer, start.vae)
        made_from = ingredients({"demos and rollouts": map(_fingerprint, sources)}, weights)
        folder = RunFolder(config.out, plain(config) | made_from, _MAY_DIFFER)
        batches = frame_batches(config, start, contract, sources)
        learner = FrameLearner(with_patch(start.transformer, config.patch, config.seed), batches, config)
        cycle = Cycle("joint", Budget(None, config.steps), config.lr, config.warmup, config.final_lr)
        run(learner, folder, [cycle], Pace(config.save_seconds, 1e9, config.validate_steps, config.progress))
        parts = {"share_with": share_with} if share_with else {"vae": start.vae, "tokenizer": start.tokenizer}
        exported = save_checkpoint(
            folder.path / EXPORT, transformer=learner.average.module["transformer"], contract=contract, overwrite=True,
            **parts,
        )  # fmt: skip
        draw_curves(folder)
        return exported


def frame_batches(
    config: FrameTraining, start: Checkpoint, contract: Contract, sources: Sequence[FrameSource] | None = None
) -> FrameBatches:
    """The training rows of a run, encoded by the autoencoder of ``start``."""
    if sources is None:
        sources = stored_sources(config, start, contract)
    rows = join_frames(contract, sources, config.gamma, config.hand_field)
    spec = contract.model.prompt
    texts = map(Prompts(contract).text, rows.instructions)
    prompts = [prompt_tokens(start.tokenizer, text, spec.system_prompt) for text in texts]
    factors = {"future": config.future_weight, "value": config.value_weight}
    return FrameBatches(rows, prompts, contract, config.targets, factors)


def stored_sources(config: FrameTraining, start: Checkpoint, contract: Contract) -> list[FrameSource]:
    """The data of ``config.demos`` and ``config.rollouts``, encoded by the autoencoder of ``start``."""
    folders = [(path, False) for path in config.demos] + [(path, True) for path in config.rollouts]
    return [s for folder, rollouts in folders for s in _sources(config, contract, start, folder, rollouts)]


def _fingerprint(source: FrameSource) -> str:
    return f"{source.cache.key} {source.stride} {source.outcomes} {source.variant}"


def _sources(
    config: FrameTraining, contract: Contract, start: Checkpoint, folder: Path, rollouts: bool
) -> list[FrameSource]:
    """A dataset as it is, and its variants."""
    cache = frame_cache(StoredEpisodes(folder, contract), contract, config.cache, config.progress, ends=rollouts)
    outcomes: tuple[float, ...] | None = None
    if rollouts:
        store = RolloutStore(folder)
        stride, outcomes = store.execute, tuple(info.done for info in store.infos)
    else:
        stride = EpisodeStore(folder).stride
    found = [FrameSource(cache, latent_cache(cache, start.vae, config.progress), stride, outcomes)]
    for variant in range(config.augmentation.variants):
        name = f"-variant{config.seed}.{variant}"
        alter = _variant(cache, contract.model.canvas, (config.seed, variant))
        latents = latent_cache(cache, start.vae, config.progress, name=name, alter=alter)
        found.append(FrameSource(cache, latents, stride, outcomes, variant=True))
    return found


def _variant(cache: FrameCache, canvas: CanvasSpec, seed: tuple[int, int]) -> Alter:
    """Every episode changed by a draw of its own."""

    def alter(canvases: NDArray[np.uint8], rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        out = np.empty_like(canvases)
        for episode in np.unique(cache.episode[rows]):
            mine = cache.episode[rows] == episode
            change = draw_change(np.random.default_rng([*seed, int(episode)]))
            out[mine] = changed_canvases(canvas, canvases[mine], change)
        return out

    return alter


def begun_contract(config: FrameTraining, start: Checkpoint) -> Contract:
    """The contract with the statistics of ``start``, whose weights were trained on them, clamped where it says so."""
    model, kept = config.contract.model, {}
    for name in ("state_normalization", "action_normalization"):
        clamps = getattr(model, name).model_dump(include={"clamp", "clamp_mask"}, exclude_none=True)
        kept[name] = getattr(start.contract.model, name).model_copy(update=clamps)
    return Contract(robot=config.contract.robot, model=model.model_copy(update=kept))
