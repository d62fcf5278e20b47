"""What a training run is made of: frozen, checked when made."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cosmos_robot.actions.normalization import LARGEST_NORMALISED
from cosmos_robot.contract import Contract
from cosmos_robot.errors import InputError
from cosmos_robot.training.settings import check_settings


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One learning-rate cycle: warm-up, then cosine down to ``final_lr`` of ``lr``.

    minutes or steps: its length, exactly one of them. Minutes count training time only, and make a run depend on the
    machine; steps reproduce it.
    action_weight, video_weight, pointing_weight, offset_weight: factors of the four losses.
    far_weight, approach_weight, dagger_weight: how much oftener than others a row is drawn if the hand is more than
    ``far`` metres from the target before the grasp; if it is before the grasp at all; if it was labelled at a policy's
    own state. Factors multiply.
    """

    name: str
    minutes: float | None = None
    steps: int | None = None
    lr: float = 6e-4
    warmup: int = 100
    final_lr: float = 0.02
    action_weight: float = 1.0
    video_weight: float = 0.0
    pointing_weight: float = 0.1
    offset_weight: float = 0.2
    far_weight: float = 2.0
    approach_weight: float = 1.0
    dagger_weight: float = 2.0

    def __post_init__(self) -> None:
        check_settings(
            self,
            f"stage {self.name!r}",
            positive=("lr",),
            not_negative=(
                "warmup", "action_weight", "video_weight", "pointing_weight", "offset_weight", "far_weight",
                "approach_weight", "dagger_weight",
            ),
            shares=("final_lr",),
        )  # fmt: skip
        if (self.minutes is None) == (self.steps is None):
            raise InputError(f"stage {self.name!r}: give either minutes or steps, got {self.minutes} and {self.steps}")
        if (self.minutes or self.steps or 0) <= 0:
            raise InputError(f"stage {self.name!r}: its length must be positive")


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Noise on the inputs, in model units. state_dropout, caption_dropout: share of samples whose state row is zeroed,
    whose caption is empty. latent_noise, state_noise: standard deviations."""

    latent_noise: float = 0.1
    state_noise: float = 0.05
    state_dropout: float = 0.0
    caption_dropout: float = 0.0

    def __post_init__(self) -> None:
        check_settings(
            self, "augmentation", not_negative=("latent_noise", "state_noise"),
            shares=("state_dropout", "caption_dropout"),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PolicyTraining:
    """A policy training run.

    out: the run's own folder (log, curves, checkpoint, ``export/``); a run found there is resumed.
    datasets: folders of recorded episodes. cache: where canvases and latents are kept.
    tokenizer: folder holding ``vae/`` with trained statistics, as ``train_tokenizer`` leaves it.
    contract: the robot and the model to be; normalisers with method ``identity`` and no statistics are replaced by
    ``normalization`` with statistics of the training rows.
    start: run folder or checkpoint folder whose weights to begin with; its contract's statistics are kept too.
    sentences: instructions the word tokenizer must know besides the recorded ones.
    blind: train on the latents of a black canvas.
    architecture: what differs from ``backbone.cosmos3.tiny.TRANSFORMER``.
    hidden_at: layer whose input the grounding heads read. tail_weight: loss weight of the chunk steps that are not
    executed. future_frames: further latent frames to denoise (the ``wam`` mode; 0 trains the policy alone).
    hand_field: the state field that holds the hand's position, from which offsets are measured.
    largest_normalised: training does not start on rows beyond it (model units).
    ema: decay per step, shortened early on. compute: precision of forward and backward; weights are float32 always.
    save_seconds, validate_seconds: between checkpoints, between validations; validate_steps replaces the latter.
    """

    out: Path
    datasets: tuple[Path, ...]
    cache: Path
    tokenizer: Path
    contract: Contract
    stages: tuple[Stage, ...]
    start: Path | None = None
    sentences: tuple[str, ...] = ()
    blind: bool = False
    seed: int = 0
    batch: int = 48
    architecture: Mapping[str, object] = field(default_factory=dict)
    weight_decay: float = 0.05
    clip: float = 1.0
    ema: float = 0.995
    augmentation: Augmentation = Augmentation()
    hidden_at: int = 4
    tail_weight: float = 0.5
    future_frames: int = 0
    far: float = 0.08
    hand_field: str = "eef_position"
    normalization: Literal["quantile", "minmax", "meanstd"] = "quantile"
    state_scale_floor: float = 0.01
    action_scale_floor: float = 0.1
    largest_normalised: float = LARGEST_NORMALISED
    compute: Literal["bfloat16", "float32"] = "bfloat16"
    threads: int = 2
    save_seconds: float = 60.0
    validate_seconds: float = 60.0
    validate_steps: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        check_settings(
            self,
            "policy training",
            positive=("clip", "far", "largest_normalised", "threads", "validate_steps"),
            not_negative=(
                "seed", "weight_decay", "hidden_at", "tail_weight", "future_frames", "state_scale_floor",
                "action_scale_floor", "save_seconds", "validate_seconds",
            ),
        )  # fmt: skip
        if not self.stages:
            raise InputError("policy training: no stages")
        if not self.datasets:
            raise InputError("policy training: no datasets")
        if self.batch < 1 or not 0 <= self.ema < 1:
            raise InputError(f"policy training: batch {self.batch}, ema {self.ema}")


@dataclass(frozen=True, kw_only=True)
class TokenizerTraining:
    """A run that trains the autoencoder on the canvases of recorded episodes.

    out: the run's own folder; ``vae/`` in it is the result. Steps or minutes bound it, as in ``Stage``.
    decode_every, decode_batch: the decoder learns on every so-manieth step, on so many of the step's pictures.
    start: run folder of another tokenizer whose autoencoder to begin with.
    object_weight, offset_weight, cell_weight: factors of the losses on object class, on its place in its latent cell,
    and on the cell's place on the canvas. noise: standard deviation of noise on the (standardised) latents, so that
    what they carry is carried robustly.
    shift: largest shift of a training picture, pixels. jitter: strength of brightness, contrast and colour changes.
    """

    out: Path
    datasets: tuple[Path, ...]
    cache: Path
    contract: Contract
    minutes: float | None = None
    steps: int | None = None
    base_dim: int = 16
    decoder_base_dim: int = 8
    seed: int = 0
    batch: int = 32
    lr: float = 2e-3
    warmup: int = 50
    weight_decay: float = 0.01
    clip: float = 1.0
    decode_every: int = 4
    decode_batch: int = 16
    reconstruction_weight: float = 1.0
    object_weight: float = 1.0
    offset_weight: float = 0.5
    cell_weight: float = 0.5
    start: Path | None = None
    noise: float = 0.1
    shift: int = 4
    jitter: float = 0.2
    compute: Literal["bfloat16", "float32"] = "bfloat16"
    threads: int = 2
    save_seconds: float = 60.0
    progress: bool = True

    def __post_init__(self) -> None:
        check_settings(
            self,
            "tokenizer training",
            positive=("base_dim", "decoder_base_dim", "lr", "clip", "threads"),
            not_negative=(
                "seed", "warmup", "weight_decay", "reconstruction_weight", "object_weight", "offset_weight",
                "cell_weight", "noise", "shift", "jitter", "save_seconds",
            ),
        )  # fmt: skip
        if (self.minutes is None) == (self.steps is None) or (self.minutes or self.steps or 0) <= 0:
            raise InputError(f"tokenizer training: give minutes or steps, got {self.minutes} and {self.steps}")
        if not 0 < self.decode_batch <= self.batch or self.decode_every < 1:
            raise InputError(
                f"tokenizer training: decode_batch {self.decode_batch} of batch {self.batch}, every {self.decode_every}"
            )


def plain(config: object) -> dict:
    """A config dataclass as JSON-ready values, for logs and for refusing to resume another run."""

    def default(value: object) -> object:
        return value.model_dump(mode="json") if isinstance(value, Contract) else str(value)

    return json.loads(json.dumps(dataclasses.asdict(config), default=default))
