"""data stats, convert and show."""

import json

import data_oracle as oracle
import h5py
import numpy as np
import oracle_sets as sets
import planted
import pytest
from PIL import Image

pytest.importorskip("lerobot")
pytest.importorskip("h5py")
from cosmos_robot.actions.statistics_files import read_blocks
from cosmos_robot.cli import main
from cosmos_robot.data.conversion import PROVENANCE, convert
from cosmos_robot.data.layouts import open_recordings
from cosmos_robot.data.measure import measure
from cosmos_robot.data.show import show
from cosmos_robot.errors import CheckpointError, InputError


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory):
    return sets.write_rollouts(tmp_path_factory.mktemp("source") / "rollouts")


@pytest.fixture(scope="module")
def converted(rollouts, tmp_path_factory):
    return convert(rollouts, tmp_path_factory.mktemp("target") / "set")


def test_a_converted_set_holds_the_same_numbers_and_pictures(rollouts, converted):
    one, other = open_recordings(rollouts), open_recordings(converted)
    assert other.layout == "LeRobot v3.0" and other.fps == one.fps and other.cameras == one.cameras
    assert other.lengths == one.lengths == sets.ROWS
    for episode in range(len(one)):
        assert np.array_equal(other[episode].state, one[episode].state)
        assert np.array_equal(other[episode].actions, one[episode].actions)
        assert other[episode].instruction == sets.instruction(episode)
        for camera, name in enumerate(other.cameras):
            spelled = [oracle.spelled(p) for p in other.pictures(episode, name)]
            assert spelled == [(episode, row, camera) for row in range(sets.ROWS[episode])]
    about = json.loads((converted / PROVENANCE).read_text())
    assert [e["source"] for e in about["episodes"]] == ["ep0.hdf5", "ep1.hdf5", "ep2.hdf5"]
    assert [e["success"] for e in about["episodes"]] == [True, False, True]


def test_conversion_refuses_what_it_cannot_hold(rollouts, converted, tmp_path):
    with pytest.raises(CheckpointError, match="already there"):
        convert(rollouts, converted)
    path = planted.write_hdf5(tmp_path / "set.hdf5", planted.takes()[:2])
    out = tmp_path / "out"
    with h5py.File(path, "a") as file:
        file["data/demo_1/actions"][5, 2] = np.nan
    for change, error in (
        (dict(), r"set\.hdf5 demo_1 row 5: the actions is not finite"),
        (dict(fps=7), "fps: got 7, but the files say 10"),
        (dict(skip=(5,)), r"skip: got \[5\] of episodes 0 to 1"),
        (dict(skip=(0, 1)), "at least one must stay"),
    ):
        with pytest.raises(InputError, match=error):
            convert(path, out, **change)
        assert not out.exists() and not list(tmp_path.glob("out*"))
    assert open_recordings(convert(path, out, skip=(1,))).lengths == (planted.ROWS,)
    (tmp_path / "new.partial").mkdir()
    with pytest.raises(CheckpointError, match=r"killed while it wrote .*new; delete .*new\.partial"):
        convert(path, tmp_path / "new")


def test_conversion_asks_for_what_the_files_do_not_say(tmp_path):
    path = sets.write_demos(tmp_path / "set.hdf5", rows=(4,))
    with h5py.File(path, "a") as file:
        del file["data"].attrs["env_args"], file["data/demo_0"].attrs["task_description"]
    with pytest.raises(InputError, match="no frame rate; give it with --fps"):
        convert(path, tmp_path / "out")
    with pytest.raises(InputError, match="no instruction is stored; give one with --instruction"):
        convert(path, tmp_path / "out", fps=10)
    with pytest.raises(InputError, match="whole number"):
        convert(path, tmp_path / "out", fps=12.5)
    assert main(["data", "convert", str(path), str(tmp_path / "out"), "--fps", "10", "--instruction", "go"]) == 0
    assert open_recordings(tmp_path / "out")[0].instruction == "go"


def test_statistics_are_those_of_all_rows_together(rollouts, converted, tmp_path):
    rows = np.concatenate([sets.actions(e, n) for e, n in enumerate(sets.ROWS)])
    assert main(["data", "stats", str(rollouts), "--json", str(tmp_path / "one.json")]) == 0
    blocks = read_blocks(tmp_path / "one.json")
    assert set(blocks) == {"state", "action"}
    assert blocks["action"].count == len(rows)
    for name, found in (("min", rows.min(0)), ("max", rows.max(0)), ("mean", rows.mean(0)), ("std", rows.std(0))):
        np.testing.assert_allclose(blocks["action"].column(name), found, atol=1e-6)
    np.testing.assert_allclose(blocks["action"].column("q99"), np.quantile(rows, 0.99, axis=0), atol=1e-5)
    twice = measure([converted, converted])
    assert twice["rows"] == 2 * len(rows) and twice["quantiles"] == "exact"
    np.testing.assert_allclose(twice["action"]["mean"], rows.mean(0), atol=1e-6)


def test_statistics_refuse_to_mix(rollouts, tmp_path):
    arm = planted.write_hdf5(tmp_path / "arm.hdf5", planted.takes()[:1])
    with pytest.raises(InputError, match="are not one dataset: state width 3 and 9; measure them separately"):
        measure([rollouts, arm])
    with pytest.raises(InputError, match="got no dataset"):
        measure([])
    with h5py.File(arm, "a") as file:
        file["data/demo_0/robot_states"][3, 1] = np.inf
    with pytest.raises(
        InputError, match=r"arm\.hdf5, arm\.hdf5 demo_0, state: .*not finite; see cosmos-robot data lint"
    ):
        measure([arm])


def test_show_draws_the_sheet_and_the_plots(rollouts, tmp_path):
    out = tmp_path / "shown"
    assert main(["data", "show", str(rollouts), "--out", str(out), "--episodes", "2", "--columns", "3"]) == 0
    sheet, plots = (Image.open(out / name) for name in ("sheet.png", "plots.png"))
    assert sheet.width > 3 * 96 and sheet.height > 2 * 2 * 96
    assert plots.size == (1600, 480) and len(np.unique(np.asarray(plots.convert("L")))) > 20
    with pytest.raises(InputError, match="already there and not an empty folder"):
        show(rollouts, out)
    with pytest.raises(InputError, match="got 0 episodes"):
        show(rollouts, tmp_path / "more", episodes=0)
