"""Any environment in a process of its own, possibly with an interpreter of its own, behind the same interface.

    with RemoteEnv("libero_object/3") as env:
        observation, info = env.reset(seed=0, cameras=("agentview",))
        result = env.execute(values, cameras=("agentview", "wrist"))

To keep many busy at once, ``send`` a request to each and ``recv`` from those whose ``connection`` is ready:

    for env in envs:
        env.send("reset", seed=0, cameras=cameras)
    ready = multiprocessing.connection.wait([env.connection for env in envs])
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cosmos_robot import errors
from cosmos_robot.contract import RobotSpec
from cosmos_robot.envs.base import RobotEnv, StepResult, StepRows, check_rows
from cosmos_robot.envs.shared_pictures import SharedPictures
from cosmos_robot.envs.worker import Film, to_json
from cosmos_robot.errors import CosmosRobotError, InputError, UnknownNameError, WorkerError
from cosmos_robot.types import Image, LazyImages, Observation

__all__ = ["Film", "RemoteEnv"]

WORKER_VARIABLES = {"MUJOCO_GL": "egl", "OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "1"}
"""What a worker's environment variables hold unless told otherwise: one thread each, since there are many workers."""

METHODS = ("open", "reset", "step", "execute", "observe", "render_camera")
POLITE_SECONDS = 5.0


