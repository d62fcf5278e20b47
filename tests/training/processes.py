"""Processes that train, for the tests that kill them, fail in them or let them train together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start_processes(root: Path, action: str, step: int, count: int, **options) -> list[subprocess.Popen]:
    """``recipe.main`` in ``count`` processes that find each other as those of torchrun do. options: of ``Popen``."""
    script = str(Path(__file__).with_name("recipe.py"))
    shared = {
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    return [
        subprocess.Popen(
            [sys.executable, script, str(root), action, str(step)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            **options,
        )
        for rank in range(count)
    ]
