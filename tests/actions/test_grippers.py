"""Gripper ranges, and values that decide nothing."""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.actions.grippers import (
    ROBOSUITE_GRIPPER,
    BinaryGripper,
    GripperRange,
    agibot_openness,
    convert_gripper,
    libero_dataset,
)
from cosmos_robot.errors import InputError, UnknownNameError

OPEN_FRACTION = GripperRange(open_value=1.0, closed_value=0.0)
PC_07_VALUES = [0.0, 0.49, 0.5, 0.51, 1.0, -0.1, 1.2]


def test_ranges_map_end_to_end() -> None:
    got = convert_gripper([0.0, 0.25, 1.0], OPEN_FRACTION, ROBOSUITE_GRIPPER)
    np.testing.assert_allclose(got, [1.0, 0.5, -1.0])
    np.testing.assert_allclose(convert_gripper(got, ROBOSUITE_GRIPPER, OPEN_FRACTION), [0.0, 0.25, 1.0])
    assert OPEN_FRACTION.opens_upwards and not ROBOSUITE_GRIPPER.opens_upwards


def test_pc_07_continuous_values_are_clipped_to_the_range() -> None:
    got = convert_gripper(PC_07_VALUES, OPEN_FRACTION, ROBOSUITE_GRIPPER)
    np.testing.assert_allclose(got, [1, 0.02, 0, -0.02, -1, 1, -1], atol=1e-12)


@pytest.mark.parametrize("was_open", [True, False])
def test_pc_07_binary_values_are_never_undecided(was_open) -> None:
    binary = BinaryGripper(OPEN_FRACTION)
    commands, now = binary.commands(PC_07_VALUES, was_open, ROBOSUITE_GRIPPER)
    np.testing.assert_array_equal(commands, [1, 1, 1, -1, -1, 1, -1])
    assert now is True
    half, still = binary.commands([0.5, 0.5], was_open, ROBOSUITE_GRIPPER)
    np.testing.assert_array_equal(half, [-1, -1] if was_open else [1, 1])
    assert still is was_open


def test_pc_07_hysteresis_keeps_the_last_decision_within_its_band() -> None:
    binary = BinaryGripper(OPEN_FRACTION, threshold=0.5, hysteresis=0.2)
    flutter = [0.1, 0.55, 0.45, 0.59, 0.61, 0.41, 0.5, 0.39]
    decided = binary.decide(flutter, was_open=False)
    np.testing.assert_array_equal(decided, [False, False, False, False, True, True, True, False])
    first = binary.decide(flutter[:5], was_open=False)
    np.testing.assert_array_equal(np.concatenate([first, binary.decide(flutter[5:], bool(first[-1]))]), decided)


def test_no_values_leave_the_state() -> None:
    for was_open in (True, False):
        commands, now = BinaryGripper(OPEN_FRACTION).commands([], was_open, ROBOSUITE_GRIPPER)
        assert now is was_open and commands.shape == (0,)


def test_agibot_units_are_told_by_their_range() -> None:
    np.testing.assert_allclose(agibot_openness([0.0, 60.0, 120.0, 124.0]), [1, 0.5, 0, 0])
    np.testing.assert_allclose(agibot_openness([-np.pi / 4, -np.pi / 8, 0.0]), [1, 0.5, 0])
    np.testing.assert_allclose(agibot_openness([-45.0, -22.5, 0.0]), [1, 0.5, 0])
    assert agibot_openness([]).shape == (0,)
    for wrong in ([200.0], [-60.0], [-10.0, 10.0], [np.nan]):
        with pytest.raises(InputError, match="AgiBot"):
            agibot_openness(wrong)


@pytest.mark.parametrize(
    "call",
    [
        lambda: GripperRange(1.0, 1.0),
        lambda: GripperRange(np.nan, 1.0),
        lambda: OPEN_FRACTION.openness([0.2, np.nan]),
        lambda: BinaryGripper(OPEN_FRACTION, threshold=0.5, hysteresis=1.2),
        lambda: BinaryGripper(OPEN_FRACTION, hysteresis=-0.1),
        lambda: BinaryGripper(OPEN_FRACTION, threshold=np.nan),
        lambda: BinaryGripper(OPEN_FRACTION).decide(np.zeros((2, 2)), True),
    ],
)
def test_bad_grippers_are_refused(call) -> None:
    with pytest.raises(InputError):
        call()


def test_an_unknown_mode_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="zero_one"):
        libero_dataset("zero-one")