class RemoteEnv(RobotEnv):
    """A ``RobotEnv`` whose simulator lives in another process.

    name: environment to open at once; None starts the process only, and ``open`` (or ``send("open", name)``) follows.
    python: interpreter of the worker; cosmos_robot's light package must be importable there. None: this one.
    options: what ``make`` takes beside the name (``settle_steps``, ``step_budget``, ...).
    variables: environment variables of the worker, over ``WORKER_VARIABLES``.
    factory: ``"module:function"`` that makes an environment from a name, looked up in the worker.

    Pictures are drawn only for the ``cameras`` named in a call; any other is drawn when it is read, if the environment
    still stands there. Errors raised in the worker arrive here as the same class with the same message. A worker that
    dies raises WorkerError with its exit code and last output.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        python: str | None = None,
        variables: Mapping[str, str] | None = None,
        factory: str = "cosmos_robot.envs:make",
    ):
        self.name: str | None = None
        self.control_steps = 0
        self._running = False
        self._moment = 0
        self._score = 0.0
        self._pending: tuple[str, dict[str, Any]] | None = None
        self._closed = False
        self._worker = _Worker(python, variables or {}, factory)
        # Runs on close, on garbage collection and when the interpreter exits, whichever comes first.
        self._stop = weakref.finalize(self, self._worker.stop)
        if name is not None:
            try:
                self.open(name, **(options or {}))
            except BaseException:
                self.close()
                raise

    @property
    def connection(self) -> Connection:
        """Becomes readable when an answer is waiting (or the worker died); for ``multiprocessing.connection.wait``."""
        return self._worker.connection

    @property
    def process_id(self) -> int:
        """Operating-system id of the worker."""
        return self._worker.process.pid

    def open(self, name: str, **options: Any) -> None:
        """Replace the environment in the worker by ``name``; the process, and what it has loaded, is kept.

        ``options`` (plain values) go to the environment's constructor, as in ``envs.make``."""
        self._call("open", name, **options)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None, cameras: Sequence[str] = ()
    ) -> tuple[Observation, dict[str, Any]]:
        """As ``RobotEnv.reset``; pictures of ``cameras`` come with the answer."""
        return self._call("reset", seed=seed, options=options, cameras=cameras)

    def step(self, action: ArrayLike, cameras: Sequence[str] = ()):
        """As ``RobotEnv.step``; pictures of ``cameras`` come with the answer."""
        return self._call("step", action, cameras=cameras)

    def execute(
        self, values: ArrayLike, *, cameras: Sequence[str] = (), film: Film | None = None, rows: Sequence[str] = ()
    ) -> StepResult:
        """Run rows of ``values`` (k, D), as ``envs.base.execute``; ``film`` asks for ``StepResult.frames``, cameras in
        ``rows`` for ``StepResult.rows``."""
        return self._call("execute", values, cameras=cameras, film=film, rows=rows)

    def observe(self, cameras: Sequence[str] = ()) -> Observation:
        """The present observation, without stepping, with pictures of ``cameras``."""
        return self._call("observe", cameras=cameras)

    def score(self) -> float:
        """As ``RobotEnv.score``, when the last answer came."""
        return self._score

    def render_camera(self, name: str) -> Image:
        """Draw one camera now: uint8 (H, W, 3)."""
        return self._call("render_camera", name)

    def _draw(self, camera: str) -> Image:
        return self.render_camera(camera)

    def close(self) -> None:
        """End the worker and free everything; calling it again does nothing."""
        self._closed = True
        self._pending = None
        self._stop()

    def send(self, method: str, *args, **kwargs) -> None:
        """Ask for ``method`` (one of METHODS) with its usual arguments and return at once; ``recv`` brings what the
        method would have returned. One request at a time."""
        self._require_open()
        if method not in METHODS:
            raise UnknownNameError("remote method", method, METHODS)
        if self._pending:
            raise InputError(f"{method}: the answer to {self._pending[0]!r} has not been read; call recv() first")
        if self.name is None and method != "open":
            raise InputError(f"{method}: no environment is open in this process; call open(name) first")
        arguments = getattr(self, f"_ask_{method}")(*args, **kwargs)
        if method not in ("observe", "render_camera"):
            self._moment += 1
        self._worker.send(method, arguments)
        self._pending = (method, arguments)

    def recv(self, timeout: float | None = None):
        """The answer to the last ``send``; waits up to ``timeout`` seconds (None: for ever) and raises WorkerError
        when it has not come by then, in which case ``recv`` may be tried again."""
        self._require_open()
        if not self._pending:
            raise InputError("recv() without a send() before it")
        method, arguments = self._pending
        if timeout is not None and not self.connection.poll(timeout):
            raise WorkerError(f"no answer to {method!r} within {timeout:g} s from environment {self.name!r}")
        try:
            reply = self._worker.recv(method)
        except WorkerError:
            self._pending = None
            raise
        self._pending = None
        if "error" in reply:
            raise _rebuild(**reply["error"])
        return getattr(self, f"_got_{method}")(reply["result"], arguments)

    def _call(self, method: str, *args, **kwargs):
        self.send(method, *args, **kwargs)
        return self.recv()

    # What each request carries.

    def _ask_open(self, name: str, **options: Any) -> dict[str, Any]:
        self.name = None
        return {"name": name, "options": options}

    def _ask_reset(self, *, seed=None, options=None, cameras=()) -> dict[str, Any]:
        return {"seed": seed, "options": options, "cameras": self._names(cameras)}

    def _ask_step(self, action, cameras=()) -> dict[str, Any]:
        return {"action": self._check(action), "cameras": self._names(cameras)}

    def _ask_execute(self, values, *, cameras=(), film=None, rows=()) -> dict[str, Any]:
        if film is not None:
            self._names(film.cameras)
        named = {"cameras": self._names(cameras), "rows": self._names(rows)}
        return {"values": check_rows(values, self.robot), "film": film, **named}

    def _ask_observe(self, cameras=()) -> dict[str, Any]:
        return {"cameras": self._names(cameras)}

    def _ask_render_camera(self, name: str) -> dict[str, Any]:
        return {"name": self._names([name])[0]}

    def _names(self, cameras: Sequence[str]) -> list[str]:
        return [self.robot.camera(name).name for name in cameras]

    # What each answer becomes.

    def _got_open(self, result: dict[str, Any], arguments: dict[str, Any]) -> None:
        self.name = arguments["name"]
        self.robot = RobotSpec.model_validate(result["robot"])
        self.instruction = result["instruction"]
        self.init_state_count = result["init_state_count"]
        self.settle_steps, self.step_budget = result["settle_steps"], result["step_budget"]
        self.control_steps, self._running = 0, False
        self._make_spaces()

    def _got_reset(self, result: dict[str, Any], arguments: dict[str, Any]):
        self._running = True
        return self._observation(result["observation"]), result["info"]

    def _got_step(self, result: dict[str, Any], arguments: dict[str, Any]):
        observation = self._observation(result["observation"])
        self._running = not (result["terminated"] or result["truncated"])
        return observation, result["reward"], result["terminated"], result["truncated"], result["info"]

    def _got_execute(self, result: dict[str, Any], arguments: dict[str, Any]) -> StepResult:
        report, states = result.pop("observation"), result.pop("states")
        self._running = not (result["terminated"] or result["truncated"])
        rows = self._rows(arguments["rows"], report["before"], states) if states else None
        film = arguments["film"]
        frames: dict[str, list[Image]] = {name: [] for name in film.cameras} if film else {}
        for entry in report["frames"]:
            frames[entry["camera"]].append(self._worker.pictures.read(entry))
        filmed = {k: tuple(v) for k, v in frames.items()}
        return StepResult(self._observation(report), frames=filmed, rows=rows, **result)

    def _rows(self, cameras: Sequence[str], entries: Sequence[Any], states: list[list[float]]) -> StepRows:
        read = self._worker.pictures.read
        drawn = {name: [read(entry) for entry in entries if entry["camera"] == name] for name in cameras}
        return StepRows(np.array(states), {name: np.stack(pictures) for name, pictures in drawn.items()})

    def _got_observe(self, result: dict[str, Any], arguments: dict[str, Any]) -> Observation:
        return self._observation(result["observation"])

    def _got_render_camera(self, result: dict[str, Any], arguments: dict[str, Any]) -> Image:
        return self._worker.pictures.read(result["pictures"][0])

    def _observation(self, report: dict[str, Any]) -> Observation:
        self.control_steps, self._score = report["control_steps"], report["score"]
        self.instruction = report["instruction"]
        sent = {entry["camera"]: self._worker.pictures.read(entry) for entry in report["pictures"]}
        moment = self._moment

        def draw(name: str) -> Image:
            return sent.pop(name) if name in sent else self._draw(name)

        def fresh() -> bool:
            return moment == self._moment and not self._closed and not self._pending

        images = LazyImages(tuple(c.name for c in self.robot.cameras), draw, fresh)
        for name in list(sent):
            images[name]  # kept from now on, whatever becomes of the environment
        state: dict[str, NDArray[np.float64]] = {k: np.asarray(v, np.float64) for k, v in report["state"].items()}
        return Observation(images, state, report["instruction"], report["time"])


