"""A log that a killed run goes on from: a header, then a line for each thing that is finished."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from cosmos_robot.errors import InputError
from cosmos_robot.ownership import own


class RunLog(ABC):
    """A JSONL file of one run, each line flushed to disk when it is written.

    A last line that a killed process cut short is dropped when the log is opened again. begins: how the file starts.
    kind: what another file is said to be. holds: what its lines are.
    """

    begins: ClassVar[bytes]
    kind: ClassVar[str]
    holds: ClassVar[str]

    def __init__(self, path: Path, header: str, *, fresh: bool = False):
        """Open or continue ``path``. Raises InputError naming the differences if it holds another run, CheckpointError
        while another evaluation writes to it; a file that is no log is left alone even if ``fresh``."""
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        start = self.path.read_bytes()[: len(self.begins)] if self.path.exists() else b""
        if not self.begins.startswith(start):
            raise InputError(f"{self.path} is in the way and {self.kind}; write to another --json, or move it")
        self._file = self.path.open("a")
        try:
            own(self._file, f"evaluating into {path}")
            if fresh or not self._read():
                self._file.truncate(0)
                self._write(header)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file; calling it again does nothing."""
        self._file.close()

    @abstractmethod
    def _take(self, whole: bytes) -> list[str]:
        """Take over the log's whole lines; or why they are another run's, with nothing taken."""

    def _keep(self, line: str) -> None:
        self._write(line)
        os.fsync(self._file.fileno())

    def _write(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()

    def _read(self) -> bool:
        """Take over what is there; False if not even the header is whole."""
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return False
        differences = self._take(whole)
        if differences:
            raise InputError(
                f"{self.path} holds {self.holds} of another run:"
                + "".join(f"\n  - {d}" for d in differences)
                + "\nwrite to another --json, or pass --fresh to discard them"
            )
        if len(whole) < len(data):
            os.truncate(self.path, len(whole))
        return True
