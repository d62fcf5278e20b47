"""Idle rows, and chunks from recorded columns, beyond what the recorded cases hold."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.actions.idle import IdleRule, agibot_idle_rows, idle_rows
from cosmos_robot.actions.poses import absolute_poses, poses_from
from cosmos_robot.actions.recorded import (
    DROID_TOOL,
    bridge_chunk,
    droid_chunk,
    libero_commands,
    libero_rows,
    robomind_franka_chunk,
    umi_chunk,
)
from cosmos_robot.actions.rotations import convert
from cosmos_robot.contract import FieldSpec
from cosmos_robot.errors import InputError, UnknownNameError

RNG = np.random.default_rng(2)
FIELDS = (
    FieldSpec(name="position", width=3, unit="m", kind="position"),
    FieldSpec(name="rotation", width=6, unit="", kind="rotation", rotation="rot6d"),
    FieldSpec(name="gripper", width=1, unit="", kind="gripper"),
)
STILL = np.array([0, 0, 0, 1, 0, 0, 0, 1, 0, 0.5])


def test_runs_shorter_than_the_minimum_do_not_count() -> None:
    rows = np.tile(STILL, (10, 1))
    rows[[2, 3, 7], 0] = 0.1
    assert idle_rows(rows, FIELDS, IdleRule(min_run=3)) == 3
    assert idle_rows(rows, FIELDS, IdleRule(min_run=2)) == 7
    assert idle_rows(rows[:0], FIELDS, IdleRule()) == 0


TURNED = convert([0.0, 0.0, 0.003], "rotvec", "rot6d")


@pytest.mark.parametrize(("column", "moved"), [(1, 0.0004), (slice(3, 9), TURNED), (9, 0.52)])
def test_each_kind_of_motion_ends_idleness(column, moved) -> None:
    rows = np.tile(STILL, (4, 1))
    rule = IdleRule.at_rate(15, min_run=1)
    assert idle_rows(rows, FIELDS, rule) == 4
    rows[2:, column] = moved
    assert idle_rows(rows, FIELDS, rule) < 4


def test_bad_idle_questions_are_refused() -> None:
    for call in (
        lambda: idle_rows(np.zeros((3, 9)), FIELDS, IdleRule()),
        lambda: IdleRule.at_rate(0),
        lambda: IdleRule.at_rate(float("nan")),
        lambda: agibot_idle_rows(np.zeros((3, 10))),
    ):
        with pytest.raises(InputError):
            call()


def test_agibot_counts_from_the_start_only() -> None:
    rows = np.zeros((6, 29))
    assert agibot_idle_rows(rows) == 6
    rows[2, 9] = 0.01
    assert agibot_idle_rows(rows) == 2
    assert agibot_idle_rows(rows[:0]) == 0


def test_libero_commands_are_the_inverse_of_rows() -> None:
    raw = RNG.uniform(-1, 1, (20, 7))
    for rotation in ("rotvec", "rot6d", "rot9d"):
        np.testing.assert_allclose(libero_commands(libero_rows(raw, rotation), rotation), raw, atol=1e-9)


def test_droid_rows_lead_along_the_recorded_path() -> None:
    cartesian, gripper = RNG.uniform(-1, 1, (9, 6)), RNG.uniform(0, 1, 9)
    chunk = droid_chunk("midtrain", 8, cartesian=cartesian, gripper_action=gripper[:8], gripper_state=gripper)
    path = absolute_poses(chunk.actions[:, :9], "rot6d", "framewise", chunk.initial_poses["tool"])
    want = poses_from(cartesian[:, :3], cartesian[:, 3:], "euler_xyz") @ DROID_TOOL
    np.testing.assert_allclose(path, want, atol=1e-9)
    np.testing.assert_allclose(chunk.rows[0], [*want[0, :3, 3], *want[0, :3, 0], *want[0, :3, 1], 1 - gripper[0]])


@pytest.mark.parametrize(
    "call",
    [
        lambda: bridge_chunk(np.zeros((1, 7)), np.zeros((1, 7))),
        lambda: bridge_chunk(np.zeros((5, 7)), np.zeros((3, 7))),
        lambda: umi_chunk(np.zeros((5, 6)), np.zeros((5, 1)), np.zeros(7)),
        lambda: robomind_franka_chunk(np.zeros((5, 9)), np.zeros((5, 8))),
        lambda: droid_chunk("joint_pos", 4, gripper_action=np.zeros(4), gripper_state=np.zeros(5)),
        lambda: droid_chunk(
            "midtrain", 4, cartesian=np.zeros((5, 6)), gripper_action=np.zeros(4), gripper_state=np.zeros(5), history=1
        ),
        lambda: libero_rows(np.zeros((3, 8)), "rot6d"),
    ],
)
def test_columns_that_are_too_few_are_refused(call) -> None:
    with pytest.raises(InputError):
        call()


def test_an_unknown_droid_space_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="joint_pos"):
        droid_chunk("joint_position", 4, gripper_action=np.zeros(4), gripper_state=np.zeros(5))
