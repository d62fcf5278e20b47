"""Pure measures of a world-model evaluation: pictures, falsified commands, paths."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from cosmos_robot.actions.rotations import Rotations, convert
from cosmos_robot.contract import FieldSpec
from cosmos_robot.envs.fakes import FAKE_ROBOT
from cosmos_robot.errors import InputError
from cosmos_robot.eval.world_model_actions import KINDS, falsified, scaled
from cosmos_robot.eval.world_model_metrics import BEST_DB, decibels, motion_ratio, moved, psnr, ssim
from cosmos_robot.eval.world_model_trajectories import (
    absolute_error,
    relative_rotation_errors,
    relative_translation_errors,
    state_poses,
    trajectory_error,
)


def picture(seed: int, height: int = 20, width: int = 24) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_psnr_by_hand() -> None:
    dark = np.zeros((4, 4, 3), np.uint8)
    assert psnr(dark, dark) == BEST_DB
    assert psnr(dark + np.uint8(255), dark) == 0
    assert psnr(dark + np.uint8(51), dark) == pytest.approx(20 * np.log10(5))
    half = dark.copy()
    half[:2] = 51
    mask = np.zeros((4, 4), bool)
    mask[0] = True
    assert psnr(half, dark, mask) == pytest.approx(20 * np.log10(5))
    assert np.isnan(decibels(float("nan"))), "no pixel is no score"
    with pytest.raises(InputError, match="cannot be compared"):
        psnr(dark, dark[:2])


def test_ssim_is_the_published_formula() -> None:
    """Against the sums of its definition, window by window."""
    a, b = picture(0), picture(1)
    reach = np.arange(11) - 5
    weights = np.exp(-(reach[:, None] ** 2 + reach**2) / (2 * 1.5**2))
    weights /= weights.sum()
    found = []
    for colour in range(3):
        for top in range(20 - 10):
            for left in range(24 - 10):
                x, y = (p[top : top + 11, left : left + 11, colour].astype(float) for p in (a, b))
                mx, my = (weights * x).sum(), (weights * y).sum()
                vx, vy = (weights * (x - mx) ** 2).sum(), (weights * (y - my) ** 2).sum()
                both = (weights * (x - mx) * (y - my)).sum()
                c1, c2 = 2.55**2, 7.65**2
                found.append((2 * mx * my + c1) * (2 * both + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2)))
    assert ssim(a, b) == pytest.approx(np.mean(found), abs=1e-9)
    assert ssim(a, a) == pytest.approx(1)
    with pytest.raises(InputError, match="11 pixels"):
        ssim(a[:8], b[:8])


def test_what_moved_and_by_how_much() -> None:
    frames = np.full((3, 6, 6, 3), 100, np.uint8)
    frames[1:, 2, 2] = 200
    frames[1:, 4, 4] = 110  # the noise of a coded video
    mask = moved(frames)
    assert mask.shape == (2, 6, 6) and mask.sum() == 2
    halfway = frames.copy()
    halfway[1:, 2, 2] = 150
    assert motion_ratio(frames, frames, mask) == 1
    assert motion_ratio(halfway, frames, mask) == pytest.approx(0.5)
    assert motion_ratio(np.repeat(frames[:1], 3, axis=0), frames, mask) == 0


def commands(count: int = 40) -> np.ndarray:
    rng = np.random.default_rng(3)
    grip = np.where(np.arange(count) % 7 < 3, 1.0, -1.0)
    return np.concatenate([rng.uniform(-1, 1, (count, 2)), grip[:, None]], axis=1)


def test_falsified_commands() -> None:
    rows = commands()
    true, found = rows[8:16], falsified(FAKE_ROBOT, rows, 8, 8, seed=0)
    assert set(found) == {*KINDS, "gripper"}
    assert not found["zero"][:, :2].any() and (found["zero"][:, 2] == true[0, 2]).all()
    assert np.array_equal(found["mirrored"], -true), "the gripper of this robot is open at -1 and closed at 1"
    assert np.array_equal(found["shifted"], rows[16:24])
    assert np.array_equal(falsified(FAKE_ROBOT, rows, 32, 8, 0)["shifted"], rows[24:32]), "at the end, what was before"
    among = {tuple(row) for row in rows}
    assert all(tuple(row) in among for row in found["shuffled"])
    assert not np.array_equal(np.sort(found["shuffled"], axis=0), np.sort(true, axis=0)), "not the window's own rows"
    assert np.array_equal(found["shuffled"], falsified(FAKE_ROBOT, rows, 8, 8, seed=0)["shuffled"])
    with pytest.raises(InputError, match="the episode has 40"):
        falsified(FAKE_ROBOT, rows, 36, 8, 0)


def test_what_is_no_falsification_is_left_out() -> None:
    still = np.tile([0.0, 0.0, -1.0], (8, 1))
    found = falsified(FAKE_ROBOT, still, 0, 8, seed=0)
    assert found["zero"] is None and found["shuffled"] is None and found["shifted"] is None
    assert found["mirrored"] is not None, "its gripper closes"


def test_targets_are_kept_and_mirrored_at_the_first() -> None:
    robot = FAKE_ROBOT.model_copy(update={"action_reference": "absolute", "action_low": -9.0, "action_high": 9.0})
    rows = commands(8) + [5, 5, 0]
    found = falsified(robot, rows, 0, 8, seed=0)
    assert np.allclose(found["zero"][:, :2], rows[0, :2])
    assert np.allclose(found["mirrored"][3, :2], 2 * rows[0, :2] - rows[3, :2])
    assert np.allclose(scaled(robot, rows, 2.0)[3, :2], rows[0, :2] + 2 * (rows[3, :2] - rows[0, :2]))
    assert np.allclose(scaled(robot, rows, 2.0)[:, 2], rows[:, 2]), "a gripper is not scaled"


def path(seed: int, count: int = 12) -> np.ndarray:
    rng = np.random.default_rng(seed)
    poses = np.tile(np.eye(4), (count, 1, 1))
    poses[:, :3, :3] = Rotation.from_rotvec(rng.normal(0, 1, (count, 3))).as_matrix()
    poses[:, :3, 3] = rng.normal(0, 1, (count, 3)).cumsum(axis=0)
    return poses


def rigid(angle: float, shift: tuple[float, float, float]) -> np.ndarray:
    out = np.eye(4)
    out[:3, :3], out[:3, 3] = Rotation.from_rotvec([0, 0, angle]).as_matrix(), shift
    return out


def test_the_same_path_has_no_error_wherever_it_lies() -> None:
    truth = path(0)
    elsewhere = rigid(1.0, (3, -2, 1)) @ truth
    found = trajectory_error(elsewhere, truth)
    assert found.poses == 12
    assert (found.rre, found.rte, found.ate) == pytest.approx((0, 0, 0), abs=1e-9)
    assert absolute_error(elsewhere, truth, "rigid") == pytest.approx(0, abs=1e-9)
    assert absolute_error(elsewhere, truth, "none") > 1
    larger = elsewhere.copy()
    larger[:, :3, 3] *= 2.5
    assert absolute_error(larger, truth, "similarity") == pytest.approx(0, abs=1e-9)
    assert absolute_error(larger, truth, "rigid") > 0.5


def test_path_errors_by_hand() -> None:
    truth = np.tile(np.eye(4), (3, 1, 1))
    truth[:, 0, 3] = [0, 1, 2]
    found = truth.copy()
    found[2] = rigid(0.1, (2, 0.5, 0))
    assert relative_rotation_errors(found, truth) == pytest.approx([0, 0.1])
    assert relative_translation_errors(found, truth) == pytest.approx([0, 0.5])
    assert absolute_error(found, truth) == pytest.approx(np.sqrt(0.25 / 3))
    tiny = truth.copy()
    tiny[2] = rigid(1e-7, (2, 0, 0))
    assert relative_rotation_errors(tiny, truth)[1] == pytest.approx(1e-7), "arccos would say 0"
    turned = truth.copy()
    turned[1:] = truth[1:] @ rigid(np.pi, (0, 0, 0))
    assert relative_rotation_errors(turned, truth)[0] == pytest.approx(np.pi)
    for bad in (truth[:1], truth[:, :3], np.full_like(truth, np.nan)):
        with pytest.raises(InputError):
            trajectory_error(bad, bad)
    with pytest.raises(InputError, match="none, start, rigid or similarity"):
        absolute_error(truth, truth, "nothing")


def test_poses_of_states() -> None:
    fields = (
        FieldSpec(name="place", width=3, unit="m", kind="position"),
        FieldSpec(name="turn", width=6, unit="1", kind="rotation", rotation="rot6d"),
    )
    robot = FAKE_ROBOT.model_copy(update={"state": fields})
    turn = Rotation.from_rotvec([0.1, 0.2, 0.3]).as_matrix()
    state = {"place": np.array([1.0, 2, 3]), "turn": np.concatenate([turn[:, 0], turn[:, 1]])}
    poses = state_poses(robot, [state, state])
    assert np.allclose(poses[1, :3, :3], turn) and np.allclose(poses[1, :3, 3], [1, 2, 3])
    assert state_poses(FAKE_ROBOT, []) is None, "a robot without a pose"


def turning_robot(kind: str, width: int, unit: str, reference: str = "absolute"):
    fields = (
        FieldSpec(name="place", width=3, unit="m", kind="position"),
        FieldSpec(name="turn", width=width, unit=unit, kind="rotation", rotation=kind),
    )
    changes = {
        "action": fields,
        "action_reference": reference,
        "gripper": None,
        "action_low": None,
        "action_high": None,
    }
    return FAKE_ROBOT.model_copy(update=changes)


@pytest.mark.parametrize(
    ("kind", "width", "unit"),
    [("euler_xyz", 3, "rad"), ("quat_wxyz", 4, "1"), ("quat_xyzw", 4, "1"), ("rot6d", 6, "1"), ("rotvec", 3, "rad"),
     ("matrix", 9, "1")],
)  # fmt: skip
def test_rotations_are_scaled_along_the_shortest_way(kind: str, width: int, unit: str) -> None:
    """Roll from 3.13 to -3.13 is a turn by 0.023, in whatever numbers it is written."""
    named = "rot9d" if kind == "matrix" else kind
    roll = np.array([3.13, 3.14, -3.14, -3.13, -3.12])
    rows = np.concatenate([np.zeros((5, 3)), convert(np.outer(roll, [1, 0, 0]), "euler_xyz", named)], axis=1)
    rows[:, 0] = np.arange(5)
    robot, unrolled = turning_robot(kind, width, unit), np.unwrap(roll)
    for factor in (1 / 16, 0.25, 2.0, 16.0, -1.0):
        found = scaled(robot, rows, factor)
        expected = np.outer(roll[0] + factor * (unrolled - roll[0]), [1, 0, 0])
        apart = Rotations.of(found[:, 3:], named).inverse() @ Rotations.of(expected, "euler_xyz")
        assert np.abs(apart.to("rotvec")).max() < 1e-6, factor
        assert np.allclose(found[:, 0], factor * np.arange(5)), "positions are scaled as before"
    mirrored = falsified(robot, rows, 0, 5, seed=0)["mirrored"]
    assert np.allclose(mirrored, scaled(robot, rows, -1.0))
    still = np.tile(rows[:1], (5, 1))
    still[1::2, 3:] *= -1 if kind.startswith("quat") else 1
    assert falsified(robot, still, 0, 5, seed=0)["mirrored"] is None, "what does not turn keeps its numbers"


def test_no_turn_is_the_identity() -> None:
    """Zeros are no quaternion; a robot's own unit of angle is left alone."""
    rows = np.tile([0.1, 0, 0, 0.0, 0.0, np.sin(0.2), np.cos(0.2)], (4, 1))
    robot = turning_robot("quat_xyzw", 4, "1", "per_step")
    found = falsified(robot, rows, 0, 4, seed=0)
    assert found["zero"].tolist() == [[0, 0, 0, 0, 0, 0, 1]] * 4
    assert np.allclose(found["mirrored"][:, 3:], [0, 0, -np.sin(0.2), np.cos(0.2)])
    assert np.allclose(scaled(robot, rows, 2.0)[:, 3:], [0, 0, np.sin(0.4), np.cos(0.4)])
    own = turning_robot("rotvec", 3, "0.5 rad per step", "per_step")
    steps = np.tile([0, 0, 0, 0.9, 0, 0], (4, 1))
    assert np.allclose(scaled(own, steps, 16.0)[:, 3], 14.4)
    assert not falsified(own, steps, 0, 4, seed=0)["zero"].any()
