"""The recipe of the shipped ``tiny-libero`` checkpoint: contract, demonstrations, stages.

docs/tiny-libero.md tells what came of it, and in what the shipped weights' own history differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from cosmos_robot.backbone.cosmos3.load import load_checkpoint, save_checkpoint
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
from cosmos_robot.policies import blind_control
from cosmos_robot.recipes import check_run
from cosmos_robot.training.config import PolicyTraining, Stage, TokenizerTraining
from cosmos_robot.training.tokenizer import train_tokenizer
from cosmos_robot.training.trainer import train_policy

NAME = "tiny-libero"
PARTS = ("demos", "tokenizer", "policy", "corrections", "corrected", "blind")
OPTIONAL = ("corrections", "corrected")

OBJECT_TASKS = tuple(f"libero_object/{i}" for i in range(10))
SPATIAL_TASKS = tuple(f"libero_spatial/{i}" for i in range(10) if i != 4)
"""Task 4 (bowl in the drawer) has no demonstrator: the hand does not fit between drawer front and cabinet."""

DEMOS = dict.fromkeys(OBJECT_TASKS, 22) | dict.fromkeys(SPATIAL_TASKS, 9)
CORRECTIONS = dict.fromkeys(OBJECT_TASKS, 6) | dict.fromkeys(SPATIAL_TASKS, 3)

TOKENIZER_STEPS = 1440
POLICY = (
    Stage(
        name="look",
        steps=300,
        lr=7e-4,
        action_weight=0.3,
        pointing_weight=1.0,
        offset_weight=1.0,
        warmup=50,
        final_lr=0.7,
    ),
    Stage(name="act", steps=1850, lr=7e-4, warmup=1, offset_weight=0.3),
)
CORRECTED = (Stage(name="corrected", steps=900, lr=5e-4),)
BLIND = (Stage(name="blind", steps=450, lr=5e-4),)


def reproduce(
    out: Path, *, until: str | None = None, workers: int = 2, scale: float = 1.0, corrections: bool = False
) -> None:
    """Run the recipe into ``out``; parts that are done are skipped, one that was stopped goes on.

    corrections: a further round of training on the policy's own states, labelled by the expert (DAgger); the shipped
    checkpoint did without.
    """
    check_run(PARTS, until, scale)
    demos, corrected = out / "demos", out / "corrections"
    datasets = (demos, corrected) if corrections else (demos,)
    last = out / ("corrected" if corrections else "policy")
    steps = {
        "demos": lambda: record_demos(demos, scaled(DEMOS, scale), 1000, workers),
        "tokenizer": lambda: train_tokenizer(tokenizer_training(out, (demos,), max(2, round(TOKENIZER_STEPS * scale)))),
        "policy": lambda: _train(out, "policy", (demos,), POLICY, scale),
        "corrections": lambda: record_demos(
            corrected, scaled(CORRECTIONS, scale), 5000, workers, out / "policy" / "export"
        ),
        "corrected": lambda: _train(out, "corrected", datasets, CORRECTED, scale, start=out / "policy"),
        "blind": lambda: _train(out, "blind", datasets, BLIND, scale, start=last, blind=True),
    }
    for part in PARTS:
        if corrections or part not in OPTIONAL:
            steps[part]()
        if part == until:
            return
    export(last / "export", out / "blind" / "export", out)


def record_demos(
    out: Path,
    episodes: Mapping[str, int],
    first_seed: int,
    workers: int,
    checkpoint: Path | None = None,
    detours: bool = False,
) -> None:
    """Demonstrations (with ``checkpoint``, corrections of that policy) as the dataset ``out``; done if it exists.

    detours: the demonstrator is led astray now and then, see ``envs/libero_detours.py``.
    """
    if out.exists():
        return
    jobs = [
        DemoJob(id=f"{name.replace('/', '-')}-{seed}", group=name, seed=seed)
        for name, count in episodes.items()
        for seed in range(first_seed, first_seed + count)
    ]
    if checkpoint is None:
        kwargs = {"detours": True} if detours else {}
        demonstrator = DemonstratorSpec("cosmos_robot.envs.libero_demos:LiberoDemonstrator", kwargs)
    else:
        demonstrator = DemonstratorSpec(
            "cosmos_robot.recipes.corrections:LiberoCorrector", {"checkpoint": str(checkpoint.resolve())}
        )
    collect(jobs, demonstrator, LIBERO_PANDA, out, stride=STRIDE, workers=workers)


def export(sighted: Path, blind: Path, out: Path) -> None:
    """Put a policy and its blind control side by side as the checkpoints ``out/tiny-libero`` and ``-blind``."""
    whole = load_checkpoint(sighted, dtype=torch.float32)
    save_checkpoint(
        out / NAME, transformer=whole.transformer, vae=whole.vae, tokenizer=whole.tokenizer, contract=whole.contract,
        overwrite=True,
    )  # fmt: skip
    save_checkpoint(
        out / blind_control(NAME), transformer=load_checkpoint(blind, dtype=torch.float32).transformer,
        contract=Contract.load(blind), share_with=NAME, overwrite=True,
    )  # fmt: skip


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
        domain_name="libero",
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
        stages=stages, start=start, blind=blind, hidden_at=3, batch=32,
    )  # fmt: skip


def _train(out: Path, name: str, datasets, stages: tuple[Stage, ...], scale: float, **options) -> None:
    shortened = tuple(replace(stage, steps=max(2, round(stage.steps * scale))) for stage in stages)
    train_policy(policy_training(out, name, datasets, shortened, **options))


def scaled(episodes: Mapping[str, int], scale: float) -> dict[str, int]:
    return {name: max(1, round(count * scale)) for name, count in episodes.items()}


def _place(camera: str, crop: tuple[int, int, int, int], to: tuple[int, int, int, int]) -> Placement:
    def box(b: tuple[int, int, int, int]) -> Box:
        return Box(top=b[0], left=b[1], height=b[2], width=b[3])

    return Placement(camera=camera, crop=box(crop), to=box(to))
