"""The stages that train: the autoencoder where asked for, one episode to see that everything fits, then all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cosmos_robot.contract import Contract
from cosmos_robot.data.bridge import RecordedEpisodes
from cosmos_robot.data.episodes import Episode
from cosmos_robot.errors import InputError
from cosmos_robot.policies import load_policy
from cosmos_robot.recipes.adapted import adapt_tokenizer
from cosmos_robot.recipes.finetune.description import Description
from cosmos_robot.recipes.finetune.measures import action_error, predicted
from cosmos_robot.recipes.finetune.plan import recipe_of
from cosmos_robot.recipes.finetune.prepare import open_episodes
from cosmos_robot.recipes.finetune.replay import replay_lines
from cosmos_robot.recipes.finetune.stages import Run, Say
from cosmos_robot.training.cache import EpisodeList, EpisodeSource
from cosmos_robot.training.model_config import ModelTraining, Stream
from cosmos_robot.training.model_trainer import train_model

if TYPE_CHECKING:
    from cosmos_robot.data.store import EpisodeStore

FITS = 0.5
"""An overfit policy's error must be below this share of that of the best constant command."""


def tokenizer(run: Run, say: Say) -> dict[str, Any]:
    """Fine-tune the start's autoencoder on the new pictures, and put it into a copy of the start to train from."""

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        description, contract = run.description(), run.contract()
        settings = description.tokenizer
        if settings is None:
            raise InputError("tokenizer: the description has no [tokenizer]; its start's autoencoder stays as it is")
        start = adapt_tokenizer(
            folder, description.start, contract, description.data.path, [labelled_episodes(description)],
            run.out / "cache", steps=settings.steps, lr=settings.lr, batch=settings.batch,
            threads=description.training.threads,
        )  # fmt: skip
        tell(f"{settings.steps} steps; the start with the new autoencoder: {start}")
        return {"start": str(start)}

    return run.perform("tokenizer", work, None, say)


def overfit(run: Run, say: Say) -> dict[str, Any]:
    """Train on one episode until its commands come out; replay them in simulation, and the recorded ones beside."""

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        description, contract = run.description(), run.contract()
        index, steps = description.overfit.episode, description.overfit.steps
        exported = train_on(run, description, contract, folder / "training", steps=steps, only=index)
        policy = load_policy(exported)
        episode = open_episodes(description)[index]
        mine = action_error(predicted(policy, episode, seed=0), episode)
        constant = action_error(np.broadcast_to(_mean(episode), episode.actions.shape), episode)
        tell(f"{steps} steps on episode {index}: its commands are missed by {mine:.4g}, a constant misses by "
             f"{constant:.4g} (mean over columns, robot units)")  # fmt: skip
        if not mine < FITS * constant:
            raise InputError(
                f"overfit: after {steps} steps the error is {mine:.4g}, not below {FITS:g} of a constant's "
                f"{constant:.4g}; look for a wrong camera or field, raise overfit.steps or training.recipe.lr"
            )
        for line in replay_lines(description, index, policy):
            tell(line)
        return {"error": mine, "constant": constant}

    return run.perform("overfit", work, None, say)


def train(run: Run, say: Say) -> dict[str, Any]:
    """Train on all episodes but the held-out ones; a run that was stopped goes on."""

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        description, contract = run.description(), run.contract()
        exported = train_on(run, description, contract, folder / "training", steps=description.training.steps)
        tell(f"{description.training.steps} steps; log and curves in {folder / 'training'}")
        return {"checkpoint": str(exported)}

    return run.perform("train", work, None, say)


def train_on(
    run: Run,
    description: Description,
    contract: Contract,
    out: Path,
    *,
    steps: int,
    only: int | None = None,
    validate: bool = True,
) -> Path:
    """The trainer, on all recordings or one episode alone (then also measured on it); the exported checkpoint."""
    training, episodes = description.training, open_episodes(description)
    source: EpisodeSource = episodes if only is None else EpisodeList([episodes[only]] * 2)
    recipe = recipe_of(training)
    if only is not None:  # it shall be learnt by heart, not be generalised from
        recipe = replace(recipe, warmup=min(recipe.warmup, steps // 10), ema_rate=None, latent_noise=0.0)
    lora = None
    if training.lora:
        from cosmos_robot.backbone.cosmos3.lora import LoraSpec

        lora = LoraSpec(rank=training.lora)
    stream = Stream(name=contract.model.name, contract=contract, stride=description.data.stride)
    config = ModelTraining(
        out=out, streams=(stream,), start=start_of(run, description), cache=run.out / "cache", steps=steps,
        recipe=recipe, lora=lora, batch=training.batch, seed=training.seed,
        checkpoint_layers=training.checkpoint_layers, compute=training.compute, device=training.device,
        threads=training.threads, normalization=None,
        validation_every=2 if only is not None else 20, validation_samples=64 if validate else 1,
        validate_seconds=120.0,
    )  # fmt: skip
    return train_model(config, {stream.name: [source]})


def start_of(run: Run, description: Description) -> str:
    """What training begins with: the start, with the fine-tuned autoencoder if there is one."""
    if description.tokenizer is None or not run.is_done("tokenizer"):
        return description.start
    return run.facts("tokenizer")["start"]


def labelled_episodes(description: Description) -> EpisodeSource:
    """The recordings; with the columns that only training may read, where our own collector wrote such."""
    from cosmos_robot.data.store import SIDECAR, EpisodeStore

    episodes, path = open_episodes(description), description.data.path
    if not (path / SIDECAR).is_file() or any(a != b for a, b in episodes.cameras.items()):
        return episodes
    return _Labelled(episodes, EpisodeStore(path))


class _Labelled:
    """Recordings with the extras that lie beside them, row for row."""

    def __init__(self, episodes: RecordedEpisodes, store: EpisodeStore):
        self._episodes, self._store = episodes, store
        self.fingerprint = f"{episodes.fingerprint} {store.fingerprint}"

    def __len__(self) -> int:
        return len(self._episodes)

    def __getitem__(self, index: int) -> Episode:
        extras = self._store.episode(index, cameras=[]).extras
        stride = self._episodes.data.stride
        return replace(self._episodes[index], extras={name: value[::stride] for name, value in extras.items()})


def _mean(episode: Episode) -> Sequence[float]:
    return episode.actions[episode.valid].mean(axis=0)
