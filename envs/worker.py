"""The other end of ``RemoteEnv``: a process that holds one environment and answers requests about it.

Messages are JSON over a ``multiprocessing`` connection, so the two ends may run different Python and numpy versions:

    request  {"method": "step", "arguments": {...}}
    reply    {"result": {...}}   or   {"error": {"kind": "InputError", "arguments": [...], "fields": {...}}}

Pictures never travel in a message; a reply says where they lie in the shared block (``shared_pictures``).
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from cosmos_robot.envs.base import RobotEnv, execute
from cosmos_robot.envs.shared_pictures import SharedPictures
from cosmos_robot.errors import CosmosRobotError, InputError
from cosmos_robot.types import Image, Observation


@dataclass(frozen=True)
class Film:
    """Which frames to keep while actions run: every ``every``-th control step of the named cameras.

    Control steps are counted from the reset, so the spacing stays even over many calls of ``execute``.
    """

    every: int
    cameras: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "cameras", tuple(self.cameras))
        if self.every < 1:
            raise InputError(f"film: every must be at least 1 control step, got {self.every}")


def to_json(value: object) -> bytes:
    """JSON bytes; numpy numbers and arrays become plain numbers and lists."""
    return json.dumps(value, default=_plain).encode()


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Film):
        return asdict(value)
    raise InputError(f"{type(value).__name__} cannot be sent to an environment process: {value!r}; use plain values")


class Host:
    """One environment at a time, created by ``factory(name, **options)``, and the requests it answers."""

    def __init__(self, factory: Callable[..., RobotEnv], pictures: SharedPictures):
        self._factory, self._pictures = factory, pictures
        self._env: RobotEnv | None = None

    def answer(self, request: dict[str, Any]) -> bytes:
        """Run one request; an error becomes a reply, never the end of the process."""
        try:
            return to_json({"result": getattr(self, f"do_{request['method']}")(**request["arguments"])})
        except CosmosRobotError as error:
            kind = next(c.__name__ for c in type(error).__mro__ if c.__module__ == CosmosRobotError.__module__)
            return to_json({"error": {"kind": kind, "arguments": error.args, "fields": vars(error)}})
        except Exception as error:  # noqa: BLE001 (whatever a simulator throws is passed on)
            text = f"{type(error).__name__} in the environment process: {error}\n{traceback.format_exc()}"
            return to_json({"error": {"kind": "WorkerError", "arguments": [text], "fields": {}}})

    def do_open(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        self.close()
        self._env = self._factory(name, **options)
        facts = {
            name: getattr(self._env, name)
            for name in ("instruction", "init_state_count", "settle_steps", "step_budget")
        }
        return {"robot": self._env.robot.model_dump(), **facts}

    def do_reset(self, seed: int | None, options: dict[str, Any] | None, cameras: list[str]) -> dict[str, Any]:
        observation, info = self._env.reset(seed=seed, options=options)
        return {"observation": self._report(observation, cameras), "info": info}

    def do_step(self, action: list[float], cameras: list[str]) -> dict[str, Any]:
        observation, reward, terminated, truncated, info = self._env.step(action)
        outcome = {"reward": reward, "terminated": terminated, "truncated": truncated, "info": info}
        return {"observation": self._report(observation, cameras), **outcome}

    def do_execute(
        self, values: list[list[float]], cameras: list[str], film: dict[str, Any] | None, rows: list[str]
    ) -> dict[str, Any]:
        frames: list[tuple[str, int, Image]] = []
        before: list[tuple[str, int, Image]] = []
        states: list[list[float]] = []

        def look(env: RobotEnv) -> None:
            if rows and env.running and len(states) < len(values):
                states.append(env.published_state().tolist())
                before.extend((name, env.control_steps, env.render_camera(name)) for name in rows)

        def record(env: RobotEnv) -> None:
            look(env)
            if film and env.control_steps % film["every"] == 0:
                frames.extend((name, env.control_steps, env.render_camera(name)) for name in film["cameras"])

        look(self._env)
        result = execute(self._env, np.asarray(values), record)
        outcome = {k: getattr(result, k) for k in ("reward", "terminated", "truncated", "success", "steps", "score")}
        return {"observation": self._report(result.observation, cameras, frames, before), "states": states, **outcome}

    def do_observe(self, cameras: list[str]) -> dict[str, Any]:
        return {"observation": self._report(self._env.observe(), cameras)}

    def do_render_camera(self, name: str) -> dict[str, Any]:
        return {"pictures": self._pictures.write([(name, self._env.control_steps, self._env.render_camera(name))])}

    def close(self) -> None:
        """Close the environment, if there is one."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _report(self, observation: Observation, cameras: list[str], frames=(), before=()) -> dict[str, Any]:
        now = self._env.control_steps
        filmed = {name: image for name, step, image in frames if step == now}
        seen = [(n, now, filmed[n] if n in filmed else observation.images[n]) for n in cameras]
        entries = self._pictures.write([*seen, *frames, *before])
        first = len(seen) + len(frames)
        return {
            "state": {name: value.tolist() for name, value in observation.state.items()},
            "instruction": observation.instruction,
            "time": observation.time,
            "control_steps": now,
            "score": self._env.score(),
            "pictures": entries[: len(seen)],
            "frames": entries[len(seen) : first],
            "before": entries[first:],
        }


def _leave_with_parent() -> None:
    """End this process soon after its parent has died, even in the middle of a long simulator call."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main() -> None:
    """Serve requests until the other end closes. Command line: connection fd, pictures fd, factory path."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it then closes us
    connection = Connection(int(sys.argv[1]))
    pictures = SharedPictures(int(sys.argv[2]))
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    module, attribute = sys.argv[3].split(":")
    host = Host(getattr(importlib.import_module(module), attribute), pictures)
    try:
        while True:
            connection.send_bytes(host.answer(json.loads(connection.recv_bytes())))
    except (EOFError, ConnectionError):
        host.close()


if __name__ == "__main__":
    main()
