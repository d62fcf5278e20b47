"""Environments that fail in their own ways, and a collection as a process that tests may kill.

python rollout_run.py OUT EPISODES SECONDS_PER_DECISION
"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console

from cosmos_robot.envs.fakes import FAKE_ROBOT, FakeEnv
from cosmos_robot.errors import Interrupted, RobotError
from cosmos_robot.eval.entrants import Entrant
from cosmos_robot.eval.rollouts import Collected, RolloutRules, collect_rollouts, rollout_jobs

sys.path.insert(0, str(Path(__file__).parent))  # the module beside this one, here and in a process of its own
from fake_run import SeeingPolicy

FINDABLE = {"PYTHONPATH": str(Path(__file__).parent)}
"""Variables under which ``rollout_run:...`` is a factory for ``RemoteEnv``."""
QUIET = Console(file=io.StringIO())
EXECUTE = 4


class PatientPolicy(SeeingPolicy):
    """Waits where it sees no target, which the hand then covers."""

    def _towards(self, observation):
        if self._spot(observation.images["hand"], 0.2) is None and self._spot(observation.images["table"], 1.0) is None:
            return np.tile([0.0, 0.0, 1.0], (8, 1))
        return super()._towards(observation)


class WildPolicy(PatientPolicy):
    """Commands twice what the robot takes, another each time."""

    def act(self, observations, seeds):
        chunks = super().act(observations, seeds)
        shake = [np.random.default_rng(seed).uniform(-2, 2, (8, 3)) for seed in seeds]
        for chunk, rows in zip(chunks, shake, strict=True):
            object.__setattr__(chunk, "values", chunk.values + rows)
        return chunks


def entrant(policy=None, sha: str = "0" * 64) -> Entrant:
    return Entrant(policy or PatientPolicy(), "seeing", "fake-checkpoint", sha, None)


def rules(**changes) -> RolloutRules:
    return RolloutRules(**({"execute": EXECUTE, "rate_hz": FAKE_ROBOT.rate_hz} | changes))


def run(out: Path, names=("fake/0",), episodes: int = 2, policy=None, **options) -> Collected:
    """A collection of the fake environments, from seed 100 on."""
    given, sha = options.pop("rules", rules()), options.pop("sha", "0" * 64)
    options = {"workers": 2, "variables": FINDABLE, "console": QUIET, **options}
    return collect_rollouts(entrant(policy, sha), rollout_jobs(names, episodes, 100), given, out, **options)


class TroubledEnv(FakeEnv):
    """Seed 100 breaks the simulation at step 5, seed 101 raises, seed 102 is half done at the end, the rest are sound.
    A picture between decisions, or an official initial state, is an error."""

    def _reset(self, options):
        assert not options, options
        super()._reset(options)
        self._seed = self.np_random_seed

    def _step(self, action):
        if self.control_steps == 5 and self._seed == 100:
            self._running = False
            raise RobotError("the arm moved so hard that the simulation broke")
        if self.control_steps == 5 and self._seed == 101:
            raise ValueError("a defect")
        reward, success, out_of_time = super()._step(action)
        return reward, success and self._seed != 102, out_of_time

    def score(self):
        return 0.5 if self._seed == 102 else super().score()

    def _draw(self, camera):
        assert self.control_steps % EXECUTE == 0 or not self._running, f"drawn after {self.control_steps} steps"
        return super()._draw(camera)


def make_troubled(name: str, **options):
    return TroubledEnv(int(name.split("/")[1]), **options)


def make_guarded(name: str, **options):
    """As for collecting; who reads LIBERO's official initial states is stopped."""
    from cosmos_robot.envs import libero
    from cosmos_robot.envs.training_starts import make

    def refuse(self):
        raise AssertionError(f"read the evaluation states of {self.name}")

    libero.Task.init_states = refuse
    return make(name, **options)


def main() -> None:
    begun = time.monotonic()
    try:
        run(Path(sys.argv[1]), ("fake/0", "fake/1"), int(sys.argv[2]), PatientPolicy(float(sys.argv[3])))
    except Interrupted as stop:
        sys.exit(f"interrupted after {time.monotonic() - begun:.0f} s: {stop}")


if __name__ == "__main__":
    main()
