"""A live view of a run in rerun, where its package is installed."""

from __future__ import annotations

from typing import Any

from cosmos_robot.errors import DependencyError
from cosmos_robot.hardware.aside import Aside
from cosmos_robot.hardware.gate import columns
from cosmos_robot.hardware.loop import Tick
from cosmos_robot.hardware.robot import Robot
from cosmos_robot.types import Image


class LiveView(Aside[dict[str, Image]]):
    """Opens rerun's viewer and shows commands, states, lateness, and the pictures that the policy was sent.

    Raises DependencyError without ``rerun-sdk``.
    """

    def __init__(self, robot: Robot, patient: bool = False):
        try:
            import rerun
        except ImportError as error:
            raise DependencyError("a live view needs the package rerun-sdk: pip install rerun-sdk") from error
        self._rerun: Any = rerun
        self._names = columns(robot.robot)
        self._cameras = tuple(camera.name for camera in robot.robot.cameras)
        rerun.init(f"cosmos-robot {robot.robot.name}", spawn=True)
        super().__init__(patient)

    def _wanted(self, asked: bool) -> tuple[str, ...]:
        return self._cameras if asked else ()

    def _look(self, tick: Tick) -> dict[str, Image]:
        return self._pictures(tick)

    def _take(self, tick: Tick, seen: dict[str, Image]) -> None:
        rerun = self._rerun
        rerun.set_time("loop", duration=tick.time)
        rerun.log("late_ms", rerun.Scalars([tick.late_s * 1e3]))
        if tick.sent is not None:
            for name, value in zip(self._names, tick.sent.values, strict=True):
                rerun.log(f"action/{name}", rerun.Scalars([value]))
        if tick.hold:
            rerun.log("holds", rerun.TextLog(tick.hold))
        if tick.observation is not None:
            for name, values in tick.observation.state.items():
                rerun.log(f"state/{name}", rerun.Scalars(values))
        for name, picture in seen.items():
            rerun.log(f"camera/{name}", rerun.Image(picture))
