"""A ROUTER socket on a thread of its own: what our ZMQ protocol and GR00T's share."""

from __future__ import annotations

import logging
import queue
import threading
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, Protocol, Self

import zmq

from cosmos_robot.errors import InputError
from cosmos_robot.serve.bell import Bell
from cosmos_robot.serve.service import Service

LOG = logging.getLogger(__name__)
_KEPT: Final[set[zmq.Context[Any]]] = set()
"""Contexts in use: one that the garbage collector found with a socket still open would wait for ever."""


class ListenerSettings(Protocol):
    """What listening needs to know."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...


class Listener[S: ListenerSettings](ABC):
    """Listens from ``start`` to ``close``. A subclass reads in ``_read`` and answers, from any thread, by ``_put``."""

    name: ClassVar[str]
    options: ClassVar[dict[int, int]] = {}
    """Further socket options."""

    def __init__(self, service: Service, settings: S):
        self._service, self._settings = service, settings
        self._answers: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        self._bell, self._closing = Bell(), threading.Event()
        self._thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
        self.address = ""

    def start(self) -> str:
        """Listen. Returns the address; raises InputError if it cannot be had."""
        host, port = self._settings.host, self._settings.port
        self._context = zmq.Context()
        _KEPT.add(self._context)
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        shared: dict[int, int] = {zmq.LINGER: 1000, zmq.MAXMSGSIZE: self._settings.max_bytes}
        for option, value in (shared | self.options).items():
            self._socket.setsockopt(option, value)
        try:
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            self._end_context(linger_ms=0)
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
        if self._thread.ident is not None:  # started; it may have ended by itself at once, the socket is ours to close
            self._thread.join(5)
            self._end_context(linger_ms=1000)
        self._bell.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _read(self) -> None:
        """Take up what has come; on the network thread."""

    def _put(self, frames: list[bytes]) -> None:
        """Send ``frames``, the peer's identity first, as soon as the network thread is free."""
        self._answers.put(frames)
        self._bell.ring()

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

    def _send_answers(self) -> None:
        while not self._answers.empty():
            try:
                self._socket.send_multipart(self._answers.get_nowait(), zmq.NOBLOCK, copy=False)
            except zmq.ZMQError as error:
                LOG.warning("a client is gone or does not read; its answer is dropped (%s)", error)

    def _end_context(self, linger_ms: int) -> None:
        """Close the socket, wait until its port is free, and let the context go."""
        self._context.destroy(linger=linger_ms)
        _KEPT.discard(self._context)
