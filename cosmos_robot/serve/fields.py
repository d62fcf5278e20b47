"""Reading the fields of messages: each reader takes a name and a value and gives the value back, typed and checked."""

from __future__ import annotations

import io
import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage

from cosmos_robot.errors import WireError
from cosmos_robot.types import ActionChunk, Image, Observation

MAX_TEXT: Final = 20_000
MAX_PIXELS: Final = 50_000_000


def optional(read: Any) -> Any:
    return lambda name, value: None if value is None else read(name, value)


def whole(what: str, least: int, most: int) -> Any:
    def read(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
            raise WireError(f"{what}: expected a whole number from {least} to {most}, got {value!r}")
        return int(value)

    return read


def text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise WireError(f"{name}: expected text of at most {MAX_TEXT} characters, got {type(value).__name__}")
    return value


def truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise WireError(f"{name}: expected true or false, got {value!r}")
    return value


def seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise WireError(f"{name}: expected seconds from 0, got {value!r}")
    return float(value)


def mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise WireError(f"{name}: expected a map with text keys, got {type(value).__name__}")
    return value


def sequence(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise WireError(f"{name}: expected a list, got {type(value).__name__}")
    return value


def rows(name: str, value: Any) -> NDArray[np.float64]:
    if not isinstance(value, np.ndarray) or value.ndim != 2 or value.dtype.kind not in "iuf" or 0 in value.shape:
        raise WireError(f"{name}: expected a numeric array (k, D) with k, D >= 1, got {_seen(value)}")
    if not np.isfinite(value).all():
        raise WireError(f"{name}: holds numbers that are not finite")
    return value.astype(np.float64)


def frames(name: str, value: Any) -> NDArray[np.uint8]:
    if not isinstance(value, np.ndarray) or value.ndim != 4 or value.dtype != np.uint8 or value.shape[3] != 3:
        raise WireError(f"{name}: expected uint8 (T, H, W, 3), got {_seen(value)}")
    return value


def _seen(value: Any) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def observation(name: str, value: Any) -> Observation:
    fields = mapping(name, value)
    if extra := sorted(set(fields) - {"images", "state", "instruction", "time", "history"}):
        raise WireError(f"{name}: unknown fields {extra}")
    images = {key: image(key, sent) for key, sent in mapping("images", fields.get("images", {})).items()}
    time = fields.get("time", 0.0)
    if isinstance(time, bool) or not isinstance(time, int | float) or not math.isfinite(time):
        raise WireError(f"{name}: time is {time!r}, expected seconds")
    state = mapping("state", fields.get("state", {}))
    history = optional(rows)("history", fields.get("history"))
    return Observation(images, state, text("instruction", fields.get("instruction")), float(time), history)


def image(name: str, value: Any) -> Any:
    return from_jpeg(name, value["jpeg"]) if isinstance(value, dict) and list(value) == ["jpeg"] else value


def to_jpeg(image: Image, quality: int) -> bytes:
    """``image`` (H, W, 3) uint8 as a JPEG file, colours not subsampled."""
    file = io.BytesIO()
    PILImage.fromarray(image).save(file, "JPEG", quality=quality, subsampling=0)
    return file.getvalue()


def from_jpeg(name: str, data: Any) -> Image:
    """The picture in a JPEG file. Raises WireError if it is none, or of more than 50 million pixels."""
    if not isinstance(data, bytes):
        raise WireError(f"image {name!r}: expected the bytes of a JPEG file, got {type(data).__name__}")
    try:
        with PILImage.open(io.BytesIO(data), formats=["JPEG"]) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise WireError(f"image {name!r}: {picture.width}x{picture.height} pixels are too many")
            return np.array(picture.convert("RGB"))
    except (OSError, SyntaxError, PILImage.DecompressionBombError) as error:
        raise WireError(f"image {name!r}: no JPEG that can be read: {error}") from error


def chunk(name: str, value: Any) -> ActionChunk:
    fields = mapping(name, value)
    if set(fields) != {"values", "rate_hz", "start_time", "source", "info"}:
        raise WireError(f"{name}: expected values, rate_hz, start_time, source and info, got {sorted(fields)}")
    try:
        return ActionChunk(**fields)
    except (TypeError, ValueError) as error:
        raise WireError(f"{name}: {error}") from error
