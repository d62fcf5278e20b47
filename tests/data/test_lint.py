"""Planted faults are found, each by itself and ten at once; a clean dataset has none."""

import planted
import pytest

pytest.importorskip("lerobot")
pytest.importorskip("h5py")
from cosmos_robot.data.lint import lint


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
