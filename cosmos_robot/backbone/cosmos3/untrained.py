"""A whole checkpoint with random weights for any robot: to try an environment, a server or a test before training."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cosmos_robot.contract import (
    Box,
    CanvasSpec,
    Contract,
    ModelSpec,
    Normalization,
    Placement,
    PromptSpec,
    RobotSpec,
    SamplerSpec,
)

TILE = 64
"""Pixels of one camera's square on the canvas."""


def untrained_contract(robot: RobotSpec, name: str, chunk: int = 16, execute: int = 8) -> Contract:
    """A contract with every camera of ``robot`` side by side and no normalisation."""
    placements = tuple(
        Placement(
            camera=camera.name,
            crop=Box(top=0, left=0, height=camera.height, width=camera.width),
            to=Box(top=0, left=number * TILE, height=TILE, width=TILE),
        )
        for number, camera in enumerate(robot.cameras)
    )
    identity = Normalization(method="identity", scale_floor=1e-6)
    model = ModelSpec(
        name=name,
        backbone="cosmos3",
        domain_id=0,
        chunk=chunk,
        execute=execute,
        state_row=robot.state_width > 0,
        canvas=CanvasSpec(height=TILE, width=TILE * max(1, len(placements)), placements=placements),
        state_normalization=identity,
        action_normalization=identity,
        prompt=PromptSpec(template="caption"),
        sampler=SamplerSpec(solver="euler", steps=5, shift=5.0),
    )
    return Contract(robot=robot, model=model)


def save_untrained(
    folder: str | Path, contract: Contract, sentences: Iterable[str], seed: int = 0, **changes: object
) -> Path:
    """Write a checkpoint with random weights under ``contract`` and return its folder.

    sentences: what its tokenizer should know. changes: of the tiny transformer's configuration.
    """
    from cosmos_robot.backbone.cosmos3.load import save_checkpoint
    from cosmos_robot.backbone.cosmos3.text import build_word_tokenizer
    from cosmos_robot.backbone.cosmos3.tiny import tiny_transformer, tiny_vae

    tokenizer = build_word_tokenizer(sentences)
    width = max(contract.action_width, contract.state_width if contract.model.state_row else 0)
    sizes = {"action_dim": max(16, width), **changes}
    transformer = tiny_transformer(len(tokenizer), seed, **sizes)
    return save_checkpoint(folder, transformer=transformer, vae=tiny_vae(seed), tokenizer=tokenizer, contract=contract)
