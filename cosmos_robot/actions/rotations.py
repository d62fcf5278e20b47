"""Rotations under explicit names, each conversion named at both ends. scipy does the mathematics.

quat_xyzw, quat_wxyz: quaternions, scalar last or first.
rotvec: axis times angle, the shortest one (0..pi) wherever it is the result.
rotvec_robosuite: axis times angle as robosuite and LIBERO report it: 2 acos(w), in 0..2 pi, no shortest turn, so that
    q and -q give two vectors; zero at |w| = 1 (``quat2axisangle`` in robosuite's ``utils/transform_utils.py``).
euler_xyz: roll, pitch, yaw about the fixed axes x, y, z.
rot6d: the first two columns of the matrix, one after the other. rot9d: the matrix row by row. matrix: (3, 3).

All angles are in radians. A matrix takes a vector of the rotated frame to the frame it is given in.
"""

from __future__ import annotations

import warnings
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

from cosmos_robot.contract import ROTATION_WIDTHS, RotationFormat
from cosmos_robot.errors import InputError, UnknownNameError

MATRIX_LIKE: Final = ("matrix", "rot6d", "rot9d")
SMALLEST_QUATERNION: Final = 1e-8
FLATTEST_MATRIX: Final = 1e-6
Rot6dLayout = Literal["columns", "interleaved"]


class Rotations:
    """Rotations without a format: numbers go in and come out only under the name of one.

    Two of them compose with ``@``; plain arrays do not, so a rotation vector is never taken for Euler angles.
    """

    def __init__(self, rotation: Rotation, shape: tuple[int, ...]):
        """``rotation`` holds prod(shape) rotations; ``of`` makes one from named numbers."""
        self._rotation = rotation
        self.shape = shape

    @classmethod
    def of(cls, values: ArrayLike, source: RotationFormat) -> Rotations:
        """(..., width) numbers in format ``source``; matrix: (..., 3, 3). Matrices, rot6d and rot9d are projected
        onto the nearest proper rotation. Raises InputError for a wrong width, numbers that are not finite, and
        numbers that are near no rotation (a zero quaternion, parallel columns)."""
        x = checked(values, source)
        if source in MATRIX_LIKE:
            rotation = Rotation.from_matrix(nearest_rotation(unpacked(x, source)).reshape(-1, 3, 3))
            return cls(rotation, x.shape[:-2] if source == "matrix" else x.shape[:-1])
        flat = x.reshape(-1, x.shape[-1])
        if source in ("quat_xyzw", "quat_wxyz"):
            norms = np.linalg.norm(flat, axis=-1)
            if (norms < SMALLEST_QUATERNION).any():
                raise InputError(f"{source}: quaternion {int(norms.argmin())} has length {norms.min():.1e}; 1 expected")
            rotation = Rotation.from_quat(np.roll(flat, -1, axis=-1) if source == "quat_wxyz" else flat)
        elif source == "euler_xyz":
            rotation = Rotation.from_euler("xyz", flat)
        else:
            rotation = Rotation.from_rotvec(flat)
        return cls(rotation, x.shape[:-1])

    def to(self, target: RotationFormat) -> NDArray[np.float64]:
        """shape + (width,) numbers in format ``target``; matrix: shape + (3, 3)."""
        require_format(target)
        if target in MATRIX_LIKE:
            return packed(np.asarray(self._rotation.as_matrix()).reshape(*self.shape, 3, 3), target)
        if target in ("quat_xyzw", "quat_wxyz"):
            out = np.roll(self._rotation.as_quat(), 1 if target == "quat_wxyz" else 0, axis=-1)
        elif target == "euler_xyz":
            out = _euler(self._rotation)
        elif target == "rotvec":
            out = self._rotation.as_rotvec()
        else:
            out = _robosuite_axis_angle(self._rotation.as_quat())
        return np.asarray(out, dtype=np.float64).reshape(*self.shape, -1)

    def inverse(self) -> Rotations:
        """Each rotation turned back."""
        return Rotations(self._rotation.inv(), self.shape)

    def __matmul__(self, other: Rotations) -> Rotations:
        """Apply ``other`` in this rotation's own frame; shapes broadcast as those of arrays do."""
        if not isinstance(other, Rotations):
            raise InputError(
                f"rotations compose with rotations, got {type(other).__name__}; name its format: Rotations.of(...)"
            )
        product = self.to("matrix") @ other.to("matrix")
        return Rotations(Rotation.from_matrix(product.reshape(-1, 3, 3)), product.shape[:-2])

    def __array__(self, *_: object, **__: object) -> NDArray[np.float64]:
        raise InputError("a rotation has no numbers of its own; name a format: rotations.to('rotvec')")


def convert(
    values: ArrayLike, source: RotationFormat, target: RotationFormat, *, project: bool = True
) -> NDArray[np.float64]:
    """(..., width) rotations from one format to another; matrix: (..., 3, 3). ``values`` is not changed.

    Between quaternions and ``rotvec_robosuite`` the sign of the quaternion is kept.
    project: make matrices, rot6d and rot9d proper rotations first (SVD). Without it they pass to one another as they
    are, a third column being the cross product of the first two; every other target is a proper rotation anyway.
    Raises InputError as ``Rotations.of`` does, UnknownNameError for a format of another name.
    """
    if not project and source in MATRIX_LIKE:
        matrix = unpacked(checked(values, source), source)
        if target in MATRIX_LIKE:
            return packed(matrix, target)
        if (np.linalg.det(matrix) <= 0).any():
            raise InputError(f"{source}: a matrix with determinant <= 0 is no rotation; project it, or name rot9d")
        # scipy orthogonalises, which is the same projection
        values, source = matrix, "matrix"
    return Rotations.of(values, source).to(target)


