"""The recipe of ``tiny-world-model``: where commands lead in LIBERO, in one latent frame, and nothing else.

Latent frames without a value, on a small canvas, learnt from a demonstrator that is led astray. docs/world-models.md
tells what came of it, and in what the shipped weights' own history differs.
"""

from __future__ import annotations

from pathlib import Path

from cosmos_robot.actions.statistics import Statistics, statistics_of
from cosmos_robot.contract import Box, CanvasSpec, Contract, ModelSpec, SamplerSpec
from cosmos_robot.errors import InputError
from cosmos_robot.latent_frames.layout import VALUE
from cosmos_robot.recipes import check_run, tiny_cosmos_policy, tiny_libero
from cosmos_robot.training.config import TokenizerTraining
from cosmos_robot.training.frame_config import FrameAugmentation, FrameTraining

NAME = "tiny-world-model"
PARTS = ("demos", "tokenizer", "model")
DEMOS = dict.fromkeys(tiny_libero.OBJECT_TASKS, 26) | dict.fromkeys(tiny_libero.SPATIAL_TASKS, 4)
"""Episodes by task. They last at most 180 control steps, however they end."""
FIRST_SEED = 60_000
TOKENIZER_STEPS = 2200
STEPS = 4400
AUGMENTATION = FrameAugmentation(latent_noise=0.03, state_noise=0.01)
"""Less than a policy's: what is to come differs from what is by little more."""
SAMPLER = SamplerSpec(solver="euler", steps=1, shift=50.0)
"""One step from pure noise: the expected future. A simulator's future is nearly certain, and a network this small has
little to spare for denoising, so training is at noise levels near the one that is used."""

_HEIGHT, _WIDTH = 80, 112
"""Latent frames of 5 x 7 cells. A chunk is laid out row by row over and over, seven numbers to a command, so that with
seven cells to a row each column holds one number of the commands, and each token two of its moments. On another width
every token holds a mixture of all seven, another one at each place."""
_PLACES = ((0, 0, 80, 80), (0, 80, 32, 32), (32, 80, 48, 32))


def reproduce(
    out: Path, *, until: str | None = None, workers: int = 2, scale: float = 1.0, corrections: bool = False
) -> None:
    """Run the recipe into ``out``; parts that are done are skipped, one that was stopped goes on.

    demos: an expert that is led astray now and then. tokenizer: an autoencoder for the small canvas, on that of
    tiny-libero. model: forward dynamics, on the weights of tiny-libero.
    """
    check_run(PARTS, until, scale)
    if corrections:
        raise InputError(f"{NAME} knows no corrections; leave them out")
    demos = out / "demos"
    parts = {
        "demos": lambda: tiny_libero.record_demos(
            demos, tiny_libero.scaled(DEMOS, scale), FIRST_SEED, workers, detours=True
        ),
        "tokenizer": lambda: _tokenizer(out, demos, scale),
        "model": lambda: _model(out, demos, scale),
    }
    for part in PARTS:
        parts[part]()
        if part == until:
            return
    tiny_cosmos_policy.export(out / "model" / "export", out, name=NAME)


def contract() -> Contract:
    """That of tiny-cosmos-policy without the value, on a canvas of a third its size."""
    base = tiny_cosmos_policy.contract()
    canvas = base.model.canvas.model_dump()
    for placement, to in zip(canvas["placements"], _PLACES, strict=True):
        placement["to"] = Box(**dict(zip(("top", "left", "height", "width"), to, strict=True)))
    changes = {
        "name": NAME,
        "modes": ("world_model",),
        "sampler": SAMPLER,
        "frames": tuple(slot for slot in base.model.frames if slot != VALUE),
        "canvas": CanvasSpec.model_validate(canvas | {"height": _HEIGHT, "width": _WIDTH}),
    }
    return Contract(robot=base.robot, model=ModelSpec.model_validate(base.model.model_dump() | changes))


def training(out: Path, demos: Path, start: Path, scale: float = 1.0, **changes) -> FrameTraining:
    """Forward dynamics alone: every row is a sample of the world model, and nothing is asked about objects."""
    settings = {
        "steps": max(2, round(STEPS * scale)),
        "patch": 1,
        "contract": contract(),
        "demo_share": 0.0,
        "world_share": 1.0,
        "pointing_weight": 0.0,
        "offset_weight": 0.0,
        "augmentation": AUGMENTATION,
    }
    return tiny_cosmos_policy.joint_training(out, demos, start, name="model", **(settings | changes))


def _tokenizer(out: Path, demos: Path, scale: float) -> None:
    """Pictures count more here than for a policy: the decoder learns on every step."""
    from cosmos_robot.backbone.cosmos3.folder import find_checkpoint
    from cosmos_robot.training.tokenizer import train_tokenizer

    train_tokenizer(
        TokenizerTraining(
            out=out / "tokenizer", datasets=(demos,), cache=out / "cache", contract=contract(),
            start=find_checkpoint(tiny_libero.NAME).folder, steps=max(2, round(TOKENIZER_STEPS * scale)), shift=2,
            decode_every=1, reconstruction_weight=3.0, object_weight=0.5, offset_weight=0.25, noise=0.05, jitter=0.1,
        )
    )  # fmt: skip


def _model(out: Path, demos: Path, scale: float) -> None:
    from cosmos_robot.training.frame_trainer import train_frames

    train_frames(training(out, demos, _start(out, demos), scale))


def _start(out: Path, demos: Path) -> Path:
    """tiny-libero with the new autoencoder, the statistics of ``demos``, and places fine enough to copy a picture by.

    An expert hardly turns the hand; in tiny-libero's ranges, a hand led astray is mostly turned.
    """
    import torch
    from diffusers import AutoencoderKLWan

    from cosmos_robot.backbone.cosmos3.load import load_checkpoint, save_checkpoint
    from cosmos_robot.backbone.cosmos3.sharpness import with_finer_places

    shipped = load_checkpoint(tiny_libero.NAME, dtype=torch.float32)
    vae = AutoencoderKLWan.from_pretrained(out / "tokenizer" / "vae")
    action, state = _statistics(demos)
    return save_checkpoint(
        out / "start", transformer=with_finer_places(shipped.transformer), vae=vae, tokenizer=shipped.tokenizer,
        contract=shipped.contract.with_statistics(action=action, state=state), overwrite=True,
    )  # fmt: skip


def _statistics(demos: Path) -> tuple[Statistics, Statistics]:
    """Of the commands that were sent, each once, and of the states."""
    import numpy as np

    from cosmos_robot.data.episodes import executed_commands
    from cosmos_robot.data.store import EpisodeStore

    store = EpisodeStore(demos)
    commands, states = [], []
    for index in range(len(store)):
        episode = store.episode(index, cameras=())
        sent = executed_commands(episode, store.stride)[:, : store.stride]
        commands.append(sent[episode.valid[:, : store.stride]])
        states.append(episode.state)
    return statistics_of(np.concatenate(commands)), statistics_of(np.concatenate(states))
