"""Contracts in plain words: every field as a line under a heading, and two contracts side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from cosmos_robot.contract.base import Spec
from cosmos_robot.contract.document import Contract
from cosmos_robot.contract.model import Box, Placement, Size
from cosmos_robot.contract.numbers import ModelSpace, Statistics
from cosmos_robot.contract.robot import CameraSpec, FieldSpec, GripperSpec, RobotSpec

ABSENT: Final = "none"

SECTIONS: Final[dict[str, str]] = {
    "robot.cameras": "cameras",
    "robot.state": "state",
    "robot.action": "action",
    "robot.gripper": "action",
    "robot": "robot",
    "model.canvas": "picture",
    "model.prompt": "prompt",
    "model.sampler": "sampler",
    "model.state_normalization": "state normalisation",
    "model.action_normalization": "action normalisation",
    "model": "model",
    "": "contract",
}
"""Beginning of a field's path to the heading it stands under; the longest one counts."""

LABELS: Final[dict[str, str]] = {
    "robot.action_reference": "a command is",
    "robot.action_low": "lowest command",
    "robot.action_high": "highest command",
    "robot.rate_hz": "commands per second",
    "robot.state_gripper": "gripper of the state",
    "model.chunk": "rows predicted at once",
    "model.execute": "rows run before asking again",
    "model.state_row": "the state is given to the model",
    "model.history_rows": "past rows given to the model",
    "model.actions_per_frame": "rows per frame of video",
    "model.fps": "frames per second told to the model",
    "model.frames": "latent frames",
    "model.frame_encoding": "latent frames are encoded as",
    "model.sees": "sees pictures",
    "model.action_space": "action as the model speaks it",
    "model.state_space": "state as the model speaks it",
    "model.canvas.orientation": "orientation shown to the model",
    "model.canvas.arrangement": "cameras become",
    "model.canvas.resize": "resized by",
    "model.canvas.fit": "aspect ratio",
    "model.canvas.tier": "canvas table of Cosmos 3",
    "model.canvas.pad": "filled up with",
    "model.canvas.crop_fraction": "centre crop, share of the area",
    "model.canvas.jpeg_quality": "JPEG quality before",
    "model.canvas.composed": "composed at",
    "model.prompt.idle": "idle rows in the text",
    "model.prompt.layout_text": "sentence about the layout",
    "model.prompt.append": "sentences added to the instruction",
    "model.prompt.resolution": "size told in the text",
    "model.prompt.seconds": "seconds in the text",
}

VALUES: Final[dict[str, str]] = {
    "per_step": "a change per step",
    "per_chunk": "a change from the chunk's first pose",
    "absolute": "an absolute target",
    "one_picture": "one picture",
    "frames": "a latent frame each",
    "stills": "pictures by themselves",
    "mirror": "left and right exchanged",
    "flip_vertical": "upside down",
    "rot180": "turned by 180 degrees",
}


@dataclass(frozen=True)
class Told:
    """One field that two contracts tell differently. section: its heading."""

    section: str
    field: str
    label: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.label}: {self.first} / {self.second}"


def describe(contract: Contract | RobotSpec) -> dict[str, dict[str, str]]:
    """Heading to label to value, every field of the contract in one of them."""
    out: dict[str, dict[str, str]] = {}
    for path, value in _leaves(contract):
        out.setdefault(_section(path), {})[_label(path)] = say(value)
    return out


def diff(first: Contract, second: Contract) -> list[Told]:
    """What two contracts tell differently, in the order of their fields; empty if they are equal."""
    a, b = dict(_leaves(first)), dict(_leaves(second))
    differ = [path for path in [*a, *(path for path in b if path not in a)] if a.get(path) != b.get(path)]
    return [Told(_section(path), path, _label(path), *_both(a.get(path), b.get(path))) for path in differ]


def _both(first: object, second: object) -> tuple[str, str]:
    """Two values in words that tell them apart: statistics by their numbers where nothing else differs."""
    words = say(first), say(second)
    return words if words[0] != words[1] else (repr(first), repr(second))


def _leaves(contract: Contract | RobotSpec) -> Iterator[tuple[str, object]]:
    """(path, value) of every field; named parts (cameras, fields) have their name in the path."""
    if isinstance(contract, RobotSpec):
        yield from _walk("robot", contract)
        return
    for name in type(contract).model_fields:
        value = getattr(contract, name)
        if name == "model":
            yield from _walk_model(contract)
        else:
            yield from _walk(name, value)


