"""Chunks join where the robot is, whatever the delay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmos_robot.contract import FieldSpec, RobotSpec
from cosmos_robot.errors import InputError, UnknownNameError
from cosmos_robot.hardware.chunks import STRATEGIES, Due, Hold, Scheduler
from cosmos_robot.hardware.mixing import mix
from cosmos_robot.types import ActionChunk

LINE = RobotSpec(
    name="line",
    cameras=(),
    state=(),
    action=(FieldSpec(name="x", width=1, unit="m", kind="position"),),
    action_reference="absolute",
    rate_hz=10,
)


def chunk(first: float, rows: int = 16, rate: float = 10.0) -> ActionChunk:
    """Row i is ``first + i``: so a value tells which row it is."""
    return ActionChunk(np.arange(rows, dtype=float)[:, None] + first, rate)


def run(scheduler: Scheduler, latencies: list[float], ticks: int, rows: int = 16):
    """A robot that stands at x and counts one per row; the policy answers x, x+1, ... for the x it saw.

    Returns the commands sent (None for a hold). With perfect chunks and right indexing they are 0, 1, 2, ...
    """
    sent, place, waiting = [], -1.0, []
    latencies = list(latencies)
    for tick in range(ticks):
        now = tick / 10
        for due in [w for w in waiting if w[0] <= now + 1e-9]:
            scheduler.offer(due[1], due[2], now)
            waiting.remove(due)
        if scheduler.wants(now):
            ticket = scheduler.ask(now)
            # What the policy sees is where the robot is; its first row is the next place.
            waiting.append(
                (now + (latencies.pop(0) if len(latencies) > 1 else latencies[0]), ticket, chunk(place + 1, rows))
            )
        row = scheduler.row(now)
        if isinstance(row, Due):
            place = float(row.values[0])
        sent.append(place if isinstance(row, Due) else None)
    return sent


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(deadline=None, max_examples=60)
@given(latencies=st.lists(st.floats(0.01, 2.5), min_size=1, max_size=12))
def test_every_row_is_played_once_and_in_order(strategy, latencies):
    sent = run(Scheduler(LINE, strategy, execute=8), latencies, ticks=80)
    moved = [x for x in sent if x is not None]
    np.testing.assert_allclose(moved, np.arange(len(moved)), atol=1e-6)


@pytest.mark.parametrize("strategy", ["latest", "blend", "rtc"])
def test_a_steady_delay_below_the_chunk_leaves_no_pause(strategy):
    sent = run(Scheduler(LINE, strategy, execute=8), [0.25], ticks=100)
    first = next(i for i, x in enumerate(sent) if x is not None)
    assert None not in sent[first:]


def test_sync_waits_at_the_end_of_every_chunk():
    sent = run(Scheduler(LINE, "sync", execute=8), [0.3], ticks=60)
    assert sent[:3] == [None] * 3 and sent[3:11] == list(range(8)) and sent[11:14] == [None] * 3


def test_pc_43_from_standstill_a_late_first_chunk_starts_at_its_first_row():
    scheduler = Scheduler(LINE, "latest", execute=15)
    ticket = scheduler.ask(0.0)
    for tick in range(21):
        assert isinstance(scheduler.row(tick / 30), Hold)
    joined = scheduler.offer(ticket, chunk(0, rows=30, rate=30.0), 0.7)
    assert joined.dropped == 0 and joined.latency_s == pytest.approx(0.7)
    assert [scheduler.row(0.7 + i / 30).row for i in range(3)] == [0, 1, 2]
    assert scheduler.delay.seconds == scheduler.delay.first_guess_s, "the first answer is warm-up"
    second = scheduler.ask(0.8)
    scheduler.offer(second, chunk(0, rows=30, rate=30.0), 1.1)
    assert scheduler.delay.seconds == pytest.approx(0.3)


def test_a_late_chunk_joins_at_the_rows_really_used_up():
    scheduler = Scheduler(LINE, "latest", execute=4)
    scheduler.offer(scheduler.ask(0.0), chunk(0, rows=6), 0.0)
    assert [scheduler.row(i / 10).row for i in range(3)] == [0, 1, 2]
    ticket = scheduler.ask(0.3)  # looked before row 3
    seen = [scheduler.row(t / 10) for t in range(3, 9)]
    assert [getattr(s, "row", None) for s in seen] == [3, 4, 5, None, None, None]
    joined = scheduler.offer(ticket, chunk(3), 0.9)
    assert joined.dropped == 3, "rows 3, 4 and 5 were played; the wait since is not motion"
    assert scheduler.row(0.9).values[0] == 6


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_pc_37_after_a_reset_nothing_old_is_played(strategy):
    scheduler = Scheduler(LINE, strategy, execute=8)
    scheduler.offer(scheduler.ask(0.0), chunk(0), 0.0)
    assert [scheduler.row(i / 10).row for i in range(3)] == [0, 1, 2]
    old = scheduler.ask(0.3)
    scheduler.reset()
    assert isinstance(scheduler.row(0.3), Hold) and scheduler.wants(0.3)
    new = scheduler.ask(0.4)
    assert scheduler.offer(old, chunk(100), 0.5) is None, "the late answer to the question before the reset"
    scheduler.offer(new, chunk(50), 0.6)
    assert scheduler.row(0.6).values[0] == 50


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_pc_41_a_chunk_shorter_than_the_horizon_is_played_and_asked_again(strategy, rows):
    sent = run(Scheduler(LINE, strategy, execute=16), [0.05], ticks=60, rows=rows)
    moved = [x for x in sent if x is not None]
    assert len(moved) > 20
    np.testing.assert_allclose(moved, np.arange(len(moved)), atol=1e-6)


@pytest.mark.parametrize("execute", [0, -1, 2.5, True, None])
def test_pc_41_a_horizon_of_zero_is_refused(execute):
    with pytest.raises(InputError, match="execute"):
        Scheduler(LINE, "latest", execute=execute)


def test_a_lost_answer_is_asked_for_again():
    scheduler = Scheduler(LINE, "latest", execute=8)
    ticket = scheduler.ask(0.0)
    assert not scheduler.wants(0.1)
    scheduler.lost(ticket)
    assert scheduler.wants(0.1)
    assert scheduler.offer(ticket, chunk(0), 0.2) is None


def test_a_command_that_was_not_carried_out_is_not_used_up():
    scheduler = Scheduler(LINE, "latest", execute=8)
    scheduler.offer(scheduler.ask(0.0), chunk(0), 0.0)
    assert scheduler.row(0.0).row == 0
    assert scheduler.row(0.1).row == 1
    assert not scheduler.wants(0.15)
    scheduler.stood()
    assert scheduler.wants(0.15), "a robot that stands wants a new look"
    assert scheduler.row(0.2).row == 1


def test_blending_leaves_no_step_at_the_seam():
    scheduler = Scheduler(LINE, "blend", execute=4, blend_rows=4)
    scheduler.offer(scheduler.ask(0.0), ActionChunk(np.zeros((16, 1)), 10), 0.0)
    scheduler.row(0.0)
    scheduler.offer(scheduler.ask(0.1), ActionChunk(np.ones((16, 1)), 10), 0.1)
    values = [scheduler.row(0.1 + i / 10).values[0] for i in range(6)]
    np.testing.assert_allclose(values, [0.2, 0.4, 0.6, 0.8, 1, 1])


def test_ensemble_weighs_the_oldest_most():
    scheduler = Scheduler(LINE, "ensemble", execute=8, decay=0.5)
    scheduler.offer(scheduler.ask(0.0), ActionChunk(np.zeros((16, 1)), 10), 0.0)
    scheduler.row(0.0)
    scheduler.offer(scheduler.ask(0.1), ActionChunk(np.ones((16, 1)), 10), 0.1)
    assert scheduler.row(0.1).values[0] == pytest.approx(np.exp(-0.5) / (1 + np.exp(-0.5)))


def test_real_time_chunking_sends_along_the_rows_that_will_be_used_up():
    scheduler = Scheduler(LINE, "rtc", execute=8, spare_rows=1)
    assert scheduler.ask(0.0).committed is None, "from standstill nothing is used up meanwhile"
    scheduler.reset()
    scheduler.offer(scheduler.ask(0.0), chunk(0), 0.0)
    for i in range(3):
        scheduler.row(i / 10)
    np.testing.assert_array_equal(scheduler.ask(0.3).committed[:, 0], [3, 4, 5])  # 0.2 s guessed, and one spare


def test_absolute_rows_are_interpolated_at_another_rate():
    scheduler = Scheduler(LINE, "latest", execute=8)
    scheduler.offer(scheduler.ask(0.0), chunk(0, rate=5.0), 0.0)
    np.testing.assert_allclose([scheduler.row(i / 10).values[0] for i in range(4)], [0, 0.5, 1, 1.5])


def test_changes_per_step_at_another_rate_are_refused():
    scheduler = Scheduler(LINE.model_copy(update={"action_reference": "per_step"}), "latest", execute=8)
    with pytest.raises(InputError, match="another rate"):
        scheduler.offer(scheduler.ask(0.0), chunk(0, rate=5.0), 0.0)


def test_a_binary_gripper_is_never_half_closed(arm):
    scheduler = Scheduler(arm, "blend", execute=8)
    scheduler.offer(scheduler.ask(0.0), ActionChunk(np.zeros((16, 3)), 10), 0.0)
    scheduler.row(0.0)
    scheduler.offer(scheduler.ask(0.1), ActionChunk(np.ones((16, 3)), 10), 0.1)
    rows = [scheduler.row(0.1 + i / 10).values for i in range(5)]
    assert {r[2] for r in rows} == {0.0, 1.0} and 0 < rows[1][0] < 1


@pytest.mark.parametrize("ends", [(0.0, 1.0), (1.0, -1.0), (-1.0, 1.0)])
def test_a_binary_gripper_is_voted_on_by_its_own_threshold(arm, ends):
    """Two commands a third of the way from open count as open where the decision turns in the middle, and as closed
    where it turns at three quarters open, whatever the numbers of the two ends."""
    third = ends[0] + (ends[1] - ends[0]) / 3
    commands = np.array([[0, 0, ends[1]], [0, 0, third], [0, 0, third]])
    for threshold, expected in ((0.5, ends[0]), (0.75, ends[1])):
        gripper = arm.gripper.model_copy(
            update={"open_value": ends[0], "closed_value": ends[1], "threshold": threshold}
        )
        mixed = mix(arm.model_copy(update={"gripper": gripper}), commands, np.full(3, 1 / 3))
        assert mixed[2] == pytest.approx(expected)


def test_rotations_are_mixed_as_rotations(arm):
    turning = RobotSpec(
        name="wrist",
        cameras=(),
        state=(),
        action=(FieldSpec(name="turn", width=4, unit="1", kind="rotation", rotation="quat_wxyz"),),
        action_reference="absolute",
        rate_hz=10,
    )
    scheduler = Scheduler(turning, "blend", execute=8, blend_rows=1)
    scheduler.offer(scheduler.ask(0.0), ActionChunk(np.tile([1.0, 0, 0, 0], (16, 1)), 10), 0.0)
    scheduler.row(0.0)
    quarter = -np.array([np.cos(np.pi / 4), 0, 0, np.sin(np.pi / 4)])  # a quarter turn, with the sign turned over
    scheduler.offer(scheduler.ask(0.1), ActionChunk(np.tile(quarter, (16, 1)), 10), 0.1)
    half_way = scheduler.row(0.1).values
    np.testing.assert_allclose(np.abs(half_way), [np.cos(np.pi / 8), 0, 0, np.sin(np.pi / 8)], atol=1e-6)


def test_bad_use_is_refused():
    with pytest.raises(UnknownNameError, match="ensemble"):
        Scheduler(LINE, "ensembel", execute=8)
    scheduler = Scheduler(LINE, "latest", execute=8)
    ticket = scheduler.ask(0.0)
    with pytest.raises(InputError, match="already"):
        scheduler.ask(0.1)
    with pytest.raises(InputError, match="width"):
        scheduler.offer(ticket, ActionChunk(np.zeros((4, 2)), 10), 0.1)
    scheduler.row(0.5)
    with pytest.raises(InputError, match="went back"):
        scheduler.row(0.4)
