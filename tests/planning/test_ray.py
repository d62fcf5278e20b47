"""The same over real Ray actors, of which one dies. Slow to start: only with COSMOS_ROBOT_SLOW set."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from cosmos_robot.planning.best_of_n import Planner
from cosmos_robot.planning.executors import RayExecutor
from cosmos_robot.planning.plan import PlannerSettings

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    "COSMOS_ROBOT_SLOW" not in os.environ, reason="starts a Ray cluster; COSMOS_ROBOT_SLOW=1"
)


def maker():
    """What runs in the actor, which cannot import this folder's modules: a function that travels by value."""
    source = str(HERE / "line_world.py")

    def make():
        import importlib.util
        import sys

        spec = importlib.util.spec_from_file_location("line_world", source)
        module = sys.modules["line_world"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.evaluator()

    return make


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield ray
    ray.shutdown()


def test_actors_find_the_same_and_may_die(cluster, line) -> None:
    settings = PlannerSettings(n=4, futures=2, values=3)
    alone = line.planner(n=4).plan(line.at(0), 3)
    with RayExecutor(maker(), 2, num_cpus=1, restarts=0) as executor:
        planner = Planner(line.Steps(), executor, settings)
        found = planner.plan(line.at(0), 3)
        assert [c.score for c in found.candidates] == [c.score for c in alone.candidates]
        cluster.kill(executor.workers[0]._seat)
        after = planner.plan(line.at(0), 3)
        assert after.planned and sum(bool(c.rejected) for c in after.candidates) == 1
        for c in after.candidates:
            if c.chunk is not None:
                np.testing.assert_array_equal(c.chunk.values, alone.candidates[c.index].chunk.values)
