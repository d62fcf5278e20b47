"""Cameras of real robots: the newest picture, at once, with the time it was taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from cosmos_robot.contract import RobotSpec
from cosmos_robot.errors import RobotError
from cosmos_robot.types import Image, check_image

OLDEST_S: Final = 0.5


class Camera(Protocol):
    """One camera."""

    def latest(self) -> tuple[Image, float]:
        """The newest picture, RGB uint8 (H, W, 3), and when it was taken on ``time.monotonic``; returns at once.
        Raises RobotError while there is none."""
        ...

    def close(self) -> None:
        """Let go of the camera. Safe to call twice."""
        ...


class ThreadedCamera:
    """A camera whose driver waits for each picture, read on a thread of its own.

    read: waits for the next picture and returns it, RGB uint8 (H, W, 3), upright. A picture's time is when ``read``
    returned it. release: called once at the end.
    """

    def __init__(self, name: str, read: Callable[[], Image], release: Callable[[], None] = lambda: None):
        self._name, self._read, self._release = name, read, release
        self._newest: tuple[Image, float] | None = None
        self._fault = "no picture has come yet"
        self._closing, self._told = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"camera {name}", daemon=True)
        self._thread.start()

    def latest(self) -> tuple[Image, float]:
        """The newest picture and its time."""
        newest = self._newest
        if newest is None:
            raise RobotError(f"camera {self._name!r}: {self._fault}; is it plugged in and free?")
        return newest

    def wait(self, timeout_s: float) -> None:
        """Until there is a picture. Raises RobotError at the driver's first fault, or after ``timeout_s``."""
        self._told.wait(timeout_s)
        self.latest()

    def close(self) -> None:
        """End the thread and release the driver; a driver that hangs is left behind."""
        self._closing.set()
        self._thread.join(1.0)

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                self._newest = (check_image(self._name, self._read()), time.monotonic())
            except Exception as error:  # noqa: BLE001 - a driver may raise anything; the next reading may work
                self._fault = f"{type(error).__name__}: {error}"
                self._told.set()
                self._closing.wait(0.1)
            else:
                self._told.set()
        self._release()


def fitted(spec: RobotSpec, cameras: Mapping[str, Camera]) -> RobotSpec:
    """``spec`` with the cameras there are. Raises ContractError for one that the spec does not name."""
    for name in cameras:
        spec.camera(name)
    return spec.model_copy(update={"cameras": tuple(c for c in spec.cameras if c.name in cameras)})


def pictures(cameras: Mapping[str, Camera], now: float, oldest_s: float = OLDEST_S) -> dict[str, Image]:
    """The newest picture of each camera. Raises RobotError naming a camera whose newest is older than ``oldest_s``: a
    policy would look at a scene that has passed."""
    found = {}
    for name, camera in cameras.items():
        found[name], taken = camera.latest()
        if now - taken > oldest_s:
            raise RobotError(f"camera {name!r}: its newest picture is {now - taken:.1f} s old; has it stopped?")
    return found
