"""``train_policy``: datasets and a trained tokenizer in, a checkpoint in the released layout out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLWan, Cosmos3OmniTransformer

from cosmos_robot.backbone.cosmos3.tiny import tiny_transformer
from cosmos_robot.contract import Contract
from cosmos_robot.errors import CheckpointError
from cosmos_robot.training.batches import BatchMaker
from cosmos_robot.training.cache import EpisodeSource, frame_cache
from cosmos_robot.training.config import PolicyTraining, plain
from cosmos_robot.training.curves import draw_curves
from cosmos_robot.training.latents import black_latents, latent_cache
from cosmos_robot.training.learner import PolicyLearner
from cosmos_robot.training.loop import Cycle, Pace, run
from cosmos_robot.training.rows import TrainingRows, fit_contract, join_caches
from cosmos_robot.training.session import STATE_FILE, Budget, RunFolder

EXPORT = "export"
CONTRACT_FOLDER = "contract"
"""Inside a run: the contract with its statistics, kept before the first step."""
_MAY_DIFFER = ("progress", "save_seconds", "validate_seconds", "validate_steps", "threads", "cache")
