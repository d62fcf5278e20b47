"""Relative and absolute poses against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from golden_files import numbers
from pose_cases import REFERENCES, assert_same_rotation, our_format

from cosmos_robot.actions.poses import absolute_poses, pose9, poses_from, relative_rows
from cosmos_robot.errors import CosmosRobotError

NEAR = {"rtol": 1e-5, "atol": 1e-5}
ANGLES = 5e-6


@pytest.mark.golden("cosmos3/pose_trajectories")
def test_trajectories(case) -> None:
    poses = poses_from(
        numbers(case["xyz"]),
        numbers(case["rotation"]),
        our_format(case["rotation_input_format"]),
        translation_scale=case["translation_scale"] or 1.0,
    )
    scale = max(1.0, float(np.abs(poses).max()))
    np.testing.assert_allclose(poses, numbers(case["poses_abs"]), rtol=1e-6, atol=2e-6)
    recorded = numbers(case["poses_abs"])
    np.testing.assert_allclose(pose9(recorded)[1:], numbers(case["abs9d"]), **NEAR)
    for name, want in case["rel"].items():
        convention, rotation = name.split("/")
        # Poses far from the origin: float32 of the reference loses the digits that their differences need.
        rows = relative_rows(recorded, our_format(rotation), REFERENCES[convention])
        np.testing.assert_allclose(rows[:, :3], numbers(want)[:, :3], rtol=1e-5, atol=2e-6 * scale)
        assert_same_rotation(rows[:, 3:], numbers(want)[:, 3:].tolist(), our_format(rotation), ANGLES)
    for name, want in case["back"].items():
        convention, rotation = name.split("/")
        back = absolute_poses(numbers(case["rel"][name]), our_format(rotation), REFERENCES[convention], recorded[0])
        np.testing.assert_allclose(back, numbers(want), rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.golden("cosmos3/pose_rel_to_abs")
def test_noisy_relative_poses(case) -> None:
    def ours() -> np.ndarray:
        return absolute_poses(
            numbers(case["rel"]),
            our_format(case["rotation_format"]),
            REFERENCES[case["pose_convention"]],
            np.eye(4) if case["initial_pose"] is None else numbers(case["initial_pose"]),
            project=case["normalize_rotation"],
            translation_scale=case["translation_scale"],
            rotation_scale=case["rotation_scale"],
        )

    if "error" in case:
        with pytest.raises(CosmosRobotError):
            ours()
        return
    want = numbers(case["poses_abs"])
    np.testing.assert_allclose(ours(), want, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(want).max()))