def checked(values: ArrayLike, source: RotationFormat) -> NDArray[np.float64]:
    """``values`` as float64 in the shape that ``source`` asks for. Raises InputError or UnknownNameError."""
    require_format(source)
    try:
        x = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{source}: not an array of numbers: {error}") from error
    tail = (3, 3) if source == "matrix" else (ROTATION_WIDTHS[source],)
    if x.shape[max(0, x.ndim - len(tail)) :] != tail:
        raise InputError(f"{source}: expected (..., {', '.join(map(str, tail))}), got {x.shape}")
    if not np.isfinite(x).all():
        raise InputError(f"{source}: numbers at {np.argwhere(~np.isfinite(x))[0].tolist()} are not finite")
    return x


def require_format(name: str) -> None:
    """Raises UnknownNameError with the nearest names unless ``name`` is a rotation format."""
    if name not in ROTATION_WIDTHS:
        raise UnknownNameError("rotation format", name, ROTATION_WIDTHS)


def nearest_rotation(matrix: ArrayLike) -> NDArray[np.float64]:
    """(..., 3, 3) to the proper rotations nearest to them (orthogonal Procrustes, determinant +1).

    Raises InputError where no nearest one exists: a matrix of rank below 2, such as rot6d with parallel columns.
    """
    m = checked(matrix, "matrix")
    u, size, vt = np.linalg.svd(m)
    flat = size[..., 1] <= FLATTEST_MATRIX * np.maximum(size[..., 0], FLATTEST_MATRIX)
    if flat.any():
        raise InputError(
            f"matrix {np.argwhere(flat)[0].tolist()} is near no rotation: its columns are zero or parallel"
        )
    u[..., :, 2] *= np.sign(np.linalg.det(u) * np.linalg.det(vt))[..., None]
    return np.asarray(u @ vt)


def unpacked(x: NDArray[np.float64], source: str) -> NDArray[np.float64]:
    """matrix, rot9d or rot6d numbers to (..., 3, 3), not projected. The third column of rot6d is the cross product
    of the two that are given, their lengths included."""
    if source == "matrix":
        return x
    if source == "rot9d":
        return x.reshape(*x.shape[:-1], 3, 3)
    first, second = x[..., :3], x[..., 3:]
    return np.stack([first, second, np.cross(first, second)], axis=-1)


def packed(matrix: NDArray[np.float64], target: str) -> NDArray[np.float64]:
    """(..., 3, 3) to matrix, rot9d or rot6d numbers."""
    if target == "matrix":
        return matrix
    if target == "rot9d":
        return matrix.reshape(*matrix.shape[:-2], 9)
    return np.concatenate([matrix[..., :, 0], matrix[..., :, 1]], axis=-1)


def rot6d_residuals(values: ArrayLike) -> dict[Rot6dLayout, NDArray[np.float64]]:
    """How far (..., 6) numbers are from orthonormal columns, read column after column and read as the interleaved
    rows of a (3, 2) matrix: the largest of | |a|^2 - 1 |, | |b|^2 - 1 | and |a.b|, for each rotation (...)."""
    x = checked(values, "rot6d")
    readings: dict[Rot6dLayout, NDArray[np.float64]] = {"columns": x, "interleaved": rot6d_from_interleaved(x)}

    def residual(six: NDArray[np.float64]) -> NDArray[np.float64]:
        a, b = six[..., :3], six[..., 3:]
        products = np.stack([(a * a).sum(-1) - 1, (b * b).sum(-1) - 1, (a * b).sum(-1)])
        return np.asarray(np.abs(products).max(axis=0))

    return {layout: residual(six) for layout, six in readings.items()}


def rot6d_from_interleaved(values: ArrayLike) -> NDArray[np.float64]:
    """(..., 6) numbers that hold a (3, 2) matrix row by row, to rot6d (column after column)."""
    x = checked(values, "rot6d")
    return np.ascontiguousarray(x.reshape(*x.shape[:-1], 3, 2).swapaxes(-1, -2)).reshape(x.shape)


def require_rot6d_columns(values: ArrayLike, tolerance: float = 0.1) -> None:
    """Raises InputError if (..., 6) numbers are not column-contiguous rot6d within ``tolerance``, and says when they
    are of the interleaved layout. For data and statistics, not for a network's free output."""
    residuals = {layout: float(np.median(r)) for layout, r in rot6d_residuals(values).items()}
    if residuals["columns"] <= tolerance:
        return
    found = f"orthonormality residual {residuals['columns']:.2g} read by columns"
    if residuals["interleaved"] <= tolerance:
        raise InputError(
            f"rot6d: {found}, {residuals['interleaved']:.2g} read interleaved; these numbers are interleaved, "
            "reorder them with rot6d_from_interleaved"
        )
    raise InputError(
        f"rot6d: {found}, expected at most {tolerance:g}; are these numbers normalised, or another format?"
    )


def _euler(rotation: Rotation) -> NDArray[np.float64]:
    """scipy's angles; at gimbal lock the third is zero, without scipy's warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Gimbal lock")
        return np.asarray(rotation.as_euler("xyz"))


def _robosuite_axis_angle(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    w = np.clip(quaternion[..., 3:], -1.0, 1.0)
    sine = np.sqrt(1.0 - w * w)
    turned = sine > 0
    angle = np.where(turned, 2.0 * np.arccos(w), 0.0)
    return np.asarray(quaternion[..., :3] * angle / np.where(turned, sine, 1.0))
