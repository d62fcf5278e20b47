"""Nothing unsafe passes the gate, whatever the command and whatever the limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmos_robot.contract import FieldSpec, RobotSpec
from cosmos_robot.errors import InputError
from cosmos_robot.hardware.gate import UNLIMITED, Gate, Limits, Moment, judge

FREE = {"joint": UNLIMITED, "gripper": UNLIMITED}


def limits(arm, **changes) -> Limits:
    given = {
        "max_step": {"joint": 0.1, "gripper": UNLIMITED},
        "max_rate": {"joint": 0.8, "gripper": UNLIMITED},
        "max_first": {"joint": 0.5, "gripper": UNLIMITED},
        "max_jump": {"joint": 0.6, "gripper": UNLIMITED},
    }
    return Limits.of(arm, **{**given, **changes})


def moment(last=(0.0, 0.0, 0.0), measured=(0.0, 0.0, 0.0), age_s=0.1, period_s=0.1, alive=True) -> Moment:
    return Moment(np.array(measured), None if last is None else np.array(last), period_s, age_s, alive)


def rules(verdict) -> set[str]:
    return {i.rule for i in verdict.interventions}


def test_a_small_step_passes_unchanged(arm):
    verdict = judge([0.05, -0.05, 1.0], limits(arm), moment())
    np.testing.assert_array_equal(verdict.values, [0.05, -0.05, 1.0])
    assert not verdict.interventions


@pytest.mark.parametrize("sign", [1, -1])
def test_pc_50_steps_are_limited_in_both_directions(arm, sign):
    verdict = judge([sign * 0.3, 0, 0], limits(arm), moment())
    assert verdict.values[0] == pytest.approx(sign * 0.08)  # 0.8 per second for a tenth of one is less than 0.1
    assert rules(verdict) == {"step", "rate"}


@pytest.mark.parametrize("sign", [1, -1])
def test_pc_50_a_jump_from_where_the_robot_is_holds(arm, sign):
    verdict = judge([sign * 1.0, 0, 0], limits(arm), moment())
    assert verdict.values is None and rules(verdict) == {"jump"}
    assert verdict.interventions[0].name == "joint[0]" and verdict.interventions[0].asked == sign * 1.0


def test_pc_50_a_gripper_jump_is_limited_as_its_limit_says(arm):
    tight = limits(arm, max_jump={"joint": UNLIMITED, "gripper": 0.5})
    assert judge([0, 0, 1.0], tight, moment()).interventions[0].name == "gripper"


def test_first_action_is_measured_from_where_the_robot_is(arm):
    assert rules(judge([0.55, 0, 0], limits(arm), moment(last=None))) == {"first action"}
    assert judge([1.05, 0, 0], limits(arm), moment(last=None, measured=(1.0, 0, 0))).values is not None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", [0, 2])
def test_pc_48_nothing_that_is_not_finite_passes(arm, bad, column):
    command = np.zeros(3)
    command[column] = bad
    verdict = judge(command, limits(arm), moment())
    assert verdict.values is None and rules(verdict) == {"finite"}
    assert verdict.interventions[0].name == ["joint[0]", "joint[1]", "gripper"][column]


@pytest.mark.parametrize("command", [["nan", "0", "0"], [True, 0.0, 0.0], [None, 0, 0], "nan", True, [0j, 0, 0]])
def test_pc_48_text_and_truth_values_are_no_commands(arm, command):
    assert judge(command, limits(arm), moment()).values is None


@pytest.mark.parametrize("command", [[], [0, 0], [0, 0, 0, 0], [[0, 0, 0]], 0.0])
def test_another_width_holds(arm, command):
    assert rules(judge(command, limits(arm), moment())) == {"width"}


def test_an_old_observation_holds_and_so_does_a_dead_man(arm):
    assert rules(judge([0, 0, 0], limits(arm), moment(age_s=3.5))) == {"stale"}
    assert rules(judge([0, 0, 0], limits(arm), moment(age_s=math.nan))) == {"stale"}
    assert rules(judge([0, 0, 0], limits(arm), moment(alive=False))) == {"dead-man"}


def test_a_measurement_that_is_not_a_number_holds(arm):
    assert rules(judge([0, 0, 0], limits(arm), moment(measured=(math.nan, 0, 0)))) == {"jump"}


@pytest.mark.parametrize("bad", [math.nan, -5, 0, "5", None, True, {"joint": 1.0}, {"joint": [1.0], "gripper": 1.0}])
def test_pc_49_a_bad_limit_is_refused_when_it_is_made(arm, bad):
    for name in ("max_step", "max_rate", "max_first", "max_jump"):
        value = bad if isinstance(bad, dict) else {"joint": bad, "gripper": 1.0}
        with pytest.raises(InputError, match=name):
            limits(arm, **{name: value})


def test_pc_49_a_key_with_a_suffix_is_refused(arm):
    with pytest.raises(InputError, match="joint"):
        limits(arm, max_step={"joint.pos": 1.0, "gripper": 1.0})


@pytest.mark.parametrize("bad", [math.nan, 0, -1, None, "2"])
def test_pc_49_a_bad_age_limit_is_refused(arm, bad):
    with pytest.raises(InputError, match="max_age_s"):
        limits(arm, max_age_s=bad)


def test_a_range_upside_down_is_refused(arm):
    with pytest.raises(InputError, match="not below"):
        limits(arm, low={"joint": 1, "gripper": 0}, high={"joint": -1, "gripper": 1})


def test_commands_stay_in_the_robots_range(arm):
    loose = limits(arm, max_step=FREE, max_rate=FREE, max_first=FREE, max_jump=FREE)
    verdict = judge([3.0, -3.0, 1.5], loose, moment())
    np.testing.assert_array_equal(verdict.values, [2.0, -2.0, 1.0])
    assert rules(verdict) == {"position"}


def test_the_tool_stays_in_its_box(arm):
    boxed = limits(arm, workspace=([-1, -1, 0], [1, 1, 1]))
    low = judge([0, 0, 0], boxed, moment(), tool=lambda values: np.array([0, 0, -0.01]))
    assert low.values is None and low.interventions[0].name == "tool z"
    assert judge([0, 0, 0], boxed, moment(), tool=lambda values: np.array([0, 0, 0.5])).values is not None
    with pytest.raises(InputError, match="tool"):
        Gate(boxed)


def test_changes_per_step_are_limited_as_such(arm):
    moving = arm.model_copy(update={"action_reference": "per_step"})
    verdict = judge([0.3, -0.3, 0], limits(moving), moment(last=None, measured=(5, 5, 5)))
    np.testing.assert_allclose(verdict.values, [0.08, -0.08, 0])


@pytest.fixture
def turning() -> Limits:
    """Limits of a pose: one number of place, three Euler angles."""
    fields = (
        FieldSpec(name="place", width=1, unit="m", kind="position"),
        FieldSpec(name="turn", width=3, unit="rad", kind="rotation", rotation="euler_xyz"),
    )
    spec = RobotSpec(name="arm", cameras=(), state=(), action=fields, action_reference="absolute", rate_hz=10)
    each = lambda number: {"place": UNLIMITED, "turn": number}  # noqa: E731
    return Limits.of(spec, max_step=each(0.15), max_rate=each(1.0), max_first=each(0.2), max_jump=each(0.5))


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("last", [True, False])
def test_angles_are_compared_the_short_way_round(turning, side, last):
    """A tool that points down: pi and -pi are one place."""
    here = np.array([0.0, side * 3.12, 0.0, -side * 3.12])
    for asked in ([0.0, -side * 3.13, 0.0, side * 3.13], [0.0, side * np.pi, 0.0, side * np.pi]):
        verdict = judge(asked, turning, moment(here if last else None, here))
        assert not verdict.interventions, verdict.reason
        np.testing.assert_array_equal(verdict.values, asked)


@pytest.mark.parametrize("side", [1, -1])
def test_a_turn_across_pi_is_limited_the_way_it_goes(turning, side):
    here = np.array([0.0, side * 3.1, 0.0, 0.0])
    verdict = judge([0.0, side * (3.1 + 0.3 - 2 * np.pi), 0.0, 0.0], turning, moment(here, here))
    assert rules(verdict) == {"step", "rate"}
    assert verdict.values[1] == pytest.approx(side * (3.1 + 0.1 - 2 * np.pi)), "a tenth of a rad on, across pi"
    assert rules(judge([0.0, side * (3.1 + 0.6 - 2 * np.pi), 0, 0], turning, moment(here, here))) == {"jump"}
    stays = judge([0.0, side * 3.14, 0, 0], turning, moment([0, -side * 3.08, 0, 0], [0, -side * 3.08, 0, 0]))
    assert stays.values[1] == pytest.approx(side * 3.14), "0.06 across pi, the other way"
    back = judge([0.0, side * 3.0, 0, 0], turning, moment([0, -side * 3.08, 0, 0], [0, -side * 3.08, 0, 0]))
    assert back.values[1] == pytest.approx(-side * 3.08 - side * 0.1 + side * 2 * np.pi)
    assert np.abs(back.values).max() <= np.pi


def test_only_euler_angles_come_round(turning, arm):
    assert turning.turns.tolist() == [False, True, True, True] and not limits(arm).turns.any()
    here = np.zeros(4)
    assert rules(judge([0.0, 1e300, 0, 0], turning, moment(here, here))) == {"jump"}, "whole turns are no excuse"
    assert rules(judge([0.0, 4 * np.pi, 0, 0], turning, moment(here, here))) == {"jump"}
    unknown = moment(here, np.full(4, math.nan))
    assert judge(here, turning, unknown).values is None


finite = st.floats(-5, 5)
anything = st.one_of(st.floats(), st.sampled_from([1e300, -1e300, 5e-324]))


@given(
    commands=st.lists(st.lists(anything, min_size=3, max_size=3), min_size=1, max_size=20),
    start=st.tuples(finite, finite),
)
def test_whatever_comes_no_step_is_larger_than_the_limit(commands, start):
    arm = RobotSpec(
        name="arm",
        cameras=(),
        state=(),
        action=(FieldSpec(name="joint", width=3, unit="rad", kind="joint"),),
        action_reference="absolute",
        rate_hz=10,
    )
    some = {"joint": 0.1}
    gate = Gate(
        Limits.of(arm, max_step=some, max_rate={"joint": 0.5}, max_first={"joint": 0.3}, max_jump={"joint": 9.0})
    )
    place = np.array([*start, 0.0])
    for command in commands:
        verdict = gate.check(command, place, age_s=0.0, period_s=0.1)
        if verdict.values is not None:
            assert np.abs(verdict.values - place).max() <= 0.05 + 1e-9
            place = verdict.values
    assert gate.passed + gate.held == len(commands)


def test_what_was_done_is_counted(arm):
    gate = Gate(limits(arm))
    gate.check([0, 0, 0], np.zeros(3), 0.0, 0.1)
    gate.check([0.5, 0, 0], np.zeros(3), 0.0, 0.1)
    gate.check([math.nan, 0, 0], np.zeros(3), 0.0, 0.1)
    assert (gate.passed, gate.clamped, gate.held, gate.clamped_share) == (2, 1, 1, 0.5)
    assert gate.counts[("finite", "joint[0]")] == 1 and gate.counts[("rate", "joint[0]")] == 1
    assert rules(gate.check([0.55, 0, 0], np.zeros(3), 0.0, 0.1)) == {"first action"}, (
        "after a hold the next is a first one"
    )
