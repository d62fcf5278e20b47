"""What the tests of planning share: a world on a line that can be computed on paper."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def line(load_beside) -> ModuleType:
    """The module ``line_world`` beside this file."""
    return load_beside(HERE, "line_world")
