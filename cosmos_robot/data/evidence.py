"""All numbers of a dataset side by side, for the checks and guesses of ``data lint``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.data.recordings import Recording

QUANTITIES = ("state", "action")


@dataclass(frozen=True, eq=False)
class Evidence:
    """The readable episodes of a dataset.

    episodes: their indices and recordings. fps: as the dataset says. names: per quantity, one per dimension or ().
    wholes: the indices whose rows enter the statistics: at least one row, finite, and of the usual widths.
    """

    episodes: tuple[tuple[int, Recording], ...]
    fps: float | None
    names: dict[str, tuple[str, ...]]
    widths: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        usual = {q: Counter(self.of(r, q).shape[1] for _, r in self.episodes if len(r)) for q in QUANTITIES}
        object.__setattr__(self, "widths", {q: c.most_common(1)[0][0] if c else 0 for q, c in usual.items()})

    @staticmethod
    def of(recording: Recording, quantity: str) -> NDArray[np.floating]:
        """The array of ``state`` or ``action``."""
        return recording.state if quantity == "state" else recording.actions

    def whole(self) -> Iterator[tuple[int, Recording]]:
        """Episodes that can be compared: rows of both quantities, of the usual widths, all finite."""
        for index, recording in self.episodes:
            arrays = [self.of(recording, q) for q in QUANTITIES]
            usual = all(a.shape[1] == self.widths[q] for a, q in zip(arrays, QUANTITIES, strict=True))
            if usual and 0 < len(arrays[0]) == len(arrays[1]) and all(np.isfinite(a).all() for a in arrays):
                yield index, recording

    def rows(self, quantity: str) -> NDArray[np.float64]:
        """All rows of the whole episodes, (sum N, D)."""
        found = [self.of(recording, quantity) for _, recording in self.whole()]
        return np.concatenate(found).astype(np.float64) if found else np.zeros((0, self.widths[quantity]))

    def label(self, quantity: str, dimension: int) -> str:
        """A dimension in words, with its name where it has one."""
        names = self.names[quantity]
        named = f" ({names[dimension]})" if dimension < len(names) else ""
        return f"{quantity} dimension {dimension}{named}"

    def motion(self) -> NDArray[np.float64]:
        """Per dimension of the state (Ds,), the spread within an episode, the median over episodes."""
        found = [spread(r.state.astype(np.float64)) for _, r in self.whole()]
        return np.median(found, axis=0) if found else np.zeros(self.widths["state"])


def spread(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Width (D,) of the middle nine tenths of each column, which single wild values do not move."""
    return np.quantile(rows, 0.95, axis=0) - np.quantile(rows, 0.05, axis=0)


def listed(values: Sequence[object], most: int = 6) -> str:
    """The first values in words, and how many more there are."""
    more = len(values) - most
    return ", ".join(map(str, values[:most])) + (f" and {more} more" if more > 0 else "")


def correlation(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Pearson's correlation, 0 where one of the two does not vary."""
    a, b = np.asarray(a, float) - np.mean(a), np.asarray(b, float) - np.mean(b)
    scale = np.sqrt((a * a).sum() * (b * b).sum())
    return float((a * b).sum() / scale) if scale > 1e-12 else 0.0