def _walk_model(contract: Contract) -> Iterator[tuple[str, object]]:
    robot, model = contract.robot, contract.model
    for name in type(model).model_fields:
        value = getattr(model, name)
        if name == "fps":
            yield "model.fps", contract.fps
        elif name == "action_space":
            yield "model.action_space", value or _own(robot, "action")
        elif name == "state_space":
            yield "model.state_space", value or _own(robot, "state")
        else:
            yield from _walk(f"model.{name}", value)


def _own(robot: RobotSpec, side: str) -> ModelSpace:
    """The robot's own vector as a model space."""
    if side == "action":
        return ModelSpace(fields=robot.action, gripper=robot.gripper)
    return ModelSpace(fields=robot.state, gripper=robot.state_gripper)


def _walk(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Spec) and not isinstance(value, (*SAID, Statistics)):
        for name in type(value).model_fields:
            yield from _walk(f"{path}.{name}", getattr(value, name))
    elif isinstance(value, tuple) and value and all(isinstance(item, CameraSpec | FieldSpec) for item in value):
        yield f"{path}.order", ", ".join(item.name for item in value)
        for item in value:
            yield f"{path}.{item.name}", item
    else:
        yield path, value


def _section(path: str) -> str:
    return SECTIONS[max((p for p in SECTIONS if path.startswith(p)), key=len)]


def _label(path: str) -> str:
    parts = path.split(".")
    if path in LABELS:
        return LABELS[path]
    named = len(parts) == 3 and parts[1] in ("cameras", "state", "action") and parts[2] != "order"
    return f"{parts[1].removesuffix('s')} {parts[2]!r}" if named else parts[-1].replace("_", " ")


def say(value: object) -> str:
    """One value in words."""
    if value is None or value in ("", ()):
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    for kind, words in SAID.items():
        if isinstance(value, kind):
            return words(value)
    if isinstance(value, Statistics):
        return _statistics(value)
    if isinstance(value, BaseModel):
        return ", ".join(f"{name} {say(getattr(value, name))}" for name in type(value).model_fields)
    if isinstance(value, tuple):
        return "; ".join(say(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else VALUES.get(str(value), str(value))


def _camera(camera: CameraSpec) -> str:
    view = f", {camera.view}" if camera.view else ""
    return f"{camera.height}x{camera.width}, {say(camera.orientation)}{view}"


def _field(field: FieldSpec) -> str:
    parts = [f"{field.width} x {field.unit}", field.rotation or field.kind]
    parts += [f"{field.frame} frame"] if field.frame else []
    parts += [field.meaning] if field.meaning else []
    parts += [f"at least {say(field.low)}"] if field.low else []
    return ", ".join(parts + ([f"at most {say(field.high)}"] if field.high else []))


def _gripper(gripper: GripperSpec) -> str:
    ends = f"{', '.join(gripper.fields)}: {gripper.open_value:g} open, {gripper.closed_value:g} closed, {gripper.kind}"
    return f"{ends}, turning at openness {gripper.threshold:g} +- {gripper.hysteresis / 2:g}"


def _space(space: ModelSpace) -> str:
    fields = ", ".join(f"{f.name} {f.width} {f.rotation or f.unit}" for f in space.fields) or "nothing"
    parts = [f"{space.width} numbers: {fields}", *([] if space.reference == "as_robot" else [say(space.reference)])]
    if space.gripper:
        parts.append(f"gripper {space.gripper.open_value:g} open, {space.gripper.closed_value:g} closed")
    parts += [f"axes turned by [{say(space.axis_rotation)}]"] if space.axis_rotation else []
    parts += [f"tool offset [{say(space.tool_offset)}] m"] if space.tool_offset else []
    parts += [f"metres times {space.translation_scale:g}"] if space.translation_scale != 1 else []
    return "; ".join(parts)


def _placement(place: Placement) -> str:
    return f"{place.camera} {_box(place.crop)} to {_box(place.to)}"


def _box(box: Box) -> str:
    return f"{box.height}x{box.width} at ({box.top}, {box.left})"


def _statistics(statistics: Statistics) -> str:
    rows = f"of {statistics.count} rows, " if statistics.count else ""
    return f"{rows}{statistics.width} dimensions: {', '.join(statistics.recorded)}"


SAID: Final[dict[type[Any], Callable[[Any], str]]] = {
    CameraSpec: _camera,
    FieldSpec: _field,
    GripperSpec: _gripper,
    ModelSpace: _space,
    Placement: _placement,
    Box: _box,
    Size: lambda size: f"{size.height}x{size.width}",
}
"""Types that are told in one line."""
