"""What a checkpoint was trained for."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, model_validator

from cosmos_robot.contract.base import Spec
from cosmos_robot.contract.numbers import ModelSpace, Normalization
from cosmos_robot.contract.robot import MOST_PIXELS, Orientation

Backbone = Literal["cosmos3", "predict2"]
Mode = Literal["policy", "wam", "forward_dynamics", "inverse_dynamics", "world_model", "value"]
"""policy: actions from one picture. wam: actions and video together. forward_dynamics: video from actions.
inverse_dynamics: actions from video. world_model, value: Cosmos Policy's future state and value frames."""

MOST_ROWS: Final = 1024
"""Rows of a chunk or a history, 60 at most in released checkpoints: a file that asks for a million is refused."""
MOST_STEPS: Final = 1000


WHOLE_CANVAS: Final = "pictures"
"""The latent frame of a whole canvas."""


class Box(Spec):
    """A pixel rectangle: rows top..top+height, columns left..left+width."""

    top: int = Field(ge=0)
    left: int = Field(ge=0)
    height: int = Field(gt=0)
    width: int = Field(gt=0)

    def overlaps(self, other: Box) -> bool:
        """Whether the two share a pixel."""
        apart = self.top >= other.top + other.height or other.top >= self.top + self.height
        return not (apart or self.left >= other.left + other.width or other.left >= self.left + self.width)


class Placement(Spec):
    """One camera on the canvas: the part of it that is taken, and where that part goes."""

    camera: str
    crop: Box
    to: Box


ResizeRule = Literal[
    "area",
    "bilinear",
    "bilinear_truncated",
    "bilinear_antialias",
    "bicubic_antialias",
    "pillow_bilinear",
    "pillow_bicubic",
]
"""``area``: Pillow's box average. ``bilinear``: two neighbours an axis, half-pixel centres, no antialiasing, rounded;
``bilinear_truncated`` cuts the fraction off instead, as the public DROID server does. ``bilinear_antialias``,
``bicubic_antialias``: torchvision's resize of a tensor (filter widened when shrinking, a = -0.5, rounded once).
``pillow_bilinear``, ``pillow_bicubic``: Pillow's 8-bit resize (the same filters, rounded after each pass)."""

CanvasTier = Literal["256", "480", "704", "720", "768", "1080", "1280", "2048", "gt_2048"]
Viewpoint = Literal["ego_view", "third_person_view", "wrist_view", "concat_view", "top_down_2d_view", "video_game_view"]


class Size(Spec):
    """Height and width in pixels."""

    height: int = Field(gt=0)
    width: int = Field(gt=0)


class CanvasSpec(Spec):
    """The one picture the model sees, composed of cameras; uncovered pixels are black.

    Each camera, in this order: turned from the robot's orientation to ``orientation``; through a JPEG of
    ``jpeg_quality``; cut to its crop box (pixels of the turned picture); brought to its place by ``resize``, with its
    aspect ratio changed (``stretch``) or black bars added (``letterbox``); its centre of the share ``crop_fraction`` of
    the area cut out and brought to size again (bilinear, antialiased).
    arrangement: ``one_picture``; or ``frames``, where each placement is a picture of its own, in their order.
    composed: the size that the places lie on where it is not ``height`` x ``width``; the composed picture is then
    stretched to that by ``resize``.
    tier: of Cosmos 3's canvas table: the composed picture is brought onto the table's nearest canvas, downscaling only
    (bicubic, antialiased) and filling with ``pad`` at the right and the bottom. None: the composed picture is what the
    model sees.
    """

    height: int = Field(gt=0, le=MOST_PIXELS)
    width: int = Field(gt=0, le=MOST_PIXELS)
    placements: tuple[Placement, ...]
    arrangement: Literal["one_picture", "frames"] = "one_picture"
    orientation: Orientation = "upright"
    jpeg_quality: int | None = Field(default=None, ge=1, le=100)
    resize: ResizeRule = "area"
    fit: Literal["stretch", "letterbox"] = "stretch"
    crop_fraction: float | None = Field(default=None, gt=0, lt=1)
    composed: Size | None = None
    tier: CanvasTier | None = None
    pad: Literal["black", "reflect"] = "black"

    @model_validator(mode="after")
    def _inside(self) -> CanvasSpec:
        height, width = (self.composed.height, self.composed.width) if self.composed else (self.height, self.width)
        for p in self.placements:
            if p.to.top + p.to.height > height or p.to.left + p.to.width > width:
                raise ValueError(f"placement of {p.camera!r} leaves the {height}x{width} canvas: {p.to}")
        for i, p in enumerate(self.placements):
            for q in self.placements[:i]:
                if p.to.overlaps(q.to):
                    raise ValueError(f"the places of {q.camera!r} and {p.camera!r} overlap: {q.to} and {p.to}")
        return self


