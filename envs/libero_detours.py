"""What a demonstrator's commands go through before the robot gets them: disturbances, and detours from the task.

An expert's commands follow from what is seen, so a world model that sees nothing else need not look at them. On a
detour the robot is told things that have nothing to do with the scene, and the expert goes on from where that led.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.actions.noise import OF_ROTATIONS, correlated
from cosmos_robot.envs.experts import CLOSED, OPEN

NOISE_LEVELS = (0.0, 0.1, 0.2)
KINDS = {"stop": 0.2, "straight": 0.35, "wander": 0.2, "again": 0.25}
"""Detours by share. stop: stand still. straight: one direction and turn. wander: correlated noise. again: what the
expert wanted at another moment of this episode, in its order or backwards."""
DETOUR_STEPS, EXPERT_STEPS = (8, 20), (6, 30)
"""How many control steps a detour lasts, and the expert after it, drawn evenly."""
GRIPPER_SHARE = 0.15
"""Of detours on which the gripper is told the opposite, too."""
_SHARES = np.array([1, 1, 1, OF_ROTATIONS, OF_ROTATIONS, OF_ROTATIONS])


class Disturbance(Protocol):
    """Called once a control step."""

    def __call__(self, clean: NDArray[np.float64]) -> NDArray[np.float64]:
        """What is sent (7,) where the expert wants ``clean`` (7,); both within -1 and 1."""


class Noise:
    """Correlated noise of a level drawn per episode; the gripper is left alone."""

    def __init__(self, rng: np.random.Generator):
        self._rng, self.level, self._now = rng, float(rng.choice(NOISE_LEVELS)), np.zeros(6)

    def __call__(self, clean: NDArray[np.float64]) -> NDArray[np.float64]:
        self._now = correlated(self._now, self._rng.normal(0, self.level, 6) * _SHARES)
        return np.clip(clean + np.append(self._now, 0), -1, 1)

    def __str__(self) -> str:
        return f"noise {self.level}"


class Detours:
    """The expert with ``Noise``, and every now and then a detour of a kind in ``KINDS``."""

    def __init__(self, rng: np.random.Generator):
        self._rng, self._noise, self._wanted = rng, Noise(rng), []
        self._detour: list[NDArray[np.float64]] = []
        self._left, self.count = self._pause(), 0

    def __call__(self, clean: NDArray[np.float64]) -> NDArray[np.float64]:
        self._wanted.append(clean)
        if self._left == 0:
            self._detour, self._left = self._begin(clean), self._pause()
            self.count += 1
        if self._detour:
            return self._detour.pop(0)
        self._left -= 1
        return self._noise(clean)

    def __str__(self) -> str:
        return f"{self.count} detours, {self._noise}"

    def _pause(self) -> int:
        return int(self._rng.integers(EXPERT_STEPS[0], EXPERT_STEPS[1] + 1))

    def _begin(self, clean: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        steps = int(self._rng.integers(DETOUR_STEPS[0], DETOUR_STEPS[1] + 1))
        kind = str(self._rng.choice(list(KINDS), p=list(KINDS.values())))
        moves = getattr(self, f"_{kind}")(steps)
        gripper = clean[6]
        if self._rng.random() < GRIPPER_SHARE:
            gripper = OPEN + CLOSED - gripper
        return [np.append(move, gripper) for move in np.clip(moves, -1, 1)]

    def _stop(self, steps: int) -> NDArray[np.float64]:
        return np.zeros((steps, 6))

    def _straight(self, steps: int) -> NDArray[np.float64]:
        direction = self._rng.normal(size=3)
        direction *= self._rng.uniform(0.2, 1) / np.abs(direction).max()
        turn = self._rng.normal(0, OF_ROTATIONS / 3, 3)
        return np.tile(np.concatenate([direction, turn]), (steps, 1))

    def _wander(self, steps: int) -> NDArray[np.float64]:
        scale = self._rng.uniform(0.3, 0.9) * _SHARES
        moves = [np.zeros(6)]
        for drawn in self._rng.normal(0, scale, (steps, 6)):
            moves.append(correlated(moves[-1], drawn))
        return np.array(moves[1:])

    def _again(self, steps: int) -> NDArray[np.float64]:
        wanted = np.array(self._wanted)[:, :6]
        at = np.arange(steps) + self._rng.integers(len(wanted))
        moves = wanted[at % len(wanted)]
        return moves if self._rng.random() < 0.5 else -moves[::-1]
