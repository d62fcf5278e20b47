"""A service over ZMQ: one ROUTER socket, any number of DEALER clients, one thread for the network.

The network thread never waits for the model: it reads, checks, queues, and sends answers when they are ready. Unless
a token is set, only this machine can reach it.
"""

from __future__ import annotations

import hmac
import logging
import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

import zmq

import cosmos_robot
from cosmos_robot.errors import InputError, WireError
from cosmos_robot.serve import wire
from cosmos_robot.serve.bell import Bell
from cosmos_robot.serve.messages import (
    Cancel,
    Done,
    Facts,
    Failure,
    Health,
    Hello,
    HelloReply,
    Imagine,
    Infer,
    Plan,
    Reply,
    Request,
    Reset,
    Stats,
    request_from_wire,
    to_wire,
)
from cosmos_robot.serve.service import Service

LOG = logging.getLogger(__name__)
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
TOKEN_LETTERS: Final = 16

_KEPT: Final[set[zmq.Context[Any]]] = set()
"""Contexts in use: one that the garbage collector found with a socket still open would wait for ever."""


def kept_context() -> zmq.Context[Any]:
    """A context that lives until ``end_context``, whoever forgets it."""
    context = zmq.Context()
    _KEPT.add(context)
    return context


def end_context(context: zmq.Context[Any], linger_ms: int) -> None:
    """Close its sockets, wait until their ports are free, and let it go."""
    context.destroy(linger=linger_ms)
    _KEPT.discard(context)


@dataclass(frozen=True)
class ServerSettings:
    """host, port: where to listen; port 0 takes a free one. token: a shared secret of at least 16 characters, needed
    as soon as other machines can reach the server. max_bytes: of one message."""

    host: str = "127.0.0.1"
    port: int = 5555
    token: str = ""
    max_bytes: int = wire.MAX_BYTES

    def __post_init__(self) -> None:
        check_exposure(self.host, self.port, self.token)


def check_exposure(host: str, port: int, token: str) -> None:
    """Raise InputError for a port out of range, a short token, or a public address without a token."""
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 65536:
        raise InputError(f"port: expected 0 to 65535, got {port!r}")
    if token and len(token) < TOKEN_LETTERS:
        raise InputError(f"token: expected at least {TOKEN_LETTERS} characters, got {len(token)}")
    if not token and host not in LOOPBACK:
        raise InputError(
            f"host {host!r} can be reached from other machines; set a token, or listen on 127.0.0.1 through a tunnel"
        )


class ZmqServer:
    """The network side of a service. ``start`` listens on a thread of its own; ``close`` ends it."""

    def __init__(self, service: Service, settings: ServerSettings):
        self._service, self._settings = service, settings
        self._answers: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()
        self._bell = Bell()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="zmq", daemon=True)
        self.address = ""

    def start(self) -> str:
        """Listen. Returns the address; raises InputError if it cannot be had."""
        host, port = self._settings.host, self._settings.port
        self._context = kept_context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        options = {zmq.LINGER: 1000, zmq.MAXMSGSIZE: self._settings.max_bytes, zmq.RCVHWM: 64, zmq.SNDHWM: 64}
        for option, value in {**options, zmq.ROUTER_HANDOVER: 1}.items():
            self._socket.setsockopt(option, value)
        try:
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            end_context(self._context, linger_ms=0)
            raise InputError(f"cannot listen on tcp://{host}:{port}: {error}; choose another port") from error
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._thread.start()
        return self.address

    def close(self) -> None:
        """Send what is answered, stop listening. Safe to call twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._bell.ring()
        if self._thread.is_alive():
            self._thread.join(5)
            end_context(self._context, linger_ms=1000)
        self._bell.close()

    def __enter__(self) -> ZmqServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._bell.fileno(), zmq.POLLIN)
        while not self._closing.is_set():
            ready = dict(poller.poll(1000))
            if self._bell.fileno() in ready:
                self._bell.quiet()
            self._send_answers()
            if self._socket in ready:
                self._read()
        self._send_answers()

    def _read(self) -> None:
        """Every message that is there now, at most a handful, so that answers are not kept waiting."""
        for _ in range(8):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._receive(frames[0].bytes, [f.buffer for f in frames[1:]])

    def _receive(self, peer: bytes, frames: list[memoryview]) -> None:
        id = ""
        try:
            if len(frames) != 1:
                raise WireError(f"expected one frame a message, got {len(frames)}; use a DEALER socket")
            data = wire.decode(frames[0], self._settings.max_bytes).value
            id = str(data.get("id", ""))[:64] if isinstance(data, dict) else ""
            if not self._allowed(data):
                self._answer(peer, id, Failure("forbidden", "the token is missing or wrong"))
                return
            id, request = request_from_wire(data)
            self._handle(peer, id, request)
        except WireError as error:
            self._answer(peer, id, Failure.of(error))
        except Exception as error:
            LOG.exception("a request failed")
            self._answer(peer, id, Failure.of(error))

    def _allowed(self, data: Any) -> bool:
        if not self._settings.token:
            return True
        given = data.get("token", "") if isinstance(data, dict) else ""
        return isinstance(given, str) and hmac.compare_digest(given.encode(), self._settings.token.encode())

    def _handle(self, peer: bytes, id: str, request: Request) -> None:
        # A session is a client's word within its own connection: no client can reset or cancel for another.
        prefix = peer.hex() + "/"
        if isinstance(request, Infer | Plan | Imagine):
            future = self._service.submit(replace(request, session=prefix + request.session), prefix + id)
            future.add_done_callback(lambda done: self._answered(peer, id, done))
        elif isinstance(request, Reset):
            self._service.reset(prefix + request.session)
            self._answer(peer, id, Done())
        elif isinstance(request, Cancel):
            self._service.cancel(prefix + request.target)
            self._answer(peer, id, Done())
        elif isinstance(request, Hello):
            self._answer(peer, id, self._hello())
        elif isinstance(request, Health):
            self._answer(peer, id, Facts(self._service.health()))
        elif isinstance(request, Stats):
            self._answer(peer, id, Facts(self._service.stats()))

    def _hello(self) -> HelloReply:
        contract = self._service.contract
        return HelloReply(
            contract=contract.model_dump(mode="json"),
            server=f"cosmos-robot {cosmos_robot.__version__}",
            verbs=self._service.models.verbs,
            max_bytes=self._settings.max_bytes,
            jpeg=contract.model.canvas.jpeg_quality is not None,
        )

    def _answered(self, peer: bytes, id: str, done: Future[Reply]) -> None:
        self._answer(peer, id, done.result())

    def _answer(self, peer: bytes, id: str, reply: Reply) -> None:
        """From any thread: encode here, send on the network thread."""
        try:
            data = wire.encode(to_wire(reply, id or "-"), max_bytes=self._settings.max_bytes)
        except WireError as error:
            LOG.exception("an answer cannot be sent")
            data = wire.encode(to_wire(Failure("internal", str(error)), id or "-"))
        self._answers.put((peer, data))
        self._bell.ring()

    def _send_answers(self) -> None:
        while True:
            try:
                peer, data = self._answers.get_nowait()
            except queue.Empty:
                return
            try:
                self._socket.send_multipart([peer, data], zmq.NOBLOCK, copy=False)
            except zmq.ZMQError as error:
                LOG.warning("a client is gone or does not read; its answer is dropped (%s)", error)
