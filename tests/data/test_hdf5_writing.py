"""Rollouts as Cosmos Policy's files: our reader finds in them what was written, under the published names."""

import h5py
import numpy as np
import pytest

from cosmos_robot.contract import load_robot
from cosmos_robot.data.hdf5_writing import StepRecord, as_jpeg, write_hdf5
from cosmos_robot.data.layouts import open_recordings
from cosmos_robot.errors import InputError

STEPS = 5


def record(robot, state_width: int, **changes) -> StepRecord:
    """Commands and states counted through; picture i of camera c is of the one colour 40 + 10 i + 3 c."""
    pictures = {
        camera.name: [as_jpeg(np.full((32, 48, 3), 40 + 10 * row + 3 * c, np.uint8)) for row in range(STEPS)]
        for c, camera in enumerate(robot.cameras)
    }
    return StepRecord(
        **{
            "instruction": "fold the shirt",
            "pictures": pictures,
            "states": np.arange(STEPS * state_width, dtype=np.float64).reshape(STEPS, state_width) / 7,
            "actions": np.arange(STEPS * robot.action_width, dtype=np.float64).reshape(STEPS, -1) / 9,
            "success": False,
            "score": 0.25,
            "seed": 2**32 - 1,
            "policy": "driver",
        }
        | changes
    )


@pytest.mark.parametrize(
    ("name", "width", "layout", "views"),
    [
        ("libero-panda", 9, "Cosmos Policy rollouts", ["primary", "wrist"]),
        ("robocasa-panda", 9, "Cosmos Policy rollouts", ["primary", "secondary", "wrist"]),
        ("aloha", 14, "ALOHA episodes", ["cam_low", "primary", "wrist_left", "wrist_right"]),
        ("pusht", 2, "Cosmos Policy rollouts", ["top"]),
    ],
)
def test_the_reader_finds_what_was_written(tmp_path, name, width, layout, views):
    robot = load_robot(name)
    given = record(robot, width)
    write_hdf5(given, tmp_path / "set" / "a.hdf5", robot)
    write_hdf5(record(robot, width, success=True, score=1.0), tmp_path / "set" / "b.hdf5", robot)
    found = open_recordings(tmp_path / "set")
    assert found.layout.startswith(layout) and found.fps == robot.rate_hz
    if name != "pusht":
        assert list(found.cameras) == views
    assert [r.success for r in found] == [False, True]
    assert found[0].instruction == "fold the shirt"
    assert np.array_equal(found[0].actions, given.actions.astype(np.float32))
    assert np.array_equal(found[0].state, given.states.astype(np.float32))
    shown = [found.pictures(0, view) for view in found.cameras]
    assert all(pictures.shape == (STEPS, 32, 48, 3) for pictures in shown)
    first = sorted(int(pictures[0].mean().round()) for pictures in shown)
    assert np.allclose(first, [40 + 3 * c for c in range(len(robot.cameras))], atol=1)
    assert all(abs(float(p[4].mean()) - float(p[0].mean()) - 40) < 1 for p in shown)
    with h5py.File(tmp_path / "set" / "a.hdf5") as file:
        assert (file.attrs["success_score"], file.attrs["seed"], file.attrs["policy"]) == (0.25, 2**32 - 1, "driver")
    assert [path.name for path in sorted((tmp_path / "set").iterdir())] == ["a.hdf5", "b.hdf5"]


@pytest.mark.parametrize("change", [{"states": np.zeros((4, 9))}, {"actions": np.zeros((0, 7))}])
def test_rows_that_do_not_go_together_are_refused(change):
    with pytest.raises(InputError, match="one per command"):
        record(load_robot("libero-panda"), 9, **change)
