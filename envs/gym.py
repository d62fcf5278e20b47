"""A ``RobotEnv`` as a plain gymnasium environment, for libraries that expect arrays rather than typed observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium

from cosmos_robot.envs.base import RobotEnv
from cosmos_robot.errors import InputError
from cosmos_robot.types import Image, Observation


class GymEnv(gymnasium.Env):
    """Observations are ``{"images": {camera: (H, W, 3) uint8}, "state": {field: (D,) float64}}``.

    Every camera in ``cameras`` (None: all of them) is drawn at every step, so name only those you read; with none, the
    key "images" is absent. ``render()`` draws ``view``, the first camera of the robot unless told otherwise. The
    instruction is in ``info`` of ``reset``. Closing this closes ``env``.
    """

    def __init__(self, env: RobotEnv, cameras: Sequence[str] | None = None, view: str | None = None):
        specs = env.robot.cameras if cameras is None else tuple(env.robot.camera(name) for name in cameras)
        if view is None and not env.robot.cameras:
            raise InputError(f"{env.robot.name} has no camera to render")
        self.env = env
        self.cameras = tuple(spec.name for spec in specs)
        self.view = env.robot.camera(view).name if view else env.robot.cameras[0].name
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": env.robot.rate_hz}
        self.render_mode = "rgb_array"
        self.action_space = env.action_space
        images = gymnasium.spaces.Dict({name: env.observation_space["images"][name] for name in self.cameras})
        parts = {"images": images} if self.cameras else {}
        self.observation_space = gymnasium.spaces.Dict({**parts, "state": env.observation_space["state"]})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start an episode. Returns (observation, info)."""
        super().reset(seed=seed)
        observation, info = self.env.reset(seed=seed, options=options)
        return self._arrays(observation), info

    def step(self, action):
        """One control step. Returns (observation, reward, terminated, truncated, info)."""
        observation, *rest = self.env.step(action)
        return self._arrays(observation), *rest

    def render(self) -> Image:
        """The picture of ``view``, now."""
        return self.env.render_camera(self.view)

    def close(self) -> None:
        self.env.close()

    def _arrays(self, observation: Observation) -> dict[str, Any]:
        images = {name: observation.images[name] for name in self.cameras}
        parts = {"images": images} if images else {}
        return {**parts, "state": dict(observation.state)}
