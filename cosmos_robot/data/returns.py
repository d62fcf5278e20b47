"""Value targets of an episode from its outcome."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.errors import InputError


def value_targets(rows: int, reward: float, gamma: float) -> NDArray[np.float32]:
    """Targets (rows,) in -1..1: 2 gamma^(rows - 1 - t) - 1 after any success, -1 everywhere after a failure.

    reward: of the whole episode, 0 or less for a failure. A partial score counts like full success, as in Cosmos
    Policy (dataset_common.py, compute_monte_carlo_returns). gamma: per row. Raises InputError for no rows, or gamma
    outside 0..1.
    """
    if rows < 1 or not 0 <= gamma <= 1:
        raise InputError(f"value targets: got {rows} rows and gamma={gamma}, expected at least 1 and 0 to 1")
    factors = np.full(rows, gamma, np.float32)
    factors[0] = 1 if reward > 0 else 0
    return 2 * np.multiply.accumulate(factors)[::-1] - 1  # rounded to float32 at every step, as the reference does
