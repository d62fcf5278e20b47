"""From an instruction to the exact text a model reads, as its contract says. No tokenizer here.

The two action forms follow NVIDIA/cosmos-framework: action/utils/json_formatter.py, action/utils/viewpoint_utils.py and
the text augmentors; ``append`` follows its LIBERO client.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cosmos_robot.contract import Contract, PromptSpec, Viewpoint
from cosmos_robot.errors import ContractError, InputError
from cosmos_robot.images.canvas import model_size
from cosmos_robot.images.tiers import aspect_name

LOG = logging.getLogger(__name__)

VIEWPOINTS: dict[Viewpoint, str] = {
    "ego_view": "This video is captured from a first-person perspective looking at the scene.",
    "third_person_view": (
        "This video is captured from a third-person perspective looking towards the agent from the front."
    ),
    "wrist_view": "This video is captured from a wrist-mounted camera.",
    "concat_view": "This video contains concatenated views from multiple camera perspectives.",
    "top_down_2d_view": "This video is captured from a top-down view of a flat 2D scene.",
    "video_game_view": "This video is captured from an in-game camera perspective in a virtual environment.",
}
"""The sentence of each viewpoint; data that models were trained on, word for word."""


@dataclass(frozen=True)
class PromptFacts:
    """What an action prompt states besides the instruction.

    frames: of the video, the first one included. fps: of the video. canvas, source: (height, width) in pixels of the
    picture the model sees and of the composed picture before it was fitted. rows: action rows without history, with the
    state row. idle_frames: rows that stand still, None if nobody counted. inverse: the model predicts the actions, so
    nothing about them may be said. relabel: more keys of the action's entry, which win over those already there.
    """

    frames: int
    fps: float
    canvas: tuple[int, int]
    source: tuple[int, int]
    rows: int | None = None
    idle_frames: int | None = None
    inverse: bool = False
    relabel: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.fps) and self.fps > 0):
            raise InputError(f"prompt: fps must be finite and positive, got {self.fps}")
        if self.frames < 1:
            raise InputError(f"prompt: expected at least one video frame, got {self.frames}")

    @property
    def seconds(self) -> float:
        return self.frames / self.fps


class Prompts:
    """The texts of one contract; each distinct one is logged once, at debug level, exactly as the tokenizer gets it."""

    def __init__(self, contract: Contract):
        self._spec = contract.model.prompt
        self._facts = {inverse: prompt_facts(contract, inverse=inverse) for inverse in (False, True)}
        self._logged: set[str] = set()

    def text(self, instruction: str, *, inverse: bool = False) -> str:
        """The prompt for ``instruction``; ``inverse`` where the actions are what is asked for. Raises InputError if it
        holds no words."""
        text = render_prompt(self._spec, instruction, self._facts[inverse])
        if text not in self._logged:
            self._logged.add(text)
            LOG.debug("prompt for %r: %s", instruction, text)
        return text


def prompt_facts(contract: Contract, *, inverse: bool = False) -> PromptFacts:
    """What the prompts of ``contract`` state when it is run. Models are told whole frames per second."""
    model, canvas = contract.model, contract.model.canvas
    return PromptFacts(
        frames=model.chunk // model.actions_per_frame + 1,
        fps=int(contract.fps),
        canvas=model_size(canvas),
        source=(canvas.height, canvas.width),
        rows=model.chunk + model.state_row,
        inverse=inverse,
    )


def render_prompt(spec: PromptSpec, instruction: str, facts: PromptFacts | None = None) -> str:
    """The exact text for ``instruction`` that goes into the tokenizer's chat template.

    Raises InputError if the instruction holds no word, and ContractError if an action form lacks ``facts``.
    """
    if not any(c.isalnum() for c in instruction):
        raise InputError(f"instruction {instruction!r} holds no words; say what the robot should do")
    for sentence in spec.append:
        instruction = instruction if sentence in instruction else _joined(instruction.rstrip(), sentence.rstrip())
    if spec.template == "caption":
        return " ".join(instruction.lower().split()).rstrip(".").rstrip()
    if spec.template == "instruction":
        return instruction
    if facts is None:
        raise ContractError(f"prompt template {spec.template!r} states frames, rate and size; give PromptFacts")
    return (
        _action_json(spec, instruction, facts) if spec.template == "action_json" else _plain(spec, instruction, facts)
    )


def framing(spec: PromptSpec) -> str:
    """The sentence of the viewpoint, then the layout text; empty where the contract names neither."""
    viewpoint = VIEWPOINTS[spec.viewpoint] if spec.viewpoint else ""
    return " ".join(part for part in (viewpoint, spec.layout_text.rstrip()) if part)


def left_to_right(views: Sequence[str]) -> str:
    """The layout text of cameras side by side, from what each shows, for instance "third-person view"."""
    if len(views) == 2:
        return f"The left half shows the {views[0]}; the right half shows the {views[1]}."
    return f"The views are concatenated horizontally from left to right as: {', '.join(views)}."


def _action_json(spec: PromptSpec, instruction: str, facts: PromptFacts) -> str:
    if spec.seconds == "whole":
        end = round(facts.seconds)  # half to even: 2.5 s ends at 0:02, 3.5 s at 0:04
        time, duration = f"0:00-{end // 60}:{end % 60:02d}", f"{int(facts.seconds)}s"
    else:
        time, duration = f"0.00-{facts.seconds:.2f}s", f"{facts.seconds:.2f}s"
    caption = instruction.strip()
    entry: dict[str, object] = {
        "time": time,
        "description": caption if caption.endswith((".", "!", "?")) else f"{caption}.",
        "idle_frame": _idle(spec, facts),
    }
    height, width = _stated_size(spec, facts)
    prompt = {
        "cinematography": {"framing": framing(spec)},
        "actions": [entry if facts.inverse else {**entry, **facts.relabel}],
        "duration": duration,
        "fps": float(facts.fps),
        "resolution": {"H": height, "W": width},
        "aspect_ratio": aspect_name(height, width),
    }
    return json.dumps(_pruned(prompt))


def _plain(spec: PromptSpec, instruction: str, facts: PromptFacts) -> str:
    seconds = int(facts.seconds) if spec.seconds == "whole" else facts.seconds
    height, width = _stated_size(spec, facts)
    text = _joined(instruction.rstrip(), framing(spec)) if spec.viewpoint else instruction
    text = _joined(text, f"The video is {seconds:.1f} seconds long and is of {facts.fps:.0f} FPS.")
    text = _joined(text, f"This video is of {height}x{width} resolution.")
    idle = _idle(spec, facts)
    return _joined(text, f"IdleFrames: {idle}") if idle else text


def _joined(text: str, sentence: str) -> str:
    """Only a full stop ends a sentence here, so "Stop!" becomes "Stop!. Next": models were trained on that."""
    if not text:
        return sentence
    return text + (" " if text.rstrip().endswith(".") else ". ") + sentence


def _idle(spec: PromptSpec, facts: PromptFacts) -> str:
    count = {"omit": None, "zero": 0, "given": facts.idle_frames}[spec.idle]
    if facts.inverse or count is None:
        return ""
    return f"{count}." if facts.rows is None else f"{count} out of {facts.rows}."


def _stated_size(spec: PromptSpec, facts: PromptFacts) -> tuple[int, int]:
    return facts.canvas if spec.resolution == "canvas" else facts.source


def _pruned(value: object) -> object:
    """Without empty texts, lists, maps and None, at any depth."""
    if isinstance(value, Mapping):
        kept = {key: _pruned(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if not _empty(item)}
    if isinstance(value, list):
        return [item for item in map(_pruned, value) if not _empty(item)]
    return value


def _empty(value: object) -> bool:
    return value is None or (isinstance(value, (str, list, dict)) and not value)
