"""``train_model``: episodes of any robot and a start checkpoint in, a checkpoint in the released layout out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cosmos_robot.backbone.cosmos3.load import Checkpoint
from cosmos_robot.training.cache import EpisodeSource
from cosmos_robot.training.model_config import ModelTraining

ClosedLoop = Callable[[Checkpoint], Mapping[str, float]]
"""Measures a model while it is trained, for instance by driving a simulator; given the averaged weights."""


def train_model(
    config: ModelTraining,
    sources: Mapping[str, Sequence[EpisodeSource]] | None = None,
    closed_loop: ClosedLoop | None = None,
) -> Path:
    """Train, or resume, and return the exported checkpoint folder ``config.out/export``.

    sources: for each stream by name, its episodes, if they are not to be read from its ``datasets``.
    closed_loop: measures to log at each validation besides the held-out losses and errors.
    Raises Interrupted on Ctrl-C (run again to go on), CheckpointError while another process trains there.
    """
    raise NotImplementedError
