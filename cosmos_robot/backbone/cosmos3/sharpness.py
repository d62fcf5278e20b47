"""The same transformer with finer places: for small ones that shall copy a picture cell by cell.

Predicting a future picture is mostly repeating the last one, so a token must find the one that lies at its own place,
by its rotary turns. With the released ``rope_theta`` of 5e6 the fastest frequency of an axis turns by 0.62 rad from a
cell to the next and the second by 0.14; queries and keys are normalised, so heads of 64 numbers hardly tell a cell from
its neighbours. Large models learn gains for that; a small one needs thousands of steps.
"""

from __future__ import annotations

import torch
from diffusers import Cosmos3OmniTransformer

from cosmos_robot.backbone.cosmos3.patches import remade
from cosmos_robot.errors import InputError

AXES = 3
"""Frequencies are dealt to t, h and w in turn."""


@torch.no_grad()
def with_finer_places(
    transformer: Cosmos3OmniTransformer, theta: float = 100.0, gain: float = 2.0, fastest: int = 3
) -> Cosmos3OmniTransformer:
    """A float32 copy, to be trained further, that turns by ``theta`` and looks closer.

    gain: by which the generator's query and key gains of the ``fastest`` frequencies of both picture axes are
    multiplied. What the transformer has learned is disturbed; it comes back within a few hundred steps. Raises
    InputError for a theta of 1 or less, a gain that is not positive, or more frequencies than the picture axes have.
    """
    config = transformer.config
    axes = min(config.rope_axes_dim[1:])
    if theta <= 1 or gain <= 0 or not 0 <= fastest <= axes:
        raise InputError(
            f"with_finer_places: expected theta > 1, gain > 0 and fastest of 0 to {axes}; got {theta}, {gain} and "
            f"{fastest}"
        )
    weights = {name: tensor.float() for name, tensor in transformer.state_dict().items()}
    made = remade(transformer, weights, {"rope_theta": theta})
    pictured = [AXES * k + axis for k in range(fastest) for axis in (1, 2)]
    columns = [*pictured, *(k + config.head_dim // 2 for k in pictured)]
    for name, weight in made.named_parameters():
        if name.endswith(("norm_added_q.weight", "norm_added_k.weight")):
            weight[columns] *= gain
    return made
