"""Pictures whose every turn, exchange and squeeze can be told apart, and small contracts to show them to."""

from __future__ import annotations

from typing import Any

import numpy as np

from cosmos_robot.contract import (
    Box,
    CameraSpec,
    CanvasSpec,
    Contract,
    FieldSpec,
    ModelSpec,
    Normalization,
    Placement,
    PromptSpec,
    RobotSpec,
    SamplerSpec,
)

LETTER = ("#####", "#....", "####.", "#....", "#....")


def letter_f(height: int, width: int, colour: tuple[int, int, int] = (200, 60, 20)) -> np.ndarray:
    """An F on a background that grows brighter to the right and redder downwards (H, W, 3) uint8."""
    y, x = np.mgrid[0:height, 0:width]
    out = np.stack([40 + 60 * y // height, 40 + 0 * y, 40 + 120 * x // width], -1).astype(np.uint8)
    tall, wide = height * 6 // 10, width * 5 // 10
    rows, columns = np.arange(tall) * 5 // tall, np.arange(wide) * 5 // wide
    ink = np.array([[c == "#" for c in line] for line in LETTER])[rows][:, columns]
    part = out[height // 8 : height // 8 + tall, width // 6 : width // 6 + wide]
    part[ink] = colour
    return out


def circle(height: int, width: int, radius: float) -> np.ndarray:
    """A white disc in the middle of black (H, W, 3) uint8."""
    y, x = np.mgrid[0:height, 0:width]
    inside = (y - (height - 1) / 2) ** 2 + (x - (width - 1) / 2) ** 2 <= radius**2
    return np.where(inside[..., None], 255, 0).astype(np.uint8) * np.ones(3, np.uint8)


def scene(seed: int, height: int = 96, width: int = 128) -> np.ndarray:
    """A smooth coloured picture without symmetry (H, W, 3) uint8; another for each seed."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    waves = [
        sum(
            random.uniform(0.3, 1)
            * np.cos(2 * np.pi * (random.uniform(-2, 2) * x + random.uniform(-2, 2) * y + random.uniform()))
            for _ in range(6)
        )
        for _ in range(3)
    ]
    values = np.stack(waves, -1)
    return (127 + 120 * values / np.abs(values).max()).astype(np.uint8)


def camera(name: str, height: int, width: int, orientation: Any = "upright", view: str = "") -> CameraSpec:
    return CameraSpec(name=name, height=height, width=width, orientation=orientation, view=view)


def contract_of(cameras: tuple[CameraSpec, ...], canvas: CanvasSpec, prompt: PromptSpec | None = None) -> Contract:
    """A contract of those cameras and that canvas; the rest is as small as it can be."""
    identity = Normalization(method="identity")
    return Contract(
        robot=RobotSpec(
            name="arm",
            cameras=cameras,
            state=(FieldSpec(name="joints", width=2, unit="rad"),),
            action=(FieldSpec(name="joints", width=2, unit="rad"),),
            action_reference="absolute",
            rate_hz=10,
        ),
        model=ModelSpec(
            name="small",
            backbone="cosmos3",
            domain_id=1,
            chunk=16,
            execute=8,
            state_row=False,
            canvas=canvas,
            state_normalization=identity,
            action_normalization=identity,
            prompt=prompt or PromptSpec(template="caption"),
            sampler=SamplerSpec(solver="euler", steps=2, shift=1.0),
        ),
    )


def whole(name: str, height: int, width: int, top: int, left: int, to_height: int, to_width: int) -> Placement:
    return Placement(
        camera=name,
        crop=Box(top=0, left=0, height=height, width=width),
        to=Box(top=top, left=left, height=to_height, width=to_width),
    )


def two_views() -> Contract:
    """A wrist and an exterior camera side by side, 96x128 pixels each."""
    return contract_of(
        (camera("wrist", 96, 128), camera("exterior_1", 96, 128)),
        CanvasSpec(
            height=96,
            width=256,
            placements=(whole("wrist", 96, 128, 0, 0, 96, 128), whole("exterior_1", 96, 128, 0, 128, 96, 128)),
        ),
    )
