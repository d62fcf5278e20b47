"""What the tests of evaluation share: a seeing policy in the fake environment, in real worker processes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def fake(load_beside) -> ModuleType:
    """The module ``fake_run`` beside this file."""
    return load_beside(HERE, "fake_run")


@pytest.fixture(scope="session")
def dots(load_beside) -> ModuleType:
    """The module ``dot_world`` beside this file."""
    return load_beside(HERE, "dot_world")
