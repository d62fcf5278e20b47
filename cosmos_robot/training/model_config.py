"""What a post-training run is made of: one or several streams of episodes, a start checkpoint, a recipe.

``PostTraining`` holds the published recipe of Cosmos 3's action post-training (cosmos-framework: configs/base/
experiment/action/posttrain_config, model/generator/omni_mot_model.py; the LIBERO policy's where recipes differ).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

from cosmos_robot.backbone.cosmos3.layout import PlanMode
from cosmos_robot.contract import Contract
from cosmos_robot.errors import InputError
from cosmos_robot.images.canvas import model_size
from cosmos_robot.images.tiers import auto_tier
from cosmos_robot.training.loop import Schedule
from cosmos_robot.training.settings import check_settings

if TYPE_CHECKING:
    from cosmos_robot.backbone.cosmos3.lora import LoraSpec

JOINT: Final[Mapping[PlanMode, float]] = {"forward_dynamics": 1.0, "inverse_dynamics": 1.0, "wam": 1.0}
"""The report's joint training: each sample draws one of the three, evenly (data/generator/action, base_dataset.py)."""

TIER_SHIFTS: Final[Mapping[str, float]] = {"256": 3.0, "480": 5.0, "720": 10.0}
"""Time shift of training by canvas tier (nano_model_config.py)."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Episodes of one robot, and what is learnt from them.

    name: in the log and in the cache. contract: the robot and the model to be; normalisers with method ``identity``
    and no statistics are replaced by the recipe's, with statistics of the training episodes. Its ``modes`` become those
    that are trained.
    modes: how often a sample is drawn as each; they need not sum to 1. ``JOINT`` is the report's.
    datasets: folders, read where ``train_model`` is given no episodes for this stream.
    weight: how often a batch comes from this stream rather than another.
    stride: control steps from one row of an episode to the next (1 for plain recordings), as it was recorded. Pictures
    of a video stand ``contract.model.actions_per_frame`` control steps apart, so that must be a whole number of rows.
    every: a sample begins at every so-manieth row. Each sample of a mode with video is encoded by itself, causally from
    its first picture on, as it is when the model is run.
    """

    name: str
    contract: Contract
    modes: Mapping[PlanMode, float] = field(default_factory=lambda: {"policy": 1.0})
    datasets: tuple[Path, ...] = ()
    weight: float = 1.0
    stride: int = 1
    every: int = 1

    def __post_init__(self) -> None:
        unknown = set(self.modes) - set(get_args(PlanMode))
        if not self.modes or unknown or min(self.modes.values()) <= 0:
            raise InputError(
                f"stream {self.name!r}: modes {dict(self.modes)}; expected positive shares of "
                f"{', '.join(get_args(PlanMode))}"
            )
        if self.stride < 1 or self.every < 1 or self.weight <= 0:
            raise InputError(f"stream {self.name!r}: stride {self.stride}, every {self.every}, weight {self.weight}")
        gap = self.contract.model.actions_per_frame
        if self.has_video and gap % self.stride:
            raise InputError(
                f"stream {self.name!r}: pictures of its videos stand {gap} control steps apart "
                f"(model.actions_per_frame), its rows {self.stride}: expected a multiple"
            )

    @property
    def has_video(self) -> bool:
        """Whether a mode reads or predicts more than the current picture."""
        return set(self.modes) != {"policy"}


