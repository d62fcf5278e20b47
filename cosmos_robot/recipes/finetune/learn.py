"""The stages that train: the autoencoder where asked for, one episode to see that everything fits, then all of them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cosmos_robot.contract import Contract
from cosmos_robot.data.bridge import RecordedEpisodes
from cosmos_robot.errors import InputError
from cosmos_robot.policies import load_policy
from cosmos_robot.policies.base import Policy
from cosmos_robot.recipes.adapted import adapt_tokenizer
from cosmos_robot.recipes.finetune.description import Description
from cosmos_robot.recipes.finetune.measures import (
    Ratio,
    column_errors,
    column_ratios,
    mean_command,
    predicted,
    worst_of,
)
from cosmos_robot.recipes.finetune.plan import recipe_of, stream_of
from cosmos_robot.recipes.finetune.prepare import training_commands
from cosmos_robot.recipes.finetune.recordings import labelled_episodes, open_episodes
from cosmos_robot.recipes.finetune.replay import replay_lines
from cosmos_robot.recipes.finetune.stages import Run, Say
from cosmos_robot.recipes.finetune.start import weights_digest
from cosmos_robot.training.cache import VALIDATION_EVERY, EpisodeList, EpisodeSource
from cosmos_robot.training.model_config import ModelTraining
from cosmos_robot.training.model_trainer import train_model

FITS = 0.5
"""An overfit policy's error must be below this share of the mean command's, in every column that moves."""


def tokenizer(run: Run, say: Say) -> dict[str, Any]:
    """Fine-tune the start's autoencoder on the new pictures, and put it into a copy of the start to train from."""

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        description, contract = run.description(), run.contract()
        settings = description.tokenizer
        if settings is None:
            raise InputError("tokenizer: the description has no [tokenizer]; its start's autoencoder stays as it is")
        start = adapt_tokenizer(
            folder, description.start, contract, description.data.path, [labelled_episodes(run)],
            run.out / "cache", steps=settings.steps, warmup=min(50, settings.steps // 10), lr=settings.lr,
            batch=settings.batch, threads=description.training.threads,
        )  # fmt: skip
        tell(f"{settings.steps} steps; the start with the new autoencoder: {start}")
        return {"start": run.inside(start), "weights": weights_digest(start / "vae")}

    return run.perform("tokenizer", work, say)


def overfit(run: Run, say: Say) -> dict[str, Any]:
    """Train on one episode until its commands come out; replay them in simulation, and the recorded ones beside."""

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        description, contract, episodes = run.description(), run.contract(), open_episodes(run)
        index, steps = description.overfit.episode, description.overfit.steps
        if index >= len(episodes):
            raise InputError(f"overfit.episode: got {index}, expected one of the {len(episodes)} that are kept, from 0")
        exported = train_on(run, description, contract, folder / "training", steps=steps, only=index)
        tell(f"{steps} steps on episode {index}; log and curves in {folder / 'training'}")
        if not description.training.acts:
            tell(f"whether it was learnt cannot be checked: {no_policy(contract)}; look at the losses")
            return {"columns": None}
        policy = load_policy(exported)
        ratios = _by_heart(policy, episodes, index)
        for ratio in ratios:
            tell(f"commands, robot units, {ratio.told}")
        _require_fit(ratios, steps)
        for line in replay_lines(description, episodes.places[index], policy):
            tell(line)
        return {"columns": [asdict(ratio) for ratio in ratios]}

    return run.perform("overfit", work, say)


def _by_heart(policy: Policy, episodes: RecordedEpisodes, index: int) -> tuple[Ratio, ...]:
    """How far the policy is from an episode's own commands, against their mean."""
    episode = episodes[index]
    mine = column_errors(predicted(policy, episode, seed=0), episode)
    _, usual = mean_command(training_commands(episodes))
    _, constant = mean_command(episode.actions[episode.valid])
    return column_ratios(episodes.contract.robot, mine, {"mean": constant}, constant, usual)


def _require_fit(ratios: tuple[Ratio, ...], steps: int) -> None:
    wrong = [ratio for ratio in ratios if ratio.share is not None and not ratio.share < FITS]
    if wrong:
        raise InputError(
            f"overfit: after {steps} steps {len(wrong)} of {len(ratios)} columns are not below {FITS:g} of the mean "
            "command's error; look for a wrong camera or field, or raise overfit.steps or training.recipe.lr, and run "
            "the stages from describe on again:" + "".join(f"\n  - {ratio.told}" for ratio in wrong)
        )
    if worst_of(ratios) is None:
        raise InputError("overfit: no column of this episode's commands moves; choose another overfit.episode")


def no_policy(contract: Contract) -> str:
    """Why a checkpoint's commands cannot be looked at, in words."""
    return f"trained as {', '.join(contract.model.modes)}, it gives no commands (policy and wam do)"


def train(run: Run, say: Say) -> dict[str, Any]:
    """Train on all episodes but the held-out ones; a run that was stopped goes on."""

    def work(folder: Path, tell: Say) -> dict[str, Any]:
        description, contract = run.description(), run.contract()
        exported = train_on(run, description, contract, folder / "training", steps=description.training.steps)
        tell(f"{description.training.steps} steps; log and curves in {folder / 'training'}")
        return {"checkpoint": run.inside(exported), "weights": weights_digest(exported)}

    return run.perform("train", work, say)


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
    training, episodes = description.training, open_episodes(run)
    source: EpisodeSource = episodes if only is None else EpisodeList([episodes[only]] * 2)
    recipe = recipe_of(training)
    if only is not None:  # it shall be learnt by heart, not be generalised from
        plain = {"ema_rate": None, "latent_noise": 0.0, "state_noise": 0.0, "caption_dropout": 0.0}
        recipe = replace(recipe, warmup=min(recipe.warmup, steps // 10), **plain)
    lora = None
    if training.lora:
        from cosmos_robot.backbone.cosmos3.lora import LoraSpec

        lora = LoraSpec(rank=training.lora)
    stream = stream_of(description, contract)
    config = ModelTraining(
        out=out, streams=(stream,), start=start_of(run, description), cache=run.out / "cache", steps=steps,
        recipe=recipe, lora=lora, batch=training.batch, seed=training.seed,
        checkpoint_layers=training.checkpoint_layers, compute=training.compute, device=training.device,
        threads=training.threads, normalization=None,
        validation_every=2 if only is not None else VALIDATION_EVERY, validation_samples=64 if validate else 1,
        validate_seconds=120.0,
    )  # fmt: skip
    return train_model(config, {stream.name: [source]})


def start_of(run: Run, description: Description) -> str:
    """What training begins with: the start, with the fine-tuned autoencoder if there is one."""
    if description.tokenizer is None or not run.is_done("tokenizer"):
        return description.start
    return str(run.found("tokenizer", "start"))
