"""The shipped checkpoints act as when they were scored: commands of fixed observations and seeds, stored.

The numbers are float32 on a CPU. They change only if the meaning of the pipeline does: whoever changes them re-scores.
"""

from __future__ import annotations

import numpy as np
import pytest

from cosmos_robot.policies import load_policy
from cosmos_robot.policies.conformance import some_observation

INSTRUCTIONS = ("pick up the alphabet soup and place it in the basket", "put the bowl on the plate")
SEEDS = (0, 7)
ROWS = (0, 7, 15)
STORED = {
    "tiny-libero": [
        [
            [-0.20122, -0.12916, -0.16068, -0.00108, 0.01422, -0.0049, -1.0],
            [-0.09496, -0.11667, -0.19642, 7e-05, -0.00813, -0.0065, -1.0],
            [-0.0339, -0.00196, -0.14622, -0.0121, 0.00723, -0.01586, -1.0],
        ],
        [
            [-0.00801, 0.03593, -0.11394, 0.00692, -0.0164, -0.00693, -1.0],
            [-0.12428, 0.03581, -0.09321, -0.01407, -0.02281, -0.00826, -1.0],
            [-0.16169, 0.00058, -0.0061, -0.00229, -0.01307, -0.00232, -1.0],
        ],
    ],
    "tiny-libero-blind": [
        [
            [-0.06022, 0.06501, -0.19802, -0.00542, 0.02552, 0.00602, -1.0],
            [-0.0389, 0.03517, -0.34643, -0.01101, 0.00732, -0.00028, -1.0],
            [0.01426, 0.14841, -0.15999, -0.01316, 0.00879, -0.01705, -1.0],
        ],
        [
            [0.08922, 0.16549, -0.04084, 0.00634, -0.01523, 0.00099, -1.0],
            [0.0428, 0.1425, -0.21961, -0.00863, 0.00849, -0.00603, -1.0],
            [0.13046, 0.16303, -0.0273, 0.00647, 0.0041, -0.00231, -1.0],
        ],
    ],
}


@pytest.mark.parametrize("name", list(STORED))
def test_shipped_actions_stay(name: str) -> None:
    policy = load_policy(name)
    observations = [some_observation(policy.contract, 3 + i, text) for i, text in enumerate(INSTRUCTIONS)]
    chunks = policy.act(observations, SEEDS)
    np.testing.assert_allclose([c.values[list(ROWS)] for c in chunks], STORED[name], atol=3e-5, rtol=0)
