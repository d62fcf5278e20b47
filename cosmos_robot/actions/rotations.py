"""Rotations under explicit names. scipy does the mathematics.

quat_xyzw: scalar last. rot6d: the first two columns of the matrix, one after the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation


def quat_xyzw_to_rot6d(quaternion: ArrayLike) -> NDArray[np.float64]:
    """(..., 4) scalar-last quaternions to (..., 6); q and -q give the same six numbers."""
    matrix = quat_xyzw_to_matrix(quaternion)
    return np.concatenate([matrix[..., :, 0], matrix[..., :, 1]], axis=-1)


def quat_xyzw_to_matrix(quaternion: ArrayLike) -> NDArray[np.float64]:
    """(..., 4) scalar-last quaternions to (..., 3, 3)."""
    q = np.asarray(quaternion, dtype=np.float64)
    return np.asarray(Rotation.from_quat(q.reshape(-1, 4)).as_matrix()).reshape(*q.shape[:-1], 3, 3)


def matrix_to_rotvec(matrix: ArrayLike) -> NDArray[np.float64]:
    """(3, 3) to the shortest rotation vector (3,), radians."""
    return np.asarray(Rotation.from_matrix(np.asarray(matrix, dtype=np.float64)).as_rotvec())
