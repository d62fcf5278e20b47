"""What the rotation and pose topics share: the reference's names for formats, and equality up to what is not unique."""

from __future__ import annotations

from typing import Any

import numpy as np
from golden_files import numbers

from cosmos_robot.actions.rotations import convert

FORMATS = {"axisangle": "rotvec"}
"""The reference's name to ours, where they differ."""

REFERENCES = {"backward_framewise": "framewise", "backward_anchored": "anchored"}


def our_format(name: str) -> str:
    return FORMATS.get(name, name)


def assert_same_rotation(got: Any, want: Any, rotation: str, tolerance: float) -> None:
    """Equal as rotations within ``tolerance``, and equal number by number where the format has one answer."""
    got, want = np.asarray(got), numbers(want)
    assert got.shape == want.shape
    if rotation in ("matrix", "rot6d", "rot9d"):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
        return
    matrices = [convert(x, rotation, "matrix") for x in (got, want)]
    np.testing.assert_allclose(*matrices, atol=tolerance)
    if rotation.startswith("quat"):
        sign = np.sign((got * want).sum(axis=-1, keepdims=True))
        np.testing.assert_allclose(got * sign, want, atol=tolerance)
        return
    unique = _unique(want, rotation)
    # Near a half turn and near gimbal lock float32 amplifies: an error of the matrix grows with the inverse distance.
    difference = got[unique] - want[unique]
    if rotation == "euler_xyz":
        difference = (difference + np.pi) % (2 * np.pi) - np.pi
    np.testing.assert_allclose(difference, 0, atol=100 * tolerance)


def _unique(x: np.ndarray, rotation: str) -> np.ndarray:
    """Which rotations have one rotation vector or one set of Euler angles, by a margin."""
    if rotation == "euler_xyz":
        return np.abs(np.cos(x[..., 1])) > 1e-2
    return np.pi - np.linalg.norm(x, axis=-1) > 1e-2
