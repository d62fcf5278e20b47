"""What a run leaves on disk: every control period a row, holds marked, nothing overwritten."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cosmos_robot.contract import CameraSpec, FieldSpec, RobotSpec
from cosmos_robot.data.layouts import open_recordings
from cosmos_robot.errors import CheckpointError, DependencyError, InputError
from cosmos_robot.hardware.chunks import Due
from cosmos_robot.hardware.loop import Tick
from cosmos_robot.hardware.recorder import ABOUT, Recorder, RecorderSettings
from cosmos_robot.hardware.robot import Sent, standing
from cosmos_robot.types import Observation

ARM = RobotSpec(
    name="arm",
    cameras=(CameraSpec(name="front", height=32, width=32),),
    state=(FieldSpec(name="joint", width=2, unit="rad"),),
    action=(FieldSpec(name="joint", width=2, unit="rad", kind="joint"),),
    action_reference="absolute",
    rate_hz=10,
)
HOME = np.array([0.5, -0.5])


def tick(number, sent=None, seen=True, asked=True, grey=None):
    images = {"front": np.full((32, 32, 3), 10 * number if grey is None else grey, np.uint8)}
    observation = Observation(images, {"joint": np.full(2, number / 8)}, "wave", 100 + number / 10) if seen else None
    due = None if sent is None else Due(np.array(sent), 0.25, number)
    told = None if sent is None else Sent(np.array(sent, dtype=float))
    return Tick(number, 100 + number / 10, 0.001, told, "" if told else "waiting", observation, asked and seen, due)


def recorder(folder, **settings):
    return Recorder(RecorderSettings(folder, "wave", patient=True, **settings), ARM, lambda: HOME)


def columns(folder):
    from cosmos_robot.data.lerobot import LeRobotRecordings

    found = open_recordings(folder)
    assert isinstance(found, LeRobotRecordings)
    table = found._table(0)
    return found, {name: np.array([np.ravel(v) for v in table.column(name).to_pylist()]) for name in table.column_names}


def test_a_run_is_a_dataset(tmp_path):
    made = recorder(tmp_path / "run")
    for each in (tick(0), tick(1, [0.1, 0.2]), tick(2, [0.2, 0.3], seen=False), tick(5, [0.3, 0.4]), tick(6)):
        made.tick(each)
    assert made.close({"model": "echo"}) == tmp_path / "run" and made.lost == 0
    found, table = columns(tmp_path / "run")
    assert (found.fps, found.cameras, found.lengths) == (10, ("front",), (7,))
    assert found.action_names == ("joint[0]", "joint[1]") and found[0].instruction == "wave"
    still = [0.3, 0.4]  # periods 3 and 4 were skipped: the arm stood where it had been told to be
    np.testing.assert_allclose(
        table["action"], [HOME, [0.1, 0.2], [0.2, 0.3], [0.2, 0.3], [0.2, 0.3], [0.3, 0.4], still], rtol=1e-6
    )
    assert table["hold"].ravel().tolist() == [True, False, False, True, True, False, True]
    np.testing.assert_allclose(table["observation.state"][:, 0] * 8, [0, 1, 1, 1, 1, 5, 6])
    np.testing.assert_allclose(table["observation.time"].ravel(), [0, 0.1, 0.1, 0.1, 0.1, 0.5, 0.6])
    assert table["picture_row"].ravel().tolist() == [0, 1, 1, 1, 1, 5, 6]
    np.testing.assert_allclose(table["age_s"].ravel(), [0, 0.25, 0.25, 0, 0, 0.25, 0])
    greys = found.pictures(0, "front").mean((1, 2, 3))
    np.testing.assert_allclose(greys, [0, 10, 10, 10, 10, 50, 60], atol=3)
    about = json.loads((tmp_path / "run" / ABOUT).read_text())
    assert about["model"] == "echo" and RobotSpec.model_validate(about["robot"]) == ARM


@pytest.mark.parametrize("pictures, expected", [("question", [0, 0, 2]), ("tick", [0, 1, 2])])
def test_pictures_of_questions_only(tmp_path, pictures, expected):
    made = recorder(tmp_path / "run", pictures=pictures)
    for number, asked in enumerate((True, False, True)):
        made.tick(tick(number, [0.0, 0.0], asked=asked))
    made.close()
    assert columns(tmp_path / "run")[1]["picture_row"].ravel().tolist() == expected


def test_no_pictures(tmp_path):
    made = recorder(tmp_path / "run", pictures="none")
    made.tick(tick(0, [0.0, 0.0]))
    made.close()
    assert columns(tmp_path / "run")[0].cameras == ()


def test_nothing_is_overwritten_and_a_killed_run_is_known(tmp_path):
    folder = tmp_path / "run"
    killed = recorder(folder)
    killed.tick(tick(0, [0.0, 0.0]))
    killed.join()  # and never closed
    with pytest.raises(CheckpointError, match="never finished"):
        open_recordings(folder)
    with pytest.raises(CheckpointError, match="killed"):
        recorder(folder)
    killed.abandon()
    assert not list(tmp_path.iterdir())
    folder.mkdir()
    with pytest.raises(CheckpointError, match="already there"):
        recorder(folder)


def test_a_run_without_ticks_leaves_nothing(tmp_path):
    assert recorder(tmp_path / "run").close() is None
    assert not list(tmp_path.iterdir())


def test_a_recorder_that_fails_does_not_disturb_and_says_so(tmp_path):
    made = recorder(tmp_path / "run")
    made.tick(tick(0, [0.0, 0.0]))
    made.tick(tick(1, [0.0, 0.0, 0.0]))  # one number too many
    made.tick(tick(2, [0.0, 0.0]))
    with pytest.raises(CheckpointError, match="recording failed"):
        made.close()
    assert not (tmp_path / "run").exists()
    made.abandon()


def test_what_cannot_be_recorded_is_refused(tmp_path):
    for change, complaint in (({"rate_hz": 12.5}, "whole rates"), ({"state": ()}, "no state")):
        with pytest.raises(InputError, match=complaint):
            Recorder(RecorderSettings(tmp_path / "run", ""), ARM.model_copy(update=change), lambda: HOME)
    assert not list(tmp_path.iterdir())


def test_standing_still_as_a_command(arm):
    assert standing(ARM, None, lambda: HOME) is HOME
    np.testing.assert_array_equal(standing(ARM, np.ones(2), lambda: HOME), [1, 1])
    changes = arm.model_copy(update={"action_reference": "per_step"})
    np.testing.assert_array_equal(standing(changes, None, lambda: HOME), [0, 0, 0])
    np.testing.assert_array_equal(standing(changes, np.array([0.5, 0.5, 1.0]), lambda: HOME), [0, 0, 1])


def test_a_live_view_needs_its_package(arm):
    try:
        import rerun  # noqa: F401
    except ImportError:
        from cosmos_robot.hardware.view import LiveView

        with pytest.raises(DependencyError, match="rerun-sdk"):
            LiveView(None)
    else:
        pytest.skip("rerun is installed; its viewer opens a window")
