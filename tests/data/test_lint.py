"""Planted faults are found, each by itself and ten at once; a clean dataset has none."""

import json
import shutil
from pathlib import Path

import oracle_sets as sets
import planted
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("lerobot")
pytest.importorskip("h5py")
from cosmos_robot.cli import main
from cosmos_robot.data.lint import lint
from cosmos_robot.errors import CheckpointError, InputError


def codes(report) -> set[str]:
    return {finding.code for finding in report.findings}


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return lint(planted.write_hdf5(tmp_path_factory.mktemp("lint") / "clean_demo.hdf5", planted.takes()))


def test_a_clean_dataset_has_no_finding(clean):
    assert not clean.findings
    assert clean.errors == 0


@pytest.mark.parametrize("fault", planted.IN_THE_NUMBERS)
def test_a_planted_fault_is_found(fault, tmp_path):
    code, spoil = planted.IN_THE_NUMBERS[fault]
    episodes = planted.takes()
    spoil(episodes)
    report = lint(planted.write_hdf5(tmp_path / "spoilt.hdf5", episodes))
    assert codes(report) == {code}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return planted.write_v21(tmp_path_factory.mktemp("lint") / "set", planted.takes())


def test_a_clean_lerobot_folder_has_no_finding(folder):
    assert not lint(folder).findings


@pytest.mark.parametrize("fault", planted.IN_THE_FILES)
def test_a_planted_fault_of_the_files_is_found(fault, folder, tmp_path):
    code, spoil = planted.IN_THE_FILES[fault]
    spoilt = Path(shutil.copytree(folder, tmp_path / "set"))
    spoil(spoilt)
    report = lint(spoilt, pictures=200)
    assert code in codes(report) and codes(report) <= {code} | COMPANIONS.get(fault, set())
    assert all("2" in finding.where or "99" in finding.where or code in WHOLE for finding in report.findings)


@pytest.mark.parametrize("fault", planted.IN_THE_FILES)
def test_faults_of_episodes_that_are_left_out_are_no_errors(fault, folder, tmp_path):
    _, spoil = planted.IN_THE_FILES[fault]
    spoilt = Path(shutil.copytree(folder, tmp_path / "set"))
    spoil(spoilt)
    report = lint(spoilt, pictures=50, places=[0, 1, 3, 4, 5])
    assert report.errors == (fault == "wrong total"), report.findings


@pytest.mark.parametrize("fault", ["nan", "outlier", "duplicate", "black", "no instruction"])
def test_numbers_of_episodes_that_are_left_out_are_not_looked_at(fault, tmp_path):
    episodes = planted.takes()
    planted.IN_THE_NUMBERS[fault][1](episodes)
    path = planted.write_hdf5(tmp_path / "spoilt.hdf5", episodes)
    assert lint(path, pictures=50).findings and not lint(path, pictures=50, places=[0, 1, 3, 5]).findings


COMPANIONS = {
    "rows fewer than listed": {"picture-count"},
    "video at another rate": {"picture-count", "unreadable"},
}
WHOLE = {"count", "statistics"}


def test_ten_faults_at_once_are_all_found(tmp_path, capsys):
    """The command on a dataset with ten planted faults, and on a clean one."""
    faults = ("nan", "time gap", "near constant", "outlier", "duplicate", "gripper negated", "black", "small pictures",
              "no instruction", "slow clock")  # fmt: skip
    episodes = [planted.take(seed) for seed in range(14)]
    for number, fault in enumerate(faults):
        moved = planted.rotated(episodes, number)
        planted.IN_THE_NUMBERS[fault][1](moved)
        episodes = planted.rotated(moved, -number)
    path = planted.write_hdf5(tmp_path / "ten.hdf5", episodes)
    assert main(["data", "lint", str(path), "--json", "-"]) == 1
    report = json.loads(capsys.readouterr().out)
    wanted = {planted.IN_THE_NUMBERS[fault][0] for fault in faults}
    assert len(wanted) == 10
    assert {finding["code"] for finding in report["findings"]} == wanted
    clean = planted.write_hdf5(tmp_path / "clean.hdf5", [planted.take(seed) for seed in range(6)])
    assert main(["data", "lint", str(clean), "--json", str(tmp_path / "report.json")]) == 0
    assert json.loads((tmp_path / "report.json").read_text())["findings"] == []
    assert "0 errors, 0 warnings" in capsys.readouterr().out
    assert main(["data", "lint", str(clean), "--json", str(tmp_path / "report.json")]) == 2
    assert "already there" in capsys.readouterr().err


def test_guesses_follow_the_data(tmp_path):
    """Each guess turns round when the convention does."""

    def guesses(name, change):
        episodes = planted.takes()
        for one in episodes:
            change(one)
        return {g.topic: g for g in lint(planted.write_hdf5(tmp_path / f"{name}.hdf5", episodes)).guesses}

    found = guesses("as-is", lambda one: None)
    assert found["gripper"].answer == "high commands close" and found["gripper"].sure > 0.9
    assert found["reference"].answer == "changes per step"
    assert found["orientation of agentview"].answer == "upright, or mirrored left to right"
    assert found["orientation of eye_in_hand"].answer == "unknown"
    assert found["scale"].answer.startswith("normalised")

    def other(one):
        one.actions[:-1, :6], one.actions[-1, :6] = one.state[1:, 2:8], one.state[-1, 2:8]
        one.actions[:, 6] *= -1
        one.pictures["agentview"] = one.pictures["agentview"][:, ::-1, ::-1]

    found = guesses("other", other)
    assert found["gripper"].answer == "high commands open"
    assert found["reference"].answer.startswith("absolute targets")
    assert found["orientation of agentview"].answer.startswith("upside down")
    assert found["scale"].answer.startswith("physical units")


def test_many_pictures_are_sampled_and_none_is_possible(tmp_path):
    path = planted.write_hdf5(tmp_path / "set.hdf5", planted.takes())
    report = lint(path, pictures=120)
    assert 100 <= report.facts["pictures_seen"] <= 140 and report.facts["pictures"] == 720
    assert lint(path, pictures=0).facts["pictures_seen"] == 0
    with pytest.raises(InputError, match="pictures: got -1"):
        lint(path, pictures=-1)


def test_one_damaged_file_of_many_is_a_finding_and_all_of_them_a_refusal(tmp_path):
    folder = sets.write_rollouts(tmp_path / "rollouts", rows=(30, 30, 30))
    victim = folder / "ep1.hdf5"
    victim.write_bytes(victim.read_bytes()[:500])
    report = lint(folder)
    assert [f.where for f in report.findings if f.code == "unreadable"] == ["ep1.hdf5"]
    for path in folder.iterdir():
        path.write_bytes(b"no")
    with pytest.raises(CheckpointError, match=r"no episode in them: .*no readable HDF5 file"):
        lint(folder)


def test_v3_boundaries_are_checked(tmp_path):
    folder = sets.write_v3(tmp_path / "set", rows=(6, 5, 7), video_mb=10)
    assert "boundary" not in codes(lint(folder))
    path = next((folder / "meta/episodes").glob("*/*.parquet"))
    table = pq.read_table(path)
    for name, value in (("dataset_from_index", 5), ("videos/observation.images.hand/from_timestamp", 0.2)):
        column = table.column(name).to_pylist()
        column[1] = value
        pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(column)), path)
        found = [f for f in lint(folder, pictures=0).findings if f.code == "boundary"]
        assert found and found[0].where == "episode 1"
