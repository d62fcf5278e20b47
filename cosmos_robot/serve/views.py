"""Other people's observations as ours: which key is which camera and which state field.

A client is recognised by the keys it sends, never by its size or content. Every conversion is exact and named here; a
picture of another size is refused, unless the operator said that resized pictures are to be taken.

=============  =====================================================================================================
client         what is done
=============  =====================================================================================================
openpi DROID   ``observation/NAME`` is the camera or field of that name (also MolmoSpaces' pi client)
RoboArena      the same, exterior cameras counted from 0 instead of 1
RoboLab        ``observation/image`` is the composed canvas: taken apart again, its halved views doubled
openpi LIBERO  pictures turned by 180 degrees from OpenGL's, so mirrored: mirrored back; ``observation/state`` is place,
               robosuite's axis-angle and fingers
openpi ALOHA   ``images`` by name, colour first: colour last; ``state`` is the state vector
MolmoSpaces    ``task``, cameras under their own names, ``qpos``: wrist and exterior in the order they are sent
GR00T          ``video.NAME``, ``state.NAME`` with batch and time axes, flat or nested; one batch, newest time
=============  =====================================================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage

from cosmos_robot.actions.rotations import convert
from cosmos_robot.contract import Contract, RobotSpec
from cosmos_robot.errors import InputError
from cosmos_robot.types import Image, Observation

LOG = logging.getLogger(__name__)
Pictures = Literal["exact", "resized"]
PREFIX: Final = "observation/"
LIBERO_CAMERAS: Final = {"observation/image": "agentview", "observation/wrist_image": "wrist"}
LONGEST_PROMPT: Final = 4000


def read_observation(contract: Contract, data: Mapping[str, Any], pictures: Pictures, prompt: str = "") -> Observation:
    """``data`` of any known client as an observation of ``contract.robot``. prompt: for clients that send none.

    Raises InputError naming what is missing or what no client sends.
    """
    text = data.get("prompt", data.get("task", prompt))
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST_PROMPT:
        raise InputError(f"prompt: expected up to {LONGEST_PROMPT} characters of text, got {str(text)[:60]!r}")
    if "images" in data and "state" in data:
        images, state = _aloha(contract.robot, data)
    elif "qpos" in data:
        images, state = _molmospaces(contract.robot, data)
    elif "observation/state" in data:
        images, state = _libero(contract.robot, data)
    elif "observation/image" in data:
        images, state = _composed(contract, data, pictures)
    else:
        images, state = _by_name(contract.robot, data)
    return Observation(_fitted(contract.robot, images, pictures), state, text)


def _by_name(robot: RobotSpec, data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    named = {key.removeprefix(PREFIX): value for key, value in data.items() if key.startswith(PREFIX)}
    if "exterior_image_0_left" in named:  # counted from 0
        named = {_counted_from_one(name): value for name, value in named.items()}
    images = {c.name: named[c.name] for c in robot.cameras if c.name in named}
    state = {f.name: _vector(f.name, named[f.name]) for f in robot.state if f.name in named}
    if not images and not state:
        known = [PREFIX + name for name in (*(c.name for c in robot.cameras), *(f.name for f in robot.state))]
        raise InputError(f"observation: found none of {known}; got the keys {sorted(map(str, data))[:20]}")
    return images, state


def _counted_from_one(name: str) -> str:
    parts = name.split("_")
    if parts[:2] == ["exterior", "image"] and len(parts) == 4 and parts[2].isdigit():
        parts[2] = str(int(parts[2]) + 1)
    return "_".join(parts)


def _composed(contract: Contract, data: Mapping[str, Any], pictures: Pictures) -> tuple[dict[str, Any], dict[str, Any]]:
    """The canvas taken apart: each place's pixels, repeated where the place is a whole fraction of the camera's size,
    so that composing again gives the same canvas."""
    canvas, robot = contract.model.canvas, contract.robot
    picture = _picture("observation/image", data["observation/image"])
    height, width = (
        (canvas.composed.height, canvas.composed.width) if canvas.composed else (canvas.height, canvas.width)
    )
    if pictures == "resized" and picture.shape[0] * width == picture.shape[1] * height:
        picture = _resized(picture, height, width)
    if picture.shape[:2] != (height, width):
        raise InputError(f"observation/image: expected the composed {height}x{width} picture, got {picture.shape[:2]}")
    images = {}
    for place in canvas.placements:
        camera, to = robot.camera(place.camera), place.to
        part = picture[to.top : to.top + to.height, to.left : to.left + to.width]
        rows, columns = camera.height / to.height, camera.width / to.width
        if rows != columns or rows != int(rows):
            raise InputError(f"observation/image: {place.camera!r} cannot be taken out of a composed picture exactly")
        images[place.camera] = part.repeat(int(rows), 0).repeat(int(columns), 1)
    _, state = _by_name(robot, data)
    return images, state


def _libero(robot: RobotSpec, data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    numbers = _vector("observation/state", data["observation/state"])
    if numbers.shape != (8,):
        raise InputError(f"observation/state: expected 8 numbers (place, axis-angle, fingers), got {numbers.shape}")
    images = {name: _picture(key, data[key])[:, ::-1] for key, name in LIBERO_CAMERAS.items() if key in data}
    parts: dict[str, Any] = {}
    for field in robot.state:
        if field.rotation is not None:
            parts[field.name] = np.ravel(convert(numbers[3:6], "rotvec_robosuite", field.rotation))
        elif field.kind == "position" and field.width == 3:
            parts[field.name] = numbers[:3]
        elif field.kind == "gripper" and field.width == 2:
            parts[field.name] = numbers[6:]
    return images, parts


def _aloha(robot: RobotSpec, data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    if not isinstance(data["images"], Mapping):
        raise InputError(f"images: expected a map from camera to picture, got {type(data['images']).__name__}")
    numbers = _vector("state", data["state"])
    if numbers.shape != (robot.state_width,):
        raise InputError(f"state: expected {robot.state_width} numbers, got {numbers.shape}")
    images = {c.name: data["images"][c.name] for c in robot.cameras if c.name in data["images"]}
    return images, _split(robot, numbers)


def _molmospaces(robot: RobotSpec, data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    qpos = data["qpos"]
    if not isinstance(qpos, Mapping) or "arm" not in qpos or "gripper" not in qpos:
        raise InputError("qpos: expected a map with arm and gripper")
    sent = {k: v for k, v in data.items() if isinstance(v, np.ndarray) and v.ndim == 3}
    wrist = [v for k, v in sent.items() if "wrist" in k]
    others = [v for k, v in sent.items() if "wrist" not in k]
    images: dict[str, Any] = {}
    for camera in robot.cameras:
        pool = wrist if "wrist" in camera.name else others
        if pool:
            images[camera.name] = pool.pop(0) if len(pool) > 1 else pool[0]
    fingers = _vector("qpos gripper", qpos["gripper"])
    if fingers.ndim != 1 or not fingers.size:
        raise InputError(f"qpos gripper: expected the joint of each finger, got {fingers.shape}")
    finger = float(fingers[0])
    state = {"joint_position": _vector("qpos arm", qpos["arm"])}
    state["gripper_position"] = np.array([np.clip(finger / MOLMOSPACES_CLOSED, 0.0, 1.0)])
    return images, state


MOLMOSPACES_CLOSED: Final = 0.824033
"""Finger joint of MolmoSpaces' Robotiq hand when closed, radians."""


