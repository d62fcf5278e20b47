"""The public language of the package is typed: mypy as pyproject.toml configures it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_mypy_passes(root: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_covers_the_public_language_strictly(tmp_path: Path, root: Path) -> None:
    """An untyped function must be refused, otherwise the test above shows nothing."""
    bad = tmp_path / "untyped.py"
    bad.write_text("def f(x):\n    return x\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml"), str(bad)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert "no-untyped-def" in done.stdout
