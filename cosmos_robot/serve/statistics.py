"""What a server remembers of its answers: counts, rates, and where the time went."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

KEPT: Final = 1000
RATE_OVER_S: Final = 10.0


class Ledger:
    """Outcomes counted for good, the seconds of the last thousand answers kept. Safe from any thread."""

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._recent: deque[tuple[float, dict[str, float]]] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def note(self, outcome: str, seconds: Mapping[str, float], now: float) -> None:
        """One more answer: "ok" or a failure's code, and its seconds by part."""
        with self._lock:
            self._outcomes[outcome] += 1
            if seconds:
                self._recent.append((now, dict(seconds)))

    def facts(self, now: float) -> dict[str, Any]:
        """outcomes: counts. per_s: answers per second over the last ten. ms: p50, p95 and p99 by part. recent_ms: the
        totals of the last answers, oldest first, for a plot."""
        with self._lock:
            outcomes, recent = dict(self._outcomes), list(self._recent)
        parts = sorted({name for _, seconds in recent for name in seconds})
        return {
            "outcomes": outcomes,
            "per_s": sum(now - at <= RATE_OVER_S for at, _ in recent) / RATE_OVER_S,
            "ms": {part: _percentiles([s[part] * 1e3 for _, s in recent if part in s]) for part in parts},
            "recent_ms": [round(s["total"] * 1e3, 3) for _, s in recent[-200:] if "total" in s],
        }


def _percentiles(values: list[float]) -> dict[str, float]:
    return {f"p{q}": float(np.percentile(values, q)) for q in (50, 95, 99)}
