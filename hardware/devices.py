"""Cameras by device or address, read through PyAV: what ``--cameras NAME=SOURCE`` names."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cosmos_robot.contract import CameraSpec, Contract
from cosmos_robot.errors import DependencyError, InputError, RobotError, UnknownNameError
from cosmos_robot.hardware.cameras import Camera, ThreadedCamera
from cosmos_robot.types import Image

FIRST_PICTURE_S: Final = 10.0
READ_S: Final = 2.0
"""How long a network camera may be silent before it is connected anew."""
SCHEMES: Final = ("rtsp", "rtsps", "rtmp", "http", "https", "udp", "tcp", "srt")
FORM: Final = (
    "NAME=SOURCE, where SOURCE is the number of a video device, /dev/... or an address such as rtsp://HOST/..."
)


def named_sources(words: Sequence[str], cameras: Sequence[CameraSpec], robot: str) -> dict[str, str]:
    """``NAME=SOURCE`` each, as a mapping; ``cameras`` are those that ``robot`` can have. Raises InputError for another
    form, for a name or a source given twice, for a robot whose cameras are its own, UnknownNameError for a name that is
    not the robot's."""
    if words and not cameras:
        raise InputError(f"cameras: robot {robot!r} has cameras of its own; leave --cameras out")
    found: dict[str, str] = {}
    for word in words:
        name, given, source = word.partition("=")
        if not (name and given and source):
            raise InputError(f"cameras: expected {FORM}, got {word!r}")
        if name not in (known := [c.name for c in cameras]):
            raise UnknownNameError(f"camera of {robot}", name, known)
        if name in found:
            raise InputError(f"cameras: {name!r} is given twice: {found[name]} and {source}")
        if source in found.values():
            raise InputError(f"cameras: {source} is given to two cameras; each needs a source of its own")
        _opening(source)
        found[name] = source
    return found


def require_cameras(contract: Contract, robot: str, given: Mapping[str, str]) -> None:
    """Raise InputError naming the cameras that the policy looks at and nobody gave a source for."""
    missing = [c.name for c in contract.robot.cameras if c.name not in given]
    if missing:
        example = " ".join(f"{name}={number}" for number, name in enumerate(missing))
        raise InputError(
            f"cameras: {contract.model.name} wants {missing}, and nobody says where {robot!r} has them; name the "
            f"device or address of each, for instance --cameras {example}"
        )


@contextlib.contextmanager
def opened(
    cameras: Sequence[CameraSpec], sources: Mapping[str, str], patience_s: float = FIRST_PICTURE_S
) -> Iterator[dict[str, Camera]]:
    """The camera of each name, each with a first picture of the right size; closed at the end. Raises RobotError naming
    the camera that has none within ``patience_s``, DependencyError without PyAV."""
    if not sources:
        yield {}
        return
    try:
        import av  # noqa: F401
    except ModuleNotFoundError as error:
        raise DependencyError("cameras are read through PyAV: pip install 'av>=12'") from error
    specs = {c.name: c for c in cameras}
    made: dict[str, ThreadedCamera] = {}
    try:
        for name, source in sources.items():
            reader = Reader(specs[name], source)
            made[name] = ThreadedCamera(name, reader.read, reader.release)
        for camera in made.values():
            camera.wait(patience_s)
        yield dict(made)
    finally:
        for camera in made.values():
            camera.close()


class Reader:
    """Pictures of one source, one after another. It is opened at the first reading, and again after a fault.

    spec: the size its pictures must have; one of another size is an error, since nobody said how to make them fit.
    """

    def __init__(self, spec: CameraSpec, source: str):
        self._spec, self._source = spec, source
        self._container: Any = None
        self._frames: Iterator[Any] | None = None

    def read(self) -> Image:
        """The next picture, RGB uint8 (H, W, 3). Raises RobotError when there is none, or one of another size."""
        import av

        try:
            if self._frames is None:
                self._open()
            assert self._frames is not None
            frame = next(self._frames)
        except StopIteration:
            self.release()
            raise RobotError(f"{self._source} has ended") from None
        except (av.FFmpegError, OSError) as error:
            self.release()
            raise RobotError(f"{self._source}: {error}") from error
        wanted = (self._spec.height, self._spec.width)
        if (frame.height, frame.width) != wanted:
            self.release()
            raise RobotError(
                f"{self._source} gives pictures of {frame.height}x{frame.width}, {wanted[0]}x{wanted[1]} (height x "
                "width) expected; set the camera to that mode"
            )
        picture: Image = frame.to_ndarray(format="rgb24")
        return picture

    def release(self) -> None:
        """Let go of the device. Safe to call twice."""
        container, self._container, self._frames = self._container, None, None
        if container is not None:
            container.close()

    def _open(self) -> None:
        import av

        file, kind, options = _opening(self._source)
        size = {"video_size": f"{self._spec.width}x{self._spec.height}"} if kind else {}
        self._container = av.open(file, format=kind, options={**options, **size}, timeout=(FIRST_PICTURE_S, READ_S))
        if not self._container.streams.video:
            raise OSError("no video in it")
        self._frames = iter(self._container.decode(video=0))


def _opening(source: str) -> tuple[str, str | None, dict[str, str]]:
    """What PyAV opens, the format to say (a device's only), and options. Raises InputError for neither device nor
    address."""
    scheme, address, _ = source.partition("://")
    if address and scheme in SCHEMES:
        transport = {"rtsp_transport": "tcp"} if scheme.startswith("rtsp") else {}
        return source, None, {"fflags": "nobuffer", "flags": "low_delay", **transport}
    device = f"/dev/video{source}" if source.isascii() and source.isdigit() else source
    if not device.startswith("/dev/"):
        raise InputError(f"cameras: {source!r} is no camera; expected {FORM} ({', '.join(SCHEMES)})")
    if sys.platform != "linux":
        raise InputError(f"cameras: devices are read through Linux's Video4Linux; give {source!r} as an address")
    return device, "v4l2", {}
