"""openpi's websocket protocol over a service, for its own clients and those of RoboArena, RoboLab and MolmoSpaces.

One binary frame a request, one a reply, in the array dialect of the request; a text frame tells an error. The model
runs off this thread, so pings, health checks and new clients are served meanwhile. A connection is a session.
"""

from __future__ import annotations

import asyncio
import hmac
import http
import itertools
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

import cosmos_robot
from cosmos_robot.contract import Contract, RobotSpec
from cosmos_robot.errors import CosmosRobotError, InputError
from cosmos_robot.serve import wire
from cosmos_robot.serve.messages import ChunkReply, Failure, Infer
from cosmos_robot.serve.server import check_exposure
from cosmos_robot.serve.service import Service
from cosmos_robot.serve.views import Pictures, read_observation
from cosmos_robot.types import ActionChunk

LOG = logging.getLogger(__name__)
CLOSED_255: Final = 255.0
CLOSE_S: Final = 2.0
"""How long a client that was told goodbye may keep its connection open."""


@dataclass(frozen=True)
class OpenpiSettings:
    """host, port, token, max_bytes: as for our own protocol. rows: rows of a reply, all if None (openpi's DROID example
    wants exactly 10). pictures: whether pictures of another size than the contract's are refused or resized. roboarena:
    greet with RoboArena's six keys and no other, as its checker demands. prompt: for clients that send none. seed: of
    a connection's first request, counted up.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str = ""
    max_bytes: int = wire.MAX_BYTES
    rows: int | None = None
    pictures: Pictures = "exact"
    roboarena: bool = False
    prompt: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        check_exposure(self.host, self.port, self.token)
        if self.rows is not None and (isinstance(self.rows, bool) or self.rows < 1):
            raise InputError(f"rows: expected at least 1, got {self.rows!r}")


@dataclass
class _Session:
    name: str
    seed: int
    last_ms: float | None = None
    chunk: ActionChunk | None = None
    used: int = 0
    sub: set[str] = field(default_factory=set)


class OpenpiServer:
    """The websocket side of a service. ``start`` listens on a thread of its own; ``close`` ends it."""

    def __init__(self, service: Service, settings: OpenpiSettings):
        self._service, self._settings = service, settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="openpi", daemon=True)
        self._numbers = itertools.count()
        self._server: Server | None = None
        self.address = ""

    def start(self) -> str:
        """Listen. Returns the address; raises InputError if it cannot be had."""
        self._thread.start()
        try:
            self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        except OSError as error:
            self._stop_loop()
            where = f"{self._settings.host}:{self._settings.port}"
            raise InputError(f"cannot listen on ws://{where}: {error.strerror}; choose another port") from error
        port = next(iter(self._server.sockets)).getsockname()[1]
        self.address = f"ws://{self._settings.host}:{port}"
        return self.address

    def close(self) -> None:
        """Close all connections. Safe to call twice."""
        if self._server is not None:
            server, self._server = self._server, None
            server.close()
            asyncio.run_coroutine_threadsafe(server.wait_closed(), self._loop).result(10 * CLOSE_S)
            self._stop_loop()

    def __enter__(self) -> OpenpiServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _listen(self) -> Server:
        s = self._settings
        return await serve(
            self._converse,
            s.host,
            s.port,
            compression=None,
            max_size=s.max_bytes,
            process_request=self._before,
            close_timeout=CLOSE_S,
        )

    def _before(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        if self._settings.token:
            given = request.headers.get("Authorization", "").rpartition(" ")[2]
            if not hmac.compare_digest(given.encode(), self._settings.token.encode()):
                return connection.respond(http.HTTPStatus.UNAUTHORIZED, "the token is missing or wrong\n")
        return None

    async def _converse(self, connection: ServerConnection) -> None:
        session = _Session(f"openpi/{next(self._numbers)}", self._settings.seed)
        forgetting = asyncio.ensure_future(self._forget(connection, session))
        try:
            await connection.send(wire.encode(greeting(self._service.contract, self._settings)))
            async for frame in connection:
                await connection.send(await self._answer(frame, session))
        except ConnectionClosed:
            pass  # the client is gone, and with it what it waited for
        await forgetting

    async def _forget(self, connection: ServerConnection, session: _Session) -> None:
        """Drop what a client asked as soon as it is gone, also while one of its questions waits."""
        await connection.wait_closed()
        for name in (session.name, *session.sub):
            self._service.reset(name)

    async def _answer(self, frame: str | bytes, session: _Session) -> str | bytes:
        began = time.monotonic()
        try:
            if isinstance(frame, str):
                raise InputError("expected a binary frame with a msgpack map, got text")
            request, dialect = wire.decode(frame, self._settings.max_bytes)
            if not isinstance(request, dict):
                raise InputError(f"expected a map of observations, got {type(request).__name__}")
            if request.get("endpoint") == "reset":
                return self._reset(request, session)
            reply = await self._infer(request, session, began)
            return wire.encode(reply, dialect or "openpi", self._settings.max_bytes)
        except CosmosRobotError as error:
            return _told(Failure.of(error))
        except Exception as error:
            LOG.exception("a request failed")
            return _told(Failure.of(error))

    def _reset(self, request: dict[str, Any], session: _Session) -> str:
        named = request.get("session_ids") or ([request["session_id"]] if request.get("session_id") else [])
        for name in [f"{session.name}/{n}" for n in named] or [session.name, *session.sub]:
            self._service.reset(name)
        session.chunk = None
        return "reset successful"

    async def _infer(self, request: dict[str, Any], session: _Session, began: float) -> dict[str, Any]:
        if request.get("endpoint") not in (None, "infer"):
            raise InputError(f"endpoint {request['endpoint']!r}: expected infer or reset")
        one_step = "qpos" in request and "task" in request
        if one_step and session.chunk is not None and session.used < self._executed(session.chunk):
            return self._one_step(session, began)
        name = session.name + (f"/{request['session_id']}" if request.get("session_id") else "")
        if name != session.name and len(session.sub) < 1000:
            session.sub.add(name)
        seen = read_observation(self._service.contract, request, self._settings.pictures, self._settings.prompt)
        asked = time.monotonic()
        reply = await asyncio.wrap_future(self._service.submit(Infer(seen, session.seed, name)))
        session.seed = (session.seed + 1) % 2**32
        if isinstance(reply, Failure):
            raise reply.error()
        assert isinstance(reply, ChunkReply)
        if one_step:
            session.chunk, session.used = reply.chunk, 0
            return self._one_step(session, began)
        values = reply.chunk.values[: self._settings.rows].astype(np.float32)
        infer_ms = (time.monotonic() - asked) * 1e3
        timing = {"infer_ms": infer_ms} | ({} if session.last_ms is None else {"prev_total_ms": session.last_ms})
        session.last_ms = (time.monotonic() - began) * 1e3
        model_ms = reply.seconds.get("model", 0.0) * 1e3
        # Two names for one array: RoboLab's client reads the first, all others the second.
        return {"action": values, "actions": values, "policy_timing": {"infer_ms": model_ms}, "server_timing": timing}

    def _executed(self, chunk: ActionChunk) -> int:
        return min(len(chunk), self._service.contract.model.execute)

    def _one_step(self, session: _Session, began: float) -> dict[str, Any]:
        """The next row of the session's chunk, as MolmoSpaces' websocket client wants it: arm, and gripper 0 or 255."""
        assert session.chunk is not None
        row = session.chunk.values[session.used]
        session.used += 1
        gripper = self._service.contract.robot.gripper
        if gripper is None:
            raise InputError("this robot has no gripper, and MolmoSpaces' client wants one")
        closed = abs(row[-1] - gripper.closed_value) < abs(row[-1] - gripper.open_value)
        total = round((time.monotonic() - began) * 1e3)
        timing = {"infer_ms": total, "total_ms": total}
        return {"arm": row[:-1], "gripper": np.array([CLOSED_255 * closed]), "server_timing": timing}


def _told(failure: Failure) -> str:
    return f"{failure.code}: {failure.message}"


def greeting(contract: Contract, settings: OpenpiSettings) -> dict[str, Any]:
    """What a client is told on connecting; plain values only, since its array dialect is not known yet."""
    robot = contract.robot
    if settings.roboarena:
        return roboarena_greeting(robot, settings)
    gripper = robot.gripper
    hello: dict[str, Any] = {
        "policy_name": contract.model.name,
        "model_name": contract.model.name,
        "server": f"cosmos-robot {cosmos_robot.__version__}",
        "action_space": [f"{f.name} ({f.width}, {f.unit})" for f in robot.action],
        "action_reference": robot.action_reference,
        "action_horizon": min(contract.model.chunk, settings.rows or contract.model.chunk),
        "control_hz": robot.rate_hz,
    }
    if gripper is not None:
        hello |= {"gripper_open": gripper.open_value, "gripper_closed": gripper.closed_value}
    if {c.name for c in robot.cameras} >= {"cam_high", "cam_left_wrist", "cam_right_wrist"}:
        hello["reset_pose"] = [0, -1.5, 1.5, 0, 0, 0]  # of openpi's ALOHA checkpoints; its client moves there first
    return hello


def roboarena_greeting(robot: RobotSpec, settings: OpenpiSettings) -> dict[str, Any]:
    """RoboArena's server configuration; its checker refuses any further key."""
    exterior = [c for c in robot.cameras if c.name.startswith("exterior")]
    wrist = [c for c in robot.cameras if c.name.startswith("wrist")]
    joints = any(f.kind in ("joint", "velocity") and f.width == 7 for f in robot.action)
    moving = robot.action_reference != "absolute" or any(f.kind == "velocity" for f in robot.action)
    size = [robot.cameras[0].height, robot.cameras[0].width] if settings.pictures == "exact" and robot.cameras else None
    return {
        "image_resolution": size,
        "needs_wrist_camera": bool(wrist),
        "n_external_cameras": len(exterior),
        "needs_stereo_camera": any(c.name.endswith("_right") for c in robot.cameras),
        "needs_session_id": False,
        "action_space": f"{'joint' if joints else 'cartesian'}_{'velocity' if moving else 'position'}",
    }
