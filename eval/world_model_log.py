"""The log of a world-model evaluation: what was measured, line by line, so that a killed run goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cosmos_robot.errors import InputError
from cosmos_robot.ownership import own

BEGINS = b'{"evaluation": "world model"'


class WindowLog:
    """A JSONL file: the header, then a line for each finished window or ranked episode, flushed to disk.

    header: what the run is; lines of another header are not mixed with these. A last line that a killed process cut
    short is dropped. Raises InputError naming the differences if the file holds another run, CheckpointError while
    another process writes to it; a file that is no such log is left alone even if ``fresh``.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], *, fresh: bool = False):
        self.path, self.header = Path(path), {"evaluation": "world model", **header}
        self.lines: dict[str, dict[str, Any]] = {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        begins = self.path.read_bytes()[: len(BEGINS)] if self.path.exists() else b""
        if not BEGINS.startswith(begins):
            raise InputError(f"{self.path} is in the way and no world-model log; write to another --json, or move it")
        self._file = self.path.open("a")
        try:
            own(self._file, f"evaluating into {path}")
            if fresh or not self._read():
                self._file.truncate(0)
                self._write(self.header)
        except BaseException:
            self._file.close()
            raise

    def append(self, record: Mapping[str, Any]) -> None:
        """Keep a record, which has a ``key`` that no other has."""
        self._write(record)
        os.fsync(self._file.fileno())
        self.lines[record["key"]] = dict(record)

    def close(self) -> None:
        """Close the file; calling it again does nothing."""
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _read(self) -> bool:
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return False
        try:
            header, *lines = (json.loads(line) for line in whole.decode().splitlines())
            found = {line["key"]: line for line in lines}
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.path} is damaged: {error}; pass --fresh to discard it") from error
        differences = [
            f"{name}: {header.get(name)} then, {self.header.get(name)} now"
            for name in {**header, **self.header}
            if header.get(name) != self.header.get(name)
        ]
        if differences:
            raise InputError(
                f"{self.path} holds windows of another run:"
                + "".join(f"\n  - {d}" for d in differences)
                + "\nwrite to another --json, or pass --fresh to discard them"
            )
        if len(whole) < len(data):
            os.truncate(self.path, len(whole))
        self.lines = found
        return True


def log_path(result: Path) -> Path:
    """``out.json`` to ``out.windows.jsonl``."""
    return result.with_name(result.stem + ".windows.jsonl")
