"""Files of ``eval/`` and ``examples/`` that are run as scripts.

Python then puts their folder first on its path, where ``eval/statistics.py`` and ``eval/libero.py`` would hide a
standard module and the simulator.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for folder in ("eval", "examples")
    for path in (ROOT / folder).glob("*.py")
    if 'if __name__ == "__main__":' in path.read_text()
)
# What ``python SCRIPT --help`` does, then a look at what the path still hides.
AS_SCRIPT = """
import os, runpy, sys
script = sys.argv[1]
sys.argv = [script, "--help"]
sys.path[0] = os.path.dirname(os.path.abspath(script))
try:
    runpy.run_path(script, run_name="__main__")
except SystemExit as stop:
    assert not stop.code, stop.code
from importlib.machinery import PathFinder
for name in ("statistics", "libero"):
    print(name, PathFinder.find_spec(name).origin)
"""


def test_there_are_scripts() -> None:
    assert "eval/libero.py" in SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_tells_its_flags_and_hides_no_module(script: str) -> None:
    command = [sys.executable, "-c", AS_SCRIPT, script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: " in done.stdout
    origins = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[-2:])
    assert origins.keys() == {"statistics", "libero"}
    assert not [origin for origin in origins.values() if Path(origin).is_relative_to(ROOT / "eval")]
