"""Poses: relative and back, chunks anchored anew, and targets that hold still."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.actions.poses import (
    absolute_poses,
    command_to_reach,
    pose9,
    pose_rows,
    poses_from,
    poses_of_rows,
    reached_by,
    reanchored,
    relative_rows,
)
from cosmos_robot.errors import InputError, UnknownNameError

FORMATS = ("quat_xyzw", "quat_wxyz", "rotvec", "rotvec_robosuite", "euler_xyz", "rot6d", "rot9d", "matrix")


def trajectory(frames: int = 9, seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return poses_from(rng.uniform(-1, 1, (frames, 3)), rng.standard_normal((frames, 4)), "quat_xyzw")


@pytest.mark.parametrize("reference", ["framewise", "anchored"])
@pytest.mark.parametrize("rotation", FORMATS)
def test_relative_rows_give_the_poses_back(rotation, reference) -> None:
    poses = trajectory()
    rows = relative_rows(poses, rotation, reference)
    np.testing.assert_allclose(absolute_poses(rows, rotation, reference, poses[0]), poses, atol=1e-9)


def test_the_two_references_differ_after_the_first_row() -> None:
    framewise, anchored = (relative_rows(trajectory(), "rotvec", r) for r in ("framewise", "anchored"))
    np.testing.assert_allclose(framewise[0], anchored[0])
    assert np.abs(framewise[1:] - anchored[1:]).max() > 0.1


def test_scales_are_what_the_rows_were_multiplied_by() -> None:
    poses = trajectory()
    rows = relative_rows(poses, "rotvec", "anchored") * [10, 10, 10, 2, 2, 2]
    back = absolute_poses(rows, "rotvec", "anchored", poses[0], translation_scale=10, rotation_scale=2)
    np.testing.assert_allclose(back, poses, atol=1e-9)
    np.testing.assert_allclose(
        poses_from([[2.0, 4, 6]], [[0, 0, 0]], "rotvec", translation_scale=2)[0, :3, 3], [1, 2, 3]
    )


def test_pose9_is_position_then_two_columns() -> None:
    pose = trajectory(1)[0]
    np.testing.assert_array_equal(pose9(pose), [*pose[:3, 3], *pose[:3, 0], *pose[:3, 1]])


def test_a_chunk_anchored_anew_keeps_its_targets() -> None:
    poses = trajectory()
    rows, now = relative_rows(poses, "rot6d", "anchored"), trajectory(1, seed=8)[0]
    moved = reanchored(rows, "rot6d", poses[0], now)
    np.testing.assert_allclose(absolute_poses(moved, "rot6d", "anchored", now)[1:], poses[1:], atol=1e-9)
    np.testing.assert_allclose(reanchored(rows, "rot6d", poses[0], poses[0]), rows, atol=1e-12)


def test_pc_24_a_target_where_the_robot_is_asks_for_no_change() -> None:
    poses = trajectory(20)
    np.testing.assert_allclose(command_to_reach(poses, poses), 0, atol=1e-7)


def test_pc_24_a_change_of_zero_holds_still() -> None:
    poses = trajectory(20)
    np.testing.assert_allclose(reached_by(np.zeros((20, 6)), poses), poses, atol=1e-12)
    identity = np.tile([0, 0, 0, 1, 0, 0, 0, 1, 0], (4, 1))
    for reference in ("framewise", "anchored"):
        held = absolute_poses(identity, "rot6d", reference, poses[0])
        np.testing.assert_allclose(held, np.tile(poses[0], (5, 1, 1)), atol=1e-12)


def test_pc_24_absolute_rows_taken_for_relative_ones_move() -> None:
    pose = trajectory(1)[0]
    as_relative = absolute_poses(pose_rows(pose, "rot6d")[None], "rot6d", "framewise", pose)[1]
    assert np.abs(command_to_reach(as_relative, pose)).max() > 0.1


def test_commands_reach_their_target() -> None:
    current, target = trajectory(20, 1), trajectory(20, 2)
    np.testing.assert_allclose(reached_by(command_to_reach(target, current), current), target, atol=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: relative_rows(trajectory(1), "rot6d", "framewise"), "T >= 2"),
        (lambda: poses_from(np.zeros((2, 3)), np.zeros((3, 3)), "rotvec"), "pair"),
        (lambda: poses_from([0, np.inf, 0], [0, 0, 0], "rotvec"), "not finite"),
        (lambda: poses_from([0, 0, 0], [0, 0, 0], "rotvec", translation_scale=0), "translation_scale"),
        (lambda: poses_of_rows(np.zeros(3), "rotvec"), "pose rows"),
        (lambda: absolute_poses(np.zeros((2, 6)), "rotvec", "anchored", np.eye(3)), r"\(..., 4, 4\)"),
        (lambda: pose9(np.full((4, 4), np.nan)), "not finite"),
    ],
)
def test_bad_poses_are_refused(call, message) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_an_unknown_reference_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="framewise"):
        relative_rows(trajectory(), "rot6d", "frame_wise")