@dataclass(frozen=True, kw_only=True)
class PostTraining:
    """How weights are moved. The defaults are published ones; docs/post-training.md lists where they are not. Raises
    InputError for a word that is none of those declared, and a number out of range.

    lr: peak. head_factor: times that for action heads and their embedding. schedule, warmup, final_lr: as in
    ``loop.Cycle``; the reference decays linearly.
    betas, eps, weight_decay, clip: of AdamW; that vectors and action heads are not decayed is ours.
    trainable: ``generator`` (the generator half, its projections, time embedder and action heads; the text half and the
    embeddings stay as they are) or ``all``, for models without a trained text half.
    heads: ``keep`` or ``reinitialise`` the rows of the action heads that belong to the streams' domains.
    ema_rate: width of the weight average as a share of the training so far (power average); None for no average.
    video_weight, action_weight: factors of the two losses. caption_dropout: share of samples with an empty caption.
    noise: how noise levels are drawn. shift: their time shift; None takes it from the canvas tier.
    by_active: divide a sample's loss by its noisy elements instead of by all.
    latent_noise, state_noise: standard deviations added to given pictures and states (0 in the published recipe).
    """

    lr: float = 5e-5
    head_factor: float = 5.0
    schedule: Schedule = "linear"
    warmup: int = 500
    final_lr: float = 0.0
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    weight_decay: float = 0.05
    clip: float = 1.0
    trainable: Literal["generator", "all"] = "generator"
    heads: Literal["keep", "reinitialise"] = "reinitialise"
    ema_rate: float | None = 0.1
    video_weight: float = 10.0
    action_weight: float = 10.0
    caption_dropout: float = 0.1
    noise: Literal["uniform", "logitnormal", "waver"] = "waver"
    shift: float | None = None
    by_active: bool = False
    latent_noise: float = 0.0
    state_noise: float = 0.0

    def __post_init__(self) -> None:
        check_settings(
            self,
            "post-training",
            positive=("lr", "head_factor", "eps", "clip", "ema_rate", "shift"),
            not_negative=(
                "warmup", "weight_decay", "video_weight", "action_weight", "latent_noise", "state_noise",
            ),
            shares=("final_lr", "betas", "caption_dropout"),
        )  # fmt: skip
        if max(self.caption_dropout, *self.betas) >= 1:
            raise InputError(
                f"post-training: caption_dropout is {self.caption_dropout} and betas are {self.betas}; expected each "
                "below 1"
            )

    def time_shift(self, contract: Contract) -> float:
        """The shift of a stream's noise levels. Raises InputError for a tier that was never trained."""
        if self.shift is not None:
            return self.shift
        canvas = contract.model.canvas
        tier = canvas.tier or auto_tier(*model_size(canvas))
        if tier not in TIER_SHIFTS:
            raise InputError(
                f"canvas tier {tier!r} has no published training shift (there are {dict(TIER_SHIFTS)}); set shift"
            )
        return TIER_SHIFTS[tier]


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Several processes, started by torchrun (or ``accelerate launch``), as one training: FSDP2.

    replicas: copies of the sharded model (HSDP); 1 shards over all processes.
    """

    replicas: int = 1

    def __post_init__(self) -> None:
        check_settings(self, "sharding", positive=("replicas",))


@dataclass(frozen=True, kw_only=True)
class ModelTraining:
    """A run of ``model_trainer.train_model``.

    out: the run's own folder (contract, tokenizer, log, curves, state, ``export/``); a run found there is resumed.
    streams: what is learnt; the first one's contract becomes the exported checkpoint's, the others' lie in
    ``out/contracts``. start: checkpoint by shipped name, folder or hub id. fresh: draw its transformer's weights anew
    (its sizes, autoencoder and tokenizer stay), to train from nothing.
    steps or minutes: how long, exactly one of them. batch: samples of a step over all processes; or token_budget:
    tokens (text, pictures and rows) of a step in each process, filled with as many samples as fit, looking ahead
    ``look_ahead`` samples for ones that do.
    shuffle_episodes: episodes open at a time in each stream; samples are drawn at random from these.
    lora: adapters instead of the generator's own weights; the export has them merged, ``out/adapter`` has them alone.
    checkpoint_layers: recompute layers in the backward pass, keeping the outputs of attention.
    compute: precision of forward and backward; trained weights are float32.
    sharding: None trains in this process alone.
    loggers: further places for the log.
    normalization: method for normalisers that are ``identity``; None leaves them so.
    """

    out: Path
    streams: tuple[Stream, ...]
    start: str | Path
    cache: Path
    fresh: bool = False
    steps: int | None = None
    minutes: float | None = None
    recipe: PostTraining = PostTraining()
    lora: LoraSpec | None = None
    batch: int = 32
    token_budget: int | None = None
    look_ahead: int = 64
    shuffle_episodes: int = 64
    seed: int = 42
    checkpoint_layers: bool = False
    compute: Literal["bfloat16", "float32"] = "bfloat16"
    device: str = "cpu"
    normalization: Literal["quantile", "minmax", "meanstd"] | None = "quantile"
    state_scale_floor: float = 0.01
    action_scale_floor: float = 0.1
    validation_every: int = 20
    validation_samples: int = 64
    sharding: Sharding | None = None
    loggers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    threads: int = 2
    save_seconds: float = 60.0
    validate_seconds: float = 60.0
    validate_steps: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        check_settings(
            self,
            "training",
            positive=("threads", "validation_samples", "validate_steps"),
            not_negative=("seed", "state_scale_floor", "action_scale_floor", "save_seconds", "validate_seconds"),
            elsewhere=("LoraSpec",),
        )
        if not self.streams or len({s.name for s in self.streams}) != len(self.streams):
            raise InputError(
                f"training: streams {[s.name for s in self.streams]}; expected some, each with its own name"
            )
        if (self.steps is None) == (self.minutes is None) or (self.steps or self.minutes or 0) <= 0:
            raise InputError(f"training: give either minutes or steps, got {self.minutes} and {self.steps}")
        if self.batch < 1 or self.look_ahead < 0 or self.shuffle_episodes < 1 or self.validation_every < 2:
            raise InputError(
                f"training: batch {self.batch}, look_ahead {self.look_ahead}, shuffle_episodes "
                f"{self.shuffle_episodes}, validation_every {self.validation_every}"
            )
        if self.token_budget is not None and self.token_budget < 1:
            raise InputError(f"training: token_budget {self.token_budget}")
