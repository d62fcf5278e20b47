"""Environments with a trait to be tested, made in the worker by ``factory="troubled_env:make"``."""

from __future__ import annotations

import json
import os
import sys
import time

from cosmos_robot.envs.fakes import FakeEnv
from cosmos_robot.errors import RenderError


class Telling(FakeEnv):
    """Says in its instruction what it knows: pictures drawn so far, and the worker's variables."""

    def observe(self):
        self.instruction = json.dumps({"draws": self.draws, "variables": dict(os.environ)})
        return super().observe()


class Crashing(FakeEnv):
    """Ends its process in the first step, after some last words."""

    def _step(self, action):
        print("last words of the simulator", file=sys.stderr, flush=True)
        os._exit(3)


class Hanging(FakeEnv):
    """Never comes back from a step."""

    def _step(self, action):
        time.sleep(600)


class Failing(FakeEnv):
    """Raises what no one expects in a step, and one of our own errors in drawing."""

    def _step(self, action):
        raise ZeroDivisionError("the physics is broken")

    def _draw(self, camera):
        raise RenderError(f"no lamp for {camera}")


class Unsendable(FakeEnv):
    """Answers with something that cannot travel."""

    def step(self, action):
        *result, info = super().step(action)
        return *result, {**info, "simulator": object()}


KINDS = {kind.__name__.lower(): kind for kind in (Telling, Crashing, Hanging, Failing, Unsendable)}


def make(name: str) -> FakeEnv:
    """``"crashing"`` and so on."""
    return KINDS[name](0)
