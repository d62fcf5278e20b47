"""The recipe of ``tiny-world-model``: where commands lead in LIBERO, in one latent frame, and nothing else.

Latent frames on a canvas of half tiny-libero's size, so that a token holds one latent cell. docs/world-models.md tells
what came of it, and in what the shipped weights' own history differs.
"""

from __future__ import annotations

from pathlib import Path

from cosmos_robot.contract import CanvasSpec, Contract, ModelSpec, SamplerSpec
from cosmos_robot.errors import InputError
from cosmos_robot.latent_frames.layout import VALUE
from cosmos_robot.recipes import RolloutFlags, check_run, tiny_cosmos_policy, tiny_libero
from cosmos_robot.training.config import TokenizerTraining
from cosmos_robot.training.frame_config import FrameTraining

NAME = "tiny-world-model"
PARTS = ("demos", "tokenizer", "rollouts", "model")
TOKENIZER_STEPS = 1700
STEPS = 2400
NOISE = {"zero": RolloutFlags(noise=0.7, max_steps=150, contract=tiny_cosmos_policy.NAME),
         "tiny-libero": RolloutFlags(noise=0.5, max_steps=200, execute=tiny_cosmos_policy.CHUNK)}  # fmt: skip
"""Who drives besides the expert, and how disturbed: an expert's commands follow from what is seen, so a world model
trained on nothing else need not look at them."""
NOISY_EPISODES, FIRST_SEED = 3, 30_000
SAMPLER = SamplerSpec(solver="euler", steps=1, shift=50.0)
"""One step from pure noise: the expected future. A simulator's future is nearly certain, and a network this small has
little to spare for denoising, so training is at noise levels near the one that is used."""


def reproduce(
    out: Path, *, until: str | None = None, workers: int = 2, scale: float = 1.0, corrections: bool = False
) -> None:
    """Run the recipe into ``out``; parts that are done are skipped, one that was stopped goes on.

    demos: those of tiny-libero. tokenizer: an autoencoder for the smaller canvas. rollouts: noise, and tiny-libero with
    noise, in layouts of their own. model: forward dynamics, on the weights of tiny-libero.
    """
    check_run(PARTS, until, scale)
    if corrections:
        raise InputError(f"{NAME} knows no corrections; leave them out")
    demos = out / "demos"
    parts = {
        "demos": lambda: tiny_libero.record_demos(demos, tiny_libero.scaled(tiny_libero.DEMOS, scale), 1000, workers),
        "tokenizer": lambda: _tokenizer(out, demos, scale),
        "rollouts": lambda: _rollouts(out, max(1, round(NOISY_EPISODES * scale)), workers),
        "model": lambda: _model(out, demos, scale),
    }
    for part in PARTS:
        parts[part]()
        if part == until:
            return
    tiny_cosmos_policy.export(out / "model" / "export", out, name=NAME)


def contract() -> Contract:
    """That of tiny-cosmos-policy without the value, half as large and half as wide."""
    base = tiny_cosmos_policy.contract()
    canvas = base.model.canvas.model_dump()
    for placement in canvas["placements"]:
        placement["to"] = {side: length // 2 for side, length in placement["to"].items()}
    changes = {
        "name": NAME,
        "modes": ("world_model",),
        "sampler": SAMPLER,
        "frames": tuple(slot for slot in base.model.frames if slot != VALUE),
        "canvas": CanvasSpec.model_validate(canvas | {side: canvas[side] // 2 for side in ("height", "width")}),
    }
    return Contract(robot=base.robot, model=ModelSpec.model_validate(base.model.model_dump() | changes))


def training(out: Path, demos: Path, start: Path, scale: float = 1.0, **changes) -> FrameTraining:
    """Forward dynamics alone: every row of demonstrations and rollouts is a sample of the world model."""
    settings = {
        "steps": max(2, round(STEPS * scale)),
        "patch": 1,
        "contract": contract(),
        "demo_share": 0.0,
        "world_share": 1.0,
        "rollouts": tuple(out / "rollouts" / driver for driver in NOISE),
    }
    return tiny_cosmos_policy.joint_training(out, demos, start, name="model", **(settings | changes))


def _tokenizer(out: Path, demos: Path, scale: float) -> None:
    from cosmos_robot.training.tokenizer import train_tokenizer

    steps = max(2, round(TOKENIZER_STEPS * scale))
    train_tokenizer(
        TokenizerTraining(out=out / "tokenizer", datasets=(demos,), cache=out / "cache", contract=contract(),
                          steps=steps, shift=2)
    )  # fmt: skip


def _rollouts(out: Path, episodes: int, workers: int) -> None:
    for number, (driver, flags) in enumerate(NOISE.items()):
        seed = FIRST_SEED + 1000 * number
        tiny_cosmos_policy.record_rollouts(driver, out / "rollouts" / driver, episodes, workers, seed, flags)


def _model(out: Path, demos: Path, scale: float) -> None:
    from cosmos_robot.training.frame_trainer import train_frames

    train_frames(training(out, demos, _start(out), scale))


def _start(out: Path) -> Path:
    """tiny-libero with the new autoencoder, and with places fine enough to copy a picture by."""
    import torch
    from diffusers import AutoencoderKLWan

    from cosmos_robot.backbone.cosmos3.load import load_checkpoint, save_checkpoint
    from cosmos_robot.backbone.cosmos3.sharpness import with_finer_places

    shipped = load_checkpoint(tiny_libero.NAME, dtype=torch.float32)
    vae = AutoencoderKLWan.from_pretrained(out / "tokenizer" / "vae")
    return save_checkpoint(
        out / "start", transformer=with_finer_places(shipped.transformer), vae=vae, tokenizer=shipped.tokenizer,
        contract=shipped.contract, overwrite=True,
    )  # fmt: skip