def _split(robot: RobotSpec, numbers: NDArray[np.float64]) -> dict[str, Any]:
    ends = np.cumsum([f.width for f in robot.state])
    return dict(zip((f.name for f in robot.state), np.split(numbers, ends[:-1]), strict=True))


def read_gr00t(contract: Contract, observation: Mapping[str, Any], pictures: Pictures) -> Observation:
    """A GR00T observation, flat (``video.x``) or nested, as one of ``contract.robot``; one batch only."""
    flat: dict[str, Any] = {}
    for group, value in observation.items():
        if isinstance(value, Mapping):
            flat |= {f"{group}.{name}": part for name, part in value.items()}
        else:
            flat[str(group)] = value
    robot = contract.robot
    images = {c.name: _newest(f"video.{c.name}", flat, 5) for c in robot.cameras if f"video.{c.name}" in flat}
    state = {f.name: _newest(f"state.{f.name}", flat, 3) for f in robot.state if f"state.{f.name}" in flat}
    words = [value for key, value in flat.items() if key.startswith(("annotation.", "language."))]
    text: Any = words[0] if words else ""
    while isinstance(text, list) and text:
        text = text[0]
    if not isinstance(text, str) or not text.strip():
        raise InputError("language: found no instruction; expected a key annotation... or language... with text")
    return Observation(_fitted(robot, images, pictures), state, text)


def _newest(key: str, flat: Mapping[str, Any], axes: int) -> Any:
    value = flat[key]
    if not isinstance(value, np.ndarray) or value.ndim != axes or value.shape[0] != 1 or not value.shape[1]:
        seen = value.shape if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"{key}: expected an array of {axes} axes with a batch of 1, got {seen}")
    return value[0, -1]


def _vector(name: str, value: Any) -> NDArray[np.float64]:
    try:
        raw = np.atleast_1d(np.asarray(value))
    except ValueError as error:  # rows of different lengths
        raise InputError(f"{name}: expected numbers, got {type(value).__name__}") from error
    if raw.dtype.kind not in "iuf":  # neither text nor truth values nor complex numbers are quietly made numbers
        raise InputError(f"{name}: expected numbers, got {raw.dtype} {raw.shape}")
    return raw.astype(np.float64)


def _picture(name: str, value: Any) -> Image:
    if not isinstance(value, np.ndarray) or value.ndim != 3 or value.dtype != np.uint8:
        seen = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"{name}: expected uint8 (H, W, 3), got {seen}")
    return _colour_last(value)


def _colour_last(value: NDArray[np.uint8]) -> Image:
    colour_first = value.shape[0] == 3 and value.shape[2] != 3
    return np.ascontiguousarray(value.transpose(1, 2, 0)) if colour_first else value


def _fitted(robot: RobotSpec, images: Mapping[str, Any], pictures: Pictures) -> dict[str, Image]:
    found = {}
    for name, value in images.items():
        image, camera = _picture(name, value), robot.camera(name)
        if image.shape[:2] != (camera.height, camera.width) and pictures == "resized":
            image = _resized(image, camera.height, camera.width)
        found[name] = np.ascontiguousarray(image)
    return found


def _resized(image: Image, height: int, width: int) -> Image:
    """``image`` without the bars that a letterbox to its size put around a picture of height x width, brought to it."""
    have_h, have_w = image.shape[:2]
    scale = min(have_h / height, have_w / width)
    inner_h, inner_w = max(1, round(height * scale)), max(1, round(width * scale))
    top, left = (have_h - inner_h) // 2, (have_w - inner_w) // 2
    inner = PILImage.fromarray(np.ascontiguousarray(image[top : top + inner_h, left : left + inner_w]))
    return np.asarray(inner.resize((width, height), PILImage.Resampling.BICUBIC))
