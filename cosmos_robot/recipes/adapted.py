"""A checkpoint whose autoencoder goes on learning on the pictures of another robot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from cosmos_robot.backbone.cosmos3.load import load_checkpoint, save_checkpoint
from cosmos_robot.contract import Contract
from cosmos_robot.training.cache import EpisodeSource
from cosmos_robot.training.config import TokenizerTraining
from cosmos_robot.training.tokenizer import train_tokenizer


def adapt_tokenizer(
    out: Path, start: str, contract: Contract, data: Path, sources: Sequence[EpisodeSource], cache: Path, **settings
) -> Path:
    """A copy of the checkpoint ``start`` under ``contract`` in ``out/start``, with its autoencoder fine-tuned.

    data: the folder of ``sources``, by which the composed canvases are cached. settings: fields of
    ``TokenizerTraining``, such as steps. A run found in ``out`` is resumed.
    """
    from diffusers import AutoencoderKLWan

    begun = load_checkpoint(start, dtype=torch.float32, contract=contract)
    begun.vae.save_pretrained(out / "begun" / "vae")
    config = TokenizerTraining(
        out=out / "training", datasets=(data,), cache=cache, contract=contract, start=out / "begun", decode_every=2,
        **settings,
    )  # fmt: skip
    vae = AutoencoderKLWan.from_pretrained(train_tokenizer(config, sources) / "vae")
    return save_checkpoint(
        out / "start", transformer=begun.transformer, vae=vae, tokenizer=begun.tokenizer, contract=contract,
        overwrite=True,
    )  # fmt: skip
