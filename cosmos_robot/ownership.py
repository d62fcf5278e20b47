"""One process per output: a lock that the system lets go of however the process ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from cosmos_robot.errors import CheckpointError


def own(file: TextIO, doing: str) -> None:
    """Hold the open ``file`` until it is closed.

    doing: what another holder would be doing, for the message (``"collecting into demos"``). Raises CheckpointError if
    somebody else, in this process or another, holds it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise CheckpointError(f"another process is {doing}; wait for it, stop it, or name another output") from error


@contextmanager
def owned(folder: Path, doing: str) -> Iterator[None]:
    """Hold ``folder`` (made if absent) by a file ``lock`` in it, as ``own`` does, for the duration of a block."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        own(file, doing)
        yield
