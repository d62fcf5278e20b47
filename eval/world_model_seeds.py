"""Seeds from names: episodes, tasks and windows each have noise of their own, the same in every process."""

from __future__ import annotations

import hashlib
import json


def seed_of(*parts: str | int) -> int:
    """A seed of 32 bits for these names and numbers together; others give another. ``hash`` would differ from process
    to process."""
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:4], "big")
