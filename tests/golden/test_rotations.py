"""Every pair of rotation formats, and projection of numbers that are no rotation, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from golden_files import numbers
from pose_cases import assert_same_rotation, our_format

from cosmos_robot.actions.rotations import convert
from cosmos_robot.errors import CosmosRobotError

TOLERANCE = 2e-6
MATRIX_LIKE = ("matrix", "rot6d", "rot9d")


@pytest.mark.golden("cosmos3/rotation_pairs")
def test_every_pair_of_formats(case) -> None:
    for pair, want in case["outputs"].items():
        source, target = map(our_format, pair.split("->"))
        given = numbers(case["inputs"][pair.split("->")[0]])
        if isinstance(want, dict):
            with pytest.raises(CosmosRobotError):
                convert(given, source, target, project=False)
            continue
        assert_same_rotation(convert(given, source, target, project=False), want, target, TOLERANCE)


@pytest.mark.golden("cosmos3/rotation_normalize")
def test_projection(case) -> None:
    source, project = our_format(case["input_format"]), case["normalize_matrix"]
    given = numbers(case["input"])
    if project and source in MATRIX_LIKE and not has_nearest(given, source):
        # Of many equally near rotations the reference takes one; we refuse.
        with pytest.raises(CosmosRobotError, match="near no rotation"):
            convert(given, source, "matrix")
        return
    for name, want in case["outputs"].items():
        target = our_format(name)
        if isinstance(want, dict):
            with pytest.raises(CosmosRobotError):
                convert(given, source, target, project=project)
            continue
        scale = 1 if project else max(1.0, float(np.abs(given).max()))
        assert_same_rotation(convert(given, source, target, project=project), want, target, 4 * TOLERANCE * scale)


def has_nearest(given: np.ndarray, source: str) -> bool:
    if given.shape not in ((3, 3), (6,), (9,)):
        return True
    return np.linalg.matrix_rank(convert(given, source, "matrix", project=False), tol=1e-6) > 1
