"""What the tests of evaluation share: a seeing policy in the fake environment, in real worker processes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The module ``fake_run`` beside this file."""
    spec = importlib.util.spec_from_file_location("fake_run", HERE / "fake_run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["fake_run"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def dots() -> ModuleType:
    """The module ``dot_world`` beside this file."""
    spec = importlib.util.spec_from_file_location("dot_world", HERE / "dot_world.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["dot_world"] = module
    spec.loader.exec_module(module)
    return module
