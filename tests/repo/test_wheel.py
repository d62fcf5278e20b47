"""The wheel holds everything the package is made of."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def wheel_names(root: Path, repo_files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in a wheel built from a copy of the repository's files, so that the checkout stays clean."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for path in repo_files:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, copy / path)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = out.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_every_module_is_in_the_wheel(wheel_names: set[str], modules: dict[str, Path]) -> None:
    expected = {str(p) if p.parts[0] == "cosmos_robot" else f"cosmos_robot/{p}" for p in modules.values()}
    assert not expected - wheel_names, "add their packages to [tool.setuptools] packages in pyproject.toml"


def test_data_files_are_in_the_wheel(wheel_names: set[str], repo_files: list[Path]) -> None:
    data = {
        str(path)
        for path in repo_files
        if path.parts[0] == "cosmos_robot" and path.suffix != ".py" and path.name != ".gitignore"
    }
    assert "cosmos_robot/py.typed" in data
    assert not data - wheel_names, "add them to [tool.setuptools.package-data] in pyproject.toml"


def test_nothing_else_is_in_the_wheel(wheel_names: set[str]) -> None:
    assert {name.split("/")[0] for name in wheel_names if ".dist-info/" not in name} == {"cosmos_robot"}
