"""What a joint training run over latent frames is made of (Cosmos Policy, sections 4.2 and 4.3): frozen, checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cosmos_robot.contract import Contract
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.latent_frames.layout import VALUE, layout_of
from cosmos_robot.latent_frames.objective import Targets
from cosmos_robot.training.mixing import JOINT_SHARE
from cosmos_robot.training.settings import check_settings


@dataclass(frozen=True, kw_only=True)
class FrameAugmentation:
    """Noise on what a sample is given, in model units (standard deviations), and pictures seen otherwise.

    variants: further copies of every training episode, encoded with its pictures cropped, turned and recoloured, one
    draw for the whole episode (``frame_augment``).
    """

    latent_noise: float = 0.05
    state_noise: float = 0.05
    variants: int = 0

    def __post_init__(self) -> None:
        check_settings(self, "frame augmentation", not_negative=("latent_noise", "state_noise", "variants"))


@dataclass(frozen=True, kw_only=True)
class FrameTraining:
    """A joint training run: policy, world model and value of one network.

    out: the run's own folder; a run found there is resumed. demos, rollouts: dataset folders; demonstrations train the
    policy, rollouts the world model and the value. Without rollouts, the demonstrations stand in as successful ones.
    cache: where canvases and latents are kept. start: checkpoint whose weights, texts and statistics to begin with.
    contract: the robot and the model to be; its normalisers give clamps, the rest of them is that of ``start``.
    patch: latent cells to a token's side; larger than that of ``start``, its input and output layers are widened.
    demo_share, success_share: see ``mixing.epoch_mix``; 0.1 of demonstrations is the published refinement for planning.
    world_share: of the world model among rollout samples, the value has the rest; with no demonstrations a model that
    is nothing else.
    targets: what each kind of sample learns. gamma: of the value, per control step.
    future_weight, value_weight: of their frames' losses, beside ``targets.action_weight`` of the action's.
    vector_weight: of the error of a vector as it is read, beside that of its copies one by one, which in a small
    network is mostly noise that it fails to pass on; 0 is the published loss.
    pointing_weight, offset_weight: of the grounding heads, on samples that are given the pictures of now; 0 for none.
    """

    out: Path
    demos: tuple[Path, ...]
    rollouts: tuple[Path, ...] = ()
    cache: Path
    start: Path
    contract: Contract
    steps: int
    patch: int = 1
    lr: float = 5e-4
    warmup: int = 50
    final_lr: float = 0.02
    demo_share: float = JOINT_SHARE
    success_share: float = 0.5
    world_share: float = 0.5
    targets: Targets = field(default_factory=Targets)
    gamma: float = 0.99
    future_weight: float = 1.0
    value_weight: float = 1.0
    vector_weight: float = 0.0
    pointing_weight: float = 0.1
    offset_weight: float = 0.2
    hidden_at: int = 3
    seed: int = 0
    batch: int = 32
    weight_decay: float = 0.05
    clip: float = 1.0
    ema: float = 0.995
    augmentation: FrameAugmentation = field(default_factory=FrameAugmentation)
    hand_field: str = "eef_position"
    compute: Literal["bfloat16", "float32"] = "bfloat16"
    threads: int = 2
    save_seconds: float = 60.0
    validate_steps: int = 300
    progress: bool = True

    def __post_init__(self) -> None:
        check_settings(
            self,
            "frame training",
            positive=("patch", "lr", "clip", "threads", "validate_steps"),
            not_negative=(
                "warmup", "future_weight", "value_weight", "vector_weight", "pointing_weight", "offset_weight",
                "hidden_at", "seed", "weight_decay", "save_seconds",
            ),
            shares=("final_lr", "demo_share", "success_share"),
        )  # fmt: skip
        if not self.demos:
            raise InputError("frame training: no demonstrations; name at least one dataset in demos")
        if self.steps < 1 or self.batch < 1 or not 0 <= self.ema < 1 or not 0 <= self.gamma <= 1:
            raise InputError(
                f"frame training: expected steps and batch >= 1, 0 <= ema < 1 and 0 <= gamma <= 1, got {self.steps}, "
                f"{self.batch}, {self.ema}, {self.gamma}"
            )
        layout = layout_of(self.contract)
        if not 0 <= self.world_share <= 1 or (VALUE not in layout and self.world_share < 1):
            raise InputError(
                f"frame training: world_share is {self.world_share}; expected 0 to 1, and 1 if no frame holds a value"
            )
        if self.contract.model.backbone != "cosmos3" or self.contract.model.frame_encoding != "stills":
            raise ContractError(
                f"frame training: {self.contract.model.name!r} has the backbone {self.contract.model.backbone!r} and "
                f"frames encoded as {self.contract.model.frame_encoding!r}; trained here are 'cosmos3' with 'stills'"
            )
