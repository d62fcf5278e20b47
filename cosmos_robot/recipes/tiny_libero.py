"""The recipe of the shipped ``tiny-libero`` checkpoint: contract, demonstrations, stages.

The numbers are those that made the checkpoint; docs/tiny-libero.md tells what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from diffusers import Cosmos3OmniTransformer

from cosmos_robot.backbone.cosmos3.load import save_checkpoint
from cosmos_robot.contract import (
    Box,
    CanvasSpec,
    Contract,
    ModelSpec,
    Normalization,
    Placement,
    PromptSpec,
    SamplerSpec,
)
from cosmos_robot.data.collect import DemonstratorSpec, collect
from cosmos_robot.envs.libero import LIBERO_PANDA
from cosmos_robot.envs.libero_demos import CHUNK, STRIDE, DemoJob
from cosmos_robot.errors import InputError
from cosmos_robot.policies import blind_control
from cosmos_robot.training.config import PolicyTraining, Stage, TokenizerTraining
from cosmos_robot.training.tokenizer import train_tokenizer
from cosmos_robot.training.trainer import train_policy

NAME = "tiny-libero"
PARTS = ("demos", "tokenizer", "first", "corrections", "second", "blind")

OBJECT_TASKS = tuple(f"libero_object/{i}" for i in range(10))
SPATIAL_TASKS = tuple(f"libero_spatial/{i}" for i in range(10) if i != 4)
"""Task 4 (bowl in the drawer) has no demonstrator: the hand does not fit between drawer front and cabinet."""

DEMOS = dict.fromkeys(OBJECT_TASKS, 20) | dict.fromkeys(SPATIAL_TASKS, 12)
CORRECTIONS = dict.fromkeys(OBJECT_TASKS, 7) | dict.fromkeys(SPATIAL_TASKS, 4)

TOKENIZER_STEPS = 1000
FIRST = (
    Stage(name="look", steps=300, action_weight=0.1, pointing_weight=1.0, offset_weight=0.5, warmup=50, final_lr=0.5),
    Stage(name="act", steps=1500),
)
SECOND = (Stage(name="corrected", steps=700, lr=4e-4),)
BLIND = (Stage(name="blind", steps=500, lr=4e-4),)


def reproduce(out: Path, *, until: str | None = None, workers: int = 2, scale: float = 1.0) -> None:
    """Run the recipe into ``out``; parts that are done are skipped, one that was stopped goes on."""
    if until is not None and until not in PARTS:
        raise InputError(f"until: expected one of {', '.join(PARTS)}, got {until!r}")
    wanted = PARTS if until is None else PARTS[: PARTS.index(until) + 1]
    demos, corrections = out / "demos", out / "corrections"
    both = (demos, corrections)
    steps = {
        "demos": lambda: record_demos(demos, _scaled(DEMOS, scale), 1000, workers),
        "tokenizer": lambda: train_tokenizer(tokenizer_training(out, (demos,), round(TOKENIZER_STEPS * scale))),
        "first": lambda: _train(out, "first", (demos,), FIRST, scale),
        "corrections": lambda: record_demos(
            corrections, _scaled(CORRECTIONS, scale), 5000, workers, out / "first" / "export"
        ),
        "second": lambda: _train(out, "second", both, SECOND, scale, start=out / "first"),
        "blind": lambda: _train(out, "blind", both, BLIND, scale, start=out / "second", blind=True),
    }
    for part in wanted:
        steps[part]()
    if until is None:
        export(out)


def record_demos(
    out: Path, episodes: Mapping[str, int], first_seed: int, workers: int, checkpoint: Path | None = None
) -> None:
    """Demonstrations (with ``checkpoint``, corrections of that policy) as the dataset ``out``; done if it exists."""
    if out.exists():
        return
    jobs = [
        DemoJob(id=f"{name.replace('/', '-')}-{seed}", group=name, seed=seed)
        for name, count in episodes.items()
        for seed in range(first_seed, first_seed + count)
    ]
    if checkpoint is None:
        demonstrator = DemonstratorSpec("cosmos_robot.envs.libero_demos:LiberoDemonstrator")
    else:
        demonstrator = DemonstratorSpec(
            "cosmos_robot.recipes.corrections:LiberoCorrector", {"checkpoint": str(checkpoint.resolve())}
        )
    collect(jobs, demonstrator, LIBERO_PANDA, out, stride=STRIDE, workers=workers)


def export(out: Path) -> None:
    """Put the last sighted run and its blind control side by side as checkpoints ``out/tiny-libero[-blind]``."""
    from cosmos_robot.backbone.cosmos3.load import load_checkpoint

    sighted = load_checkpoint(out / "second" / "export", dtype=torch.float32)
    save_checkpoint(
        out / NAME, transformer=sighted.transformer, vae=sighted.vae, tokenizer=sighted.tokenizer,
        contract=sighted.contract, overwrite=True,
    )  # fmt: skip
    blind = Contract.load(out / "blind" / "export")
    transformer = Cosmos3OmniTransformer.from_pretrained(out / "blind" / "export" / "transformer")
    save_checkpoint(out / blind_control(NAME), transformer=transformer, contract=blind, share_with=NAME, overwrite=True)


def contract() -> Contract:
    """Workspace crop of agentview at full detail; the wrist whole, and its lower middle (below the fingers) larger.

    Normalisers are placeholders until training has its statistics.
    """
    identity = Normalization(method="identity", scale_floor=1.0)
    placements = (
        _place("agentview", (72, 36, 128, 192), (0, 0, 128, 192)),
        _place("wrist", (0, 0, 256, 256), (0, 192, 64, 64)),
        _place("wrist", (112, 64, 128, 128), (64, 192, 64, 64)),
    )
    model = ModelSpec(
        name=NAME,
        backbone="cosmos3",
        domain_id=5,
        chunk=CHUNK,
        execute=8,
        state_row=True,
        canvas=CanvasSpec(height=128, width=256, placements=placements),
        state_normalization=identity,
        action_normalization=identity,
        prompt=PromptSpec(template="caption"),
        sampler=SamplerSpec(solver="euler", steps=5, shift=5.0),
    )
    return Contract(robot=LIBERO_PANDA, model=model)


def tokenizer_training(out: Path, datasets: tuple[Path, ...], steps: int) -> TokenizerTraining:
    """The autoencoder: what is where must be readable from its latents."""
    return TokenizerTraining(
        out=out / "tokenizer", datasets=datasets, cache=out / "cache", contract=contract(), steps=steps
    )


def policy_training(
    out: Path,
    name: str,
    datasets: tuple[Path, ...],
    stages: tuple[Stage, ...],
    start: Path | None = None,
    blind: bool = False,
) -> PolicyTraining:
    """One run of the policy, on top of ``start``."""
    return PolicyTraining(
        out=out / name, datasets=datasets, cache=out / "cache", tokenizer=out / "tokenizer", contract=contract(),
        stages=stages, start=start, blind=blind, hidden_at=3,
    )  # fmt: skip


def _train(out: Path, name: str, datasets, stages: tuple[Stage, ...], scale: float, **options) -> None:
    shortened = tuple(replace(stage, steps=max(2, round(stage.steps * scale))) for stage in stages)
    train_policy(policy_training(out, name, datasets, shortened, **options))


def _scaled(episodes: Mapping[str, int], scale: float) -> dict[str, int]:
    return {name: max(1, round(count * scale)) for name, count in episodes.items()}


def _place(camera: str, crop: tuple[int, int, int, int], to: tuple[int, int, int, int]) -> Placement:
    def box(b: tuple[int, int, int, int]) -> Box:
        return Box(top=b[0], left=b[1], height=b[2], width=b[3])

    return Placement(camera=camera, crop=box(crop), to=box(to))
