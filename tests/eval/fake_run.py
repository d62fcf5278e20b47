"""A seeing policy for the fake environment, and an evaluation with it as a process that tests may kill.

python fake_run.py RESULT EPISODES [SECONDS_PER_DECISION]
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path

import numpy as np

from cosmos_robot.contract import Contract
from cosmos_robot.envs.fakes import FAKE_ROBOT, FakeEnv
from cosmos_robot.errors import RenderError
from cosmos_robot.eval.entrants import Entrant
from cosmos_robot.eval.protocol import EvalProtocol, current_versions
from cosmos_robot.eval.runner import RunSettings
from cosmos_robot.eval.session import evaluate
from cosmos_robot.types import ActionChunk

FINDABLE = {"PYTHONPATH": str(Path(__file__).parent)}
"""Variables under which ``fake_run:...`` is a factory for ``RemoteEnv``."""

CONTRACT = Contract.model_validate(
    {
        "robot": FAKE_ROBOT.model_dump(),
        "model": {
            "name": "fake-model",
            "backbone": "cosmos3",
            "domain_id": 5,
            "chunk": 8,
            "execute": 4,
            "state_row": True,
            "canvas": {
                "height": 48,
                "width": 96,
                "placements": [
                    {
                        "camera": "table",
                        "crop": {"top": 0, "left": 0, "height": 48, "width": 64},
                        "to": {"top": 0, "left": 0, "height": 48, "width": 64},
                    },
                    {
                        "camera": "hand",
                        "crop": {"top": 0, "left": 0, "height": 24, "width": 24},
                        "to": {"top": 0, "left": 64, "height": 24, "width": 24},
                    },
                ],
            },
            "state_normalization": {"method": "identity", "scale_floor": 0.1},
            "action_normalization": {"method": "identity", "scale_floor": 0.1},
            "prompt": {"template": "caption"},
            "sampler": {"solver": "euler", "steps": 5, "shift": 5.0},
        },
    }
)


class SeeingPolicy:
    """Drives the hand towards the red spot, seen in the hand's camera or else on the table."""

    contract = CONTRACT
    cameras = ("table", "hand")

    def __init__(self, seconds: float = 0.0):
        self.seconds = seconds
        self.batches: list[list[int]] = []

    def act(self, observations, seeds):
        self.batches.append(list(seeds))
        time.sleep(self.seconds)
        return [ActionChunk(self._towards(o), 20.0, o.time, "seeing") for o in observations]

    def _towards(self, observation):
        offset = self._spot(observation.images["hand"], 0.2)
        if offset is None:
            offset = self._spot(observation.images["table"], 1.0) - observation.state["position"]
        if "still" in observation.instruction.lower():
            offset = np.zeros(2)
        row = np.append(np.clip(offset / 0.02 / 4, -1, 1), 1.0)
        return np.tile(row, (8, 1))

    @staticmethod
    def _spot(image, half_width):
        rows, columns = np.nonzero((image[..., 0] > 210) & (image[..., 1] < 50))
        if not len(rows):
            return None
        height, width = image.shape[:2]
        return np.array([columns.mean() / (width - 1) * 2 - 1, 1 - rows.mean() / (height - 1) * 2]) * half_width


class DoomedEnv(FakeEnv):
    """Takes its process with it, or falls silent, in init state 1, as often as the variables say."""

    def _reset(self, options):
        self._doomed = options.get("init_state") == 1
        super()._reset(options)

    def _step(self, action):
        deaths = Path(os.environ["DEATHS_FOLDER"])
        if self._doomed and self.control_steps == 5 and len(list(deaths.iterdir())) < int(os.environ["DEATHS"]):
            (deaths / str(os.getpid())).touch()
            if os.environ.get("SILENT"):
                time.sleep(600)
            os._exit(7)
        return super()._step(action)


def make_doomed(name: str, **options):
    return DoomedEnv(int(name.split("/")[1]), **options)


def make_dark(name: str, **options):
    from cosmos_robot.envs.libero import GL_REMEDY

    raise RenderError(f"no OpenGL for rendering; {GL_REMEDY}")


def make_locating(name: str, **options):
    """An environment whose instruction tells where its process finds the simulator and a standard module."""
    env = FakeEnv(int(name.split("/")[1]), **options)
    env.instruction = " ".join(importlib.util.find_spec(module).origin for module in ("libero", "statistics"))
    return env


def fake_protocol(episodes: int = 2, tasks: tuple[int, ...] = (0, 1, 2), **changes) -> EvalProtocol:
    settings = {
        "suite": "fake",
        "tasks": tasks,
        "episodes": episodes,
        "settle_steps": 2,
        "max_steps": 60,
        "execute": 4,
        "rate_hz": 20.0,
        "cameras": FAKE_ROBOT.cameras,
        "versions": current_versions(),
    }
    return EvalProtocol(**(settings | changes))


def fake_entrant(policy=None) -> Entrant:
    return Entrant(policy or SeeingPolicy(), "seeing", "fake", "0" * 64, None)


def main() -> None:
    policy = SeeingPolicy(float(sys.argv[3]))
    header = fake_entrant(policy).header(fake_protocol(int(sys.argv[2])))
    content = evaluate(policy, header, Path(sys.argv[1]), RunSettings(workers=2))
    print(f"success: {content['successes']}/{content['episodes']}")


if __name__ == "__main__":
    main()
