"""Names to lazy import paths.

A registry maps a name to ``"module:attribute"``; the module is imported when the name is asked for, so listing names
costs nothing and an absent simulator hurts only those who ask for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cosmos_robot.errors import InputError, UnknownNameError


@dataclass
class Registry:
    """One kind of thing (``kind`` appears in messages), by name."""

    kind: str
    _paths: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, path: str) -> None:
        """Register ``path`` (``"module:attribute"``) under ``name``. Raises InputError if the name is taken."""
        if ":" not in path:
            raise InputError(f"{self.kind} {name!r}: path {path!r} is not 'module:attribute'")
        if self._paths.get(name, path) != path:
            raise InputError(f"{self.kind} {name!r} is already registered as {self._paths[name]!r}, got {path!r}")
        self._paths[name] = path

    def get(self, name: str) -> Any:
        """Import and return what ``name`` stands for. Raises UnknownNameError with the nearest names."""
        if name not in self._paths:
            raise UnknownNameError(self.kind, name, self._paths)
        module, attribute = self._paths[name].split(":")
        return getattr(importlib.import_module(module), attribute)

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._paths))
