"""One decision by search, against the same search one candidate at a time, and against the published order of calls.

The models are random ones of Cosmos Policy's architecture, in LIBERO's layout of nine latent frames, in small. How the
three searches are run is given: planners lie above this package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cosmos_robot.backbone.predict2.load import Checkpoint
from cosmos_robot.backbone.predict2.text import TextEmbeddings
from cosmos_robot.backbone.predict2.tiny import tiny_texts, tiny_transformer, tiny_vae
from cosmos_robot.bench.harness import Progress, machine, pair_of, quiet, timed
from cosmos_robot.bench.subjects import parameters
from cosmos_robot.contract import (
    CameraSpec,
    CanvasSpec,
    Contract,
    FieldSpec,
    ModelSpec,
    Normalization,
    PromptSpec,
    RobotSpec,
    SamplerSpec,
    Size,
)
from cosmos_robot.errors import InputError
from cosmos_robot.images import side_by_side
from cosmos_robot.types import Observation

FRAMES = ("blank", "state", "wrist", "front", "action", "future state", "future wrist", "future front", "value")
INSTRUCTION = "put the small spoon from the basket onto the tray"
TEXT_WIDTH = 32

Search = Callable[[], NDArray[np.float64]]
"""Runs one decision and returns the (N,) scores of its candidates."""


@dataclass(frozen=True)
class Searches:
    """The same decision three ways. batched: ours. one_by_one: one candidate after the other through the same model,
    its futures and its values each as one call. published: every future and every value a call of its own, and
    everything encoded again for each."""

    batched: Search
    one_by_one: Search
    published: Search


def plan_contract(side: int = 32, steps: int = 5) -> Contract:
    """LIBERO's layout, chunk and widths with cameras of ``side`` pixels (a multiple of 16, from 32)."""
    cameras = tuple(CameraSpec(name=name, height=side, width=side) for name in ("wrist", "front"))
    placed = side_by_side({c.name: Size(height=side, width=side) for c in cameras}, side, side)
    plain = Normalization(method="identity")
    robot = RobotSpec(
        name="bench",
        cameras=cameras,
        state=(FieldSpec(name="proprio", width=9, unit="1"),),
        action=(FieldSpec(name="row", width=7, unit="1"),),
        action_reference="per_step",
        action_low=-1,
        action_high=1,
        rate_hz=20.0,
    )
    model = ModelSpec(
        name="bench-frames",
        backbone="predict2",
        modes=("policy", "world_model", "value"),
        domain_id=None,
        chunk=16,
        execute=16,
        actions_per_frame=16,
        state_row=True,
        frames=FRAMES,
        canvas=CanvasSpec(height=side, width=2 * side, placements=placed, arrangement="frames"),
        state_normalization=plain,
        action_normalization=plain,
        prompt=PromptSpec(template="instruction"),
        sampler=SamplerSpec(solver="edm_2ab", steps=steps, noise="joint", sigma_min=4, sigma_max=80),
    )
    return Contract(robot=robot, model=model)


def plan_checkpoint(contract: Contract, seed: int = 0) -> Checkpoint:
    """A random network of the tiny sizes, its autoencoder, and the instruction's embedding; nothing is on disk."""
    texts = TextEmbeddings(tiny_texts([INSTRUCTION], TEXT_WIDTH), 8)
    network = tiny_transformer(seed, text_embed_dim=TEXT_WIDTH)
    return Checkpoint("bench-frames", Path(), network, tiny_vae(seed), texts, contract)


def plan_observation(contract: Contract, seed: int = 0) -> Observation:
    """Pictures of noise, zeros, and the instruction."""
    rng = np.random.default_rng(seed)
    pictures = {c.name: rng.integers(0, 256, (c.height, c.width, 3), dtype=np.uint8) for c in contract.robot.cameras}
    return Observation(pictures, {f.name: np.zeros(f.width) for f in contract.robot.state}, INSTRUCTION)


def plan_report(
    searches: Searches,
    checkpoint: Checkpoint,
    counts: tuple[int, int, int],
    repeats: int = 3,
    progress: Progress = quiet,
) -> dict[str, Any]:
    """Time the first two in turns, and the third once.

    counts: candidates, futures of each, values of each future. ``max_abs_diff`` in the figures is the largest
    difference between the scores of the three. Raises InputError for less than one turn.
    """
    n, futures, values = counts
    if repeats < 1:
        raise InputError(f"bench plan: expected repeats of at least 1, got {repeats}")
    progress("warm-up")
    searches.batched()
    turns = []
    for turn in range(repeats):
        progress(f"run {turn + 1} of {repeats}")
        turns.append((timed(searches.batched), timed(searches.one_by_one)))
    progress("the published order")
    published = timed(searches.published)
    found = turns[-1][0].result
    others = (turns[-1][1].result, published.result)
    return {
        "bench": "plan",
        "models": "random Cosmos-Predict2 network of the tiny sizes, LIBERO's layout",
        "n": n,
        "futures": futures,
        "values": values,
        "samples": n * (1 + futures * (1 + values)),
        "steps": checkpoint.contract.model.sampler.steps,
        "pixels": checkpoint.contract.robot.cameras[0].height,
        "parameters": parameters(checkpoint.transformer, checkpoint.vae),
        "against": "the same models, one candidate at a time: one call for its futures, one for its values",
        **pair_of(turns).as_json(),
        "published_order": {
            "against": "every future and every value its own call, everything encoded again",
            "calls": n * (1 + futures * (1 + values)),
            **pair_of([(turns[-1][0], published)]).as_json(),
        },
        "max_abs_diff": float(max(np.abs(found - other).max() for other in others)),
        **machine(torch.float32),
    }
