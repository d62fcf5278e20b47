"""Reading recorded cases: one JSON file of cases a topic, arrays beside it in ``.npz`` files."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

DEFAULT = Path(__file__).parent / "data"
NON_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def numbers(value: Any, dtype: Any = np.float64) -> np.ndarray:
    """Nested lists of a case as an array; the strings "nan", "inf" and "-inf" stand for themselves."""
    if isinstance(value, list):
        return np.array([numbers(v, dtype) for v in value], dtype=dtype)
    return np.asarray(NON_FINITE.get(value, value) if isinstance(value, str) else value, dtype=dtype)


class GoldenFolder:
    """A folder in the schema of ``tests/golden/data``: ``cosmos3/``, ``cosmos_policy/`` and ``protocols/``."""

    def __init__(self, root: Path):
        self.root = root

    def path(self, name: str) -> Path:
        return self.root / name

    @functools.cache  # noqa: B019  one folder a session
    def json(self, topic: str) -> dict[str, Any]:
        """The whole file ``topic`` (for instance ``"cosmos3/prompts"``)."""
        return json.loads(self.path(f"{topic}.json").read_text())

    @functools.cache  # noqa: B019
    def arrays(self, topic: str) -> dict[str, np.ndarray]:
        """Every array of ``topic``'s ``.npz`` file, by its full name ``<case id>__<name>``."""
        with np.load(self.path(f"{topic}.npz")) as stored:
            return {name: stored[name] for name in stored.files}

    def arrays_of(self, topic: str, case_id: str) -> dict[str, np.ndarray]:
        """The arrays of one case, by their short names."""
        prefix = f"{case_id}__"
        return {name.removeprefix(prefix): a for name, a in self.arrays(topic).items() if name.startswith(prefix)}

    def cases(self, topic: str, key: str = "cases") -> list[dict[str, Any]]:
        """The list under ``key`` of the topic's file."""
        return self.json(topic)[key]
