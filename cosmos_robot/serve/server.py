"""A service over ZMQ: one ROUTER socket, any number of DEALER clients, one thread for the network.

The network thread never waits for the model: it reads, checks, queues, and sends answers when they are ready. Unless
a token is set, only this machine can reach it.
"""

from __future__ import annotations

import hmac
import logging
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import zmq

import cosmos_robot
from cosmos_robot.errors import InputError, WireError
from cosmos_robot.serve import wire
from cosmos_robot.serve.listener import Listener
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

LOG = logging.getLogger(__name__)
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
TOKEN_LETTERS: Final = 16


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


class ZmqServer(Listener[ServerSettings]):
    """The network side of a service. ``start`` listens on a thread of its own; ``close`` ends it."""

    name = "zmq"
    options: ClassVar[dict[int, int]] = {zmq.RCVHWM: 64, zmq.SNDHWM: 64, zmq.ROUTER_HANDOVER: 1}

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
        self._put([peer, data])
