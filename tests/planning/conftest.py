"""What the tests of planning share: a world on a line that can be computed on paper."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def line() -> ModuleType:
    """The module ``line_world`` beside this file."""
    spec = importlib.util.spec_from_file_location("line_world", HERE / "line_world.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["line_world"] = module
    spec.loader.exec_module(module)
    return module
