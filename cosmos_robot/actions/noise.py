"""Noise on commands that lasts over steps, so that a robot is moved by it and not only shaken."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

KEPT: Final = 0.7
"""What a step's noise keeps of the one before."""
OF_ROTATIONS: Final = 0.3
"""The share of it that rotations get: a hand that is turned away sees nothing of its task any more."""


def correlated(last: NDArray[np.float64], drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    """The next step's noise after ``last``, with the standard deviation of what is drawn; any shape."""
    found: NDArray[np.float64] = KEPT * last + np.sqrt(1 - KEPT**2) * drawn
    return found
