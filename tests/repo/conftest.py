"""The checkout under test, as data."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def repo_files() -> list[Path]:
    """Files that are, or are about to be, in the repository: relative paths."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return sorted(path for name in listing.stdout.split("\0") if name and (ROOT / (path := Path(name))).is_file())


@pytest.fixture(scope="session")
def python_files(repo_files: list[Path]) -> list[Path]:
    return [path for path in repo_files if path.suffix == ".py"]


@pytest.fixture(scope="session")
def modules(python_files: list[Path]) -> dict[str, Path]:
    """Importable name to file, for every module of the installed package."""
    mapped = ("envs", "policies", "planning", "hardware", "eval")
    found = {}
    for path in python_files:
        if path.parts[0] == "cosmos_robot" or path.parts[0] in mapped:
            parts = path.with_suffix("").parts
            parts = parts if parts[0] == "cosmos_robot" else ("cosmos_robot", *parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found
