"""Contracts to take apart."""

from __future__ import annotations

from pathlib import Path

import pytest

import cosmos_robot


@pytest.fixture(scope="session")
def assets() -> Path:
    """The shipped checkpoints."""
    return Path(cosmos_robot.__file__).parent / "assets"
