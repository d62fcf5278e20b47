"""The log of a world-model evaluation: what was measured, line by line, so that a killed run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cosmos_robot.errors import InputError
from cosmos_robot.eval.run_log import RunLog

BEGINS = b'{"evaluation": "world model"'


class WindowLog(RunLog):
    """A line for each finished window or ranked episode, after the header.

    header: what the run is; lines of another header are not mixed with these.
    """

    begins, kind, holds = BEGINS, "no world-model log", "windows"

    def __init__(self, path: Path, header: Mapping[str, Any], *, fresh: bool = False):
        """As ``RunLog``."""
        self.header = {"evaluation": "world model", **header}
        self.lines: dict[str, dict[str, Any]] = {}
        super().__init__(path, json.dumps(self.header), fresh=fresh)

    def append(self, record: Mapping[str, Any]) -> None:
        """Keep a record, which has a ``key`` that no other has."""
        self._keep(json.dumps(record))
        self.lines[record["key"]] = dict(record)

    def _take(self, whole: bytes) -> list[str]:
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
        if not differences:
            self.lines = found
        return differences


def log_path(result: Path) -> Path:
    """``out.json`` to ``out.windows.jsonl``."""
    return result.with_name(result.stem + ".windows.jsonl")
