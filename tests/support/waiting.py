"""Waiting for what happens on another thread or in another process, as long as a busy machine needs."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 60.0


def until(condition: Callable[[], object]) -> None:
    """Wait for it; after a minute, fail."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.002)