class _Worker:
    """The process, its connection, its pictures and its last output."""

    def __init__(self, python: str | None, variables: Mapping[str, str], factory: str):
        self.connection, theirs = multiprocessing.Pipe()
        self.pictures = SharedPictures()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by _free)
        self._busy = False
        # -P: a file in the working folder must not stand in for a package of the same name (eval/libero.py, libero).
        command = [python or sys.executable, "-P", "-m", "cosmos_robot.envs.worker"]
        command += [str(theirs.fileno()), str(self.pictures.fd), factory]
        try:
            self.process = subprocess.Popen(
                command,
                env=_variables(variables),
                pass_fds=(theirs.fileno(), self.pictures.fd),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
            )
        except OSError as error:
            self._free()
            raise WorkerError(f"cannot start an environment process with {command[0]!r}: {error}") from error
        finally:
            theirs.close()

    def send(self, method: str, arguments: dict[str, Any]) -> None:
        """Pass one request on; the worker must be idle."""
        message = to_json({"method": method, "arguments": arguments})
        try:
            self.connection.send_bytes(message)
        except ConnectionError as error:
            raise self._death(method) from error
        self._busy = True

    def recv(self, method: str) -> dict[str, Any]:
        """The next reply; raises WorkerError if the process has died."""
        try:
            reply = json.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionError) as error:
            raise self._death(method) from error
        self._busy = False
        return reply

    def stop(self) -> None:
        """End the process: by asking if it is idle, by force if it is in the middle of something, or too slow."""
        if self._busy:
            self.process.kill()
        self.connection.close()
        try:
            self.process.wait(POLITE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._free()

    def _free(self) -> None:
        self.connection.close()
        self.pictures.close()
        self._log.close()

    def _death(self, method: str) -> WorkerError:
        try:
            code = self.process.wait(POLITE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._log.seek(0)
        last = self._log.read().decode(errors="replace").strip().splitlines()[-15:]
        output = "\n  ".join(last) or "(none)"
        return WorkerError(
            f"the environment process ended with exit code {code} while asked to {method!r}; close this environment "
            f"and make a new one. Its last output:\n  {output}"
        )


def _variables(extra: Mapping[str, str]) -> dict[str, str]:
    chosen = {**os.environ, **WORKER_VARIABLES}
    if "MUJOCO_GL" in os.environ:
        chosen["MUJOCO_GL"] = os.environ["MUJOCO_GL"]
    return {**chosen, **extra}


def _rebuild(kind: str, arguments: list[Any], fields: dict[str, Any]) -> CosmosRobotError:
    cls = getattr(errors, kind)
    error = cls.__new__(cls, *arguments)  # not through __init__, which may take other arguments than the message
    vars(error).update(fields)
    return error