class PromptSpec(Spec):
    """How an instruction becomes the text the model reads.

    template: ``caption`` is the instruction, lower case, no full stop; ``instruction`` is the instruction as given;
    ``action_json`` and ``action_plain`` are Cosmos 3's two forms of an action prompt.
    viewpoint: the sentence of Cosmos 3's action prompts. layout_text: the sentence about what is where on the canvas.
    append: sentences added to the instruction itself, each unless it is there already, before the template is applied.
    idle: whether the text says how many rows stand still: ``omit``, ``zero`` (always 0) or ``given`` (by the caller).
    seconds: whether durations are whole seconds or decimals. resolution: whether the stated size is that of the canvas
    the model sees or of the composed ``source`` before it. system_prompt: whether the chat template adds one.
    """

    template: Literal["caption", "instruction", "action_json", "action_plain"]
    viewpoint: Viewpoint | None = None
    layout_text: str = ""
    append: tuple[str, ...] = ()
    idle: Literal["omit", "zero", "given"] = "omit"
    seconds: Literal["whole", "decimal"] = "whole"
    resolution: Literal["canvas", "source"] = "canvas"
    system_prompt: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> PromptSpec:
        if self.template == "action_json" and self.viewpoint is None and not self.layout_text.strip():
            raise ValueError("template 'action_json' needs a viewpoint or a layout_text")
        return self


class SamplerSpec(Spec):
    """How noise becomes actions and video.

    solver: ``euler`` and ``unipc`` follow Cosmos 3's flow schedule (``shift``); ``edm_2ab`` is Cosmos Policy's, from
    ``sigma_max`` to ``sigma_min``. guidance: 1 is off. guidance_interval: the timesteps low < t < high get it, all if
    None. guidance_clamp: scale the guided velocity down to the norm of the conditional one.
    noise: ``per_modality`` draws video and actions each from the start of the seed, ``joint`` draws one block;
    NumPy's RandomState, float32.
    """

    solver: Literal["euler", "unipc", "edm_2ab"]
    steps: int = Field(gt=0, le=MOST_STEPS)
    shift: float = Field(default=1.0, gt=0)
    guidance: float = 1.0
    guidance_interval: tuple[float, float] | None = None
    guidance_clamp: bool = False
    noise: Literal["per_modality", "joint"] = "per_modality"
    sigma_min: float | None = Field(default=None, gt=0)
    sigma_max: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> SamplerSpec:
        if (self.solver == "edm_2ab") != (self.sigma_min is not None and self.sigma_max is not None):
            raise ValueError("solver 'edm_2ab', and no other, needs sigma_min and sigma_max")
        if self.sigma_min and self.sigma_max and self.sigma_min >= self.sigma_max:
            raise ValueError(f"sigma_min={self.sigma_min} is not below sigma_max={self.sigma_max}")
        if self.guidance_interval and self.guidance_interval[0] >= self.guidance_interval[1]:
            raise ValueError(f"guidance_interval {self.guidance_interval} is empty")
        return self


class ModelSpec(Spec):
    """What a checkpoint expects: modes, rows, canvas, spaces, normalisers, prompt, sampler.

    chunk: action rows predicted per call. execute: how many of them a caller should run before asking again.
    domain_id, domain_name: Cosmos 3's embodiment slot and its name in the reference; None for ``predict2``.
    state_row: whether the state rides along as one clean action row. history_rows: past commands before it.
    actions_per_frame: action rows per frame of video; with 1 the video has chunk + 1 frames.
    frames: what each latent frame holds, in order, of ``predict2`` and of a ``cosmos3`` trained so: "blank", "state",
    "action", "value", a camera's name, and "future state" or "future CAMERA" for the same after the chunk. On a canvas
    that is one picture, "pictures" stands for all of it instead of cameras.
    frame_encoding: whether latent frames are one causal video (``video``: the first of one picture, the others of four
    copies each), or each the first of a video of its own (``stills``).
    fps: frames per second told to the model, the robot's rate if None.
    action_space, state_space: None where the model speaks the robot's own numbers.
    sees: False for a blind control, which reads a black canvas whatever the cameras show.
    """

    name: str
    backbone: Backbone
    modes: tuple[Mode, ...] = Field(default=("policy",), min_length=1)
    domain_id: int | None = Field(ge=0, lt=32)
    domain_name: str = ""
    chunk: int = Field(gt=0, le=MOST_ROWS)
    execute: int = Field(gt=0, le=MOST_ROWS)
    state_row: bool
    history_rows: int = Field(default=0, ge=0, le=MOST_ROWS)
    actions_per_frame: int = Field(default=1, gt=0)
    frames: tuple[str, ...] = ()
    frame_encoding: Literal["video", "stills"] = "video"
    fps: float | None = Field(default=None, gt=0)
    sees: bool = True
    action_space: ModelSpace | None = None
    state_space: ModelSpace | None = None
    canvas: CanvasSpec
    state_normalization: Normalization
    action_normalization: Normalization
    prompt: PromptSpec
    sampler: SamplerSpec

    @model_validator(mode="after")
    def _consistent(self) -> ModelSpec:
        if self.execute > self.chunk:
            raise ValueError(f"execute={self.execute} is more than chunk={self.chunk}")
        if (self.backbone == "cosmos3") != (self.domain_id is not None):
            raise ValueError(f"domain_id={self.domain_id}: cosmos3 needs one, and no other backbone has one")
        if self.backbone == "predict2" and not self.frames:
            raise ValueError("frames: predict2 needs the order of its latent frames")
        if self.canvas.arrangement == "frames" and not self.frames:
            raise ValueError(
                "canvas.arrangement is 'frames', but the order of latent frames is empty; give it in frames"
            )
        if self.frames and (self.canvas.arrangement == "one_picture") != (WHOLE_CANVAS in self.frames):
            raise ValueError(
                f"frames {list(self.frames)} on a canvas of arrangement {self.canvas.arrangement!r}: {WHOLE_CANVAS!r} "
                "stands for a canvas that is 'one_picture', cameras for one whose arrangement is 'frames'"
            )
        return self
