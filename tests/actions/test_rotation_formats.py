"""Rotations: names that cannot be mixed up, robosuite's axis-angle, two layouts of rot6d, projection."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from cosmos_robot.actions.rotations import (
    Rotations,
    convert,
    nearest_rotation,
    require_rot6d_columns,
    rot6d_from_interleaved,
    rot6d_residuals,
)
from cosmos_robot.contract import ROTATION_WIDTHS
from cosmos_robot.errors import InputError, UnknownNameError

RNG = np.random.default_rng(7)
FORMATS = tuple(ROTATION_WIDTHS)


def random_quaternions(n: int) -> np.ndarray:
    q = RNG.standard_normal((n, 4))
    return q / np.linalg.norm(q, axis=1, keepdims=True)


@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize("target", FORMATS)
def test_every_pair_round_trips_in_any_batch_shape(source, target) -> None:
    matrix = Rotation.from_quat(random_quaternions(24)).as_matrix().reshape(2, 3, 4, 3, 3)
    numbers = convert(matrix, "matrix", source)
    back = convert(convert(numbers, source, target), target, "matrix")
    assert back.shape == matrix.shape
    np.testing.assert_allclose(back, matrix, atol=1e-9)
    one = convert(numbers[1, 2, 3], source, target)
    assert one.shape == ((3, 3) if target == "matrix" else (ROTATION_WIDTHS[target],))


def test_pc_01_robosuite_axis_angle_keeps_the_sign_of_the_quaternion() -> None:
    negative = np.array([0.9998, 0.0, 0.0, -0.02])
    before = negative.copy()
    np.testing.assert_allclose(convert(negative, "quat_xyzw", "rotvec_robosuite"), [3.182, 0, 0], atol=1e-3)
    np.testing.assert_allclose(convert(negative, "quat_xyzw", "rotvec"), [-3.102, 0, 0], atol=1e-3)
    np.testing.assert_array_equal(negative, before)


@pytest.mark.parametrize("w", [1.0, -1.0, 1 + 1e-9, -1 - 1e-9, np.nextafter(1, 0)])
def test_pc_01_no_nan_at_a_whole_turn(w) -> None:
    given = np.array([0.0, 0.0, 0.0, w])
    given.flags.writeable = False
    np.testing.assert_allclose(convert(given, "quat_xyzw", "rotvec_robosuite"), 0, atol=1e-7)


def test_pc_01_robosuite_form_is_smooth_where_w_crosses_zero() -> None:
    half = np.linspace(np.pi / 2 - 0.05, np.pi / 2 + 0.05, 21)
    quaternions = np.stack([np.sin(half), 0 * half, 0 * half, np.cos(half)], axis=1)
    np.testing.assert_allclose(convert(quaternions, "quat_xyzw", "rotvec_robosuite")[:, 0], 2 * half, atol=1e-12)
    assert np.abs(np.diff(convert(quaternions, "quat_xyzw", "rotvec")[:, 0])).max() > 6  # the shortest form jumps


def test_pc_01_equals_robosuite() -> None:
    transforms = pytest.importorskip("robosuite.utils.transform_utils")
    quaternions = random_quaternions(200)
    ours = convert(quaternions, "quat_xyzw", "rotvec_robosuite")
    np.testing.assert_allclose(ours, [transforms.quat2axisangle(q.copy()) for q in quaternions], atol=1e-12)
    assert (np.linalg.norm(ours, axis=1) > np.pi).any()
    np.testing.assert_allclose(convert(ours, "rotvec_robosuite", "quat_xyzw"), quaternions, atol=1e-9)


def test_pc_02_rotation_vectors_compose_as_rotation_vectors() -> None:
    delta, pose = np.array([0.4, -0.3, 0.5]), Rotation.from_quat(random_quaternions(1)[0])
    ours = Rotations.of(pose.as_quat(), "quat_xyzw") @ Rotations.of(delta, "rotvec")
    np.testing.assert_allclose(ours.to("matrix"), (pose * Rotation.from_rotvec(delta)).as_matrix(), atol=1e-12)
    as_euler = Rotations.of(pose.as_quat(), "quat_xyzw") @ Rotations.of(delta, "euler_xyz")
    assert np.abs(ours.to("matrix") - as_euler.to("matrix")).max() > 0.05


def test_pc_02_arrays_do_not_become_rotations_unnamed() -> None:
    rotation, delta = Rotations.of([0.1, 0.2, 0.3], "rotvec"), np.array([0.4, -0.3, 0.5])
    with pytest.raises(InputError, match=r"Rotations\.of"):
        rotation @ delta
    with pytest.raises(InputError, match="name a format"):
        delta + rotation
    with pytest.raises(InputError, match="name a format"):
        np.asarray(rotation)
    with pytest.raises(TypeError):
        convert(delta)  # both formats are named, or nothing happens


def test_inverse_undoes() -> None:
    rotations = Rotations.of(random_quaternions(5), "quat_wxyz")
    np.testing.assert_allclose((rotations @ rotations.inverse()).to("rotvec"), np.zeros((5, 3)), atol=1e-12)


def turn_37() -> np.ndarray:
    return Rotation.from_rotvec(np.radians(37) * np.array([1, 2, 3]) / np.sqrt(14)).as_matrix()


def test_pc_03_rot6d_is_column_after_column() -> None:
    matrix = turn_37()
    six = convert(matrix, "matrix", "rot6d")
    np.testing.assert_allclose(six, [*matrix[:, 0], *matrix[:, 1]], atol=1e-12)
    np.testing.assert_allclose(convert(six, "rot6d", "matrix"), matrix, atol=1e-12)


def test_pc_03_the_other_layout_is_found_by_its_residual() -> None:
    matrix = turn_37()
    interleaved = matrix[:, :2].reshape(6)
    residuals = rot6d_residuals(interleaved)
    assert residuals["columns"] > 0.1 > 1e-12 > residuals["interleaved"]
    with pytest.raises(InputError, match="interleaved"):
        require_rot6d_columns(np.tile(interleaved, (4, 1)))
    np.testing.assert_allclose(rot6d_from_interleaved(interleaved), convert(matrix, "matrix", "rot6d"))
    require_rot6d_columns(np.tile(rot6d_from_interleaved(interleaved), (4, 1)))
    with pytest.raises(InputError, match="another format"):
        require_rot6d_columns(np.full((4, 6), 0.1))


def test_pc_03_noisy_numbers_become_proper_rotations() -> None:
    noisy = convert(turn_37(), "matrix", "rot6d") + RNG.normal(0, 0.2, (50, 6))
    matrices = convert(noisy, "rot6d", "matrix")
    np.testing.assert_allclose(np.linalg.det(matrices), 1, atol=1e-12)
    np.testing.assert_allclose(matrices @ matrices.swapaxes(-1, -2), np.tile(np.eye(3), (50, 1, 1)), atol=1e-12)


def test_projection_is_the_nearest_rotation() -> None:
    given = RNG.standard_normal((20, 3, 3))
    ours = nearest_rotation(given)
    np.testing.assert_allclose(np.linalg.det(ours), 1, atol=1e-12)
    others = Rotation.from_quat(random_quaternions(500)).as_matrix()
    for matrix, projected in zip(given, ours, strict=True):
        nearest = np.linalg.norm(others - matrix, axis=(1, 2)).min()
        assert np.linalg.norm(projected - matrix) <= nearest


@pytest.mark.parametrize(
    ("values", "source", "message"),
    [
        ([0, 0, 0, 0], "quat_xyzw", "length"),
        ([1, 0, 0, 2, 0, 0], "rot6d", "near no rotation"),
        ([0] * 9, "rot9d", "near no rotation"),
        ([1, 0, 0], "quat_xyzw", r"expected \(..., 4\), got \(3,\)"),
        ([[1, 0], [0, 1]], "matrix", r"\(..., 3, 3\)"),
        ([np.nan, 0, 0], "rotvec", "not finite"),
        (["a", "b", "c"], "rotvec", "not an array"),
        (3.0, "rotvec", "expected"),
    ],
)
def test_bad_numbers_are_refused(values, source, message) -> None:
    with pytest.raises(InputError, match=message):
        convert(values, source, "rotvec")


def test_reflections_are_refused_unless_projected() -> None:
    reflection = np.diag([1.0, 1.0, -1.0])
    with pytest.raises(InputError, match="determinant"):
        convert(reflection, "matrix", "rotvec", project=False)
    assert np.linalg.det(convert(reflection, "matrix", "matrix")) == pytest.approx(1)


def test_unknown_formats_suggest_the_nearest() -> None:
    for source, target in (("quat_xyz", "matrix"), ("matrix", "quat_xyz")):
        with pytest.raises(UnknownNameError, match="quat_xyzw"):
            convert(np.eye(3), source, target)


def test_gimbal_lock_gives_angles_of_the_same_rotation_without_a_warning(recwarn) -> None:
    matrix = Rotation.from_euler("xyz", [0.3, np.pi / 2, 0.0]).as_matrix()
    angles = convert(matrix, "matrix", "euler_xyz")
    np.testing.assert_allclose(convert(angles, "euler_xyz", "matrix"), matrix, atol=1e-7)
    assert not recwarn.list
