"""One real LIBERO environment for all tests that do not wear it out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cosmos_robot import envs
from cosmos_robot.envs.libero import LiberoEnv


@pytest.fixture(scope="session")
def panda() -> Iterator[LiberoEnv]:
    """libero_object/0, somewhere in an episode."""
    with envs.make("libero_object/0") as env:
        yield env
