"""The client: a policy that lives on another machine. Needs no torch.

A DEALER socket on a thread of its own, so that a control loop can ask without waiting. A question that is not answered
in time fails by itself; a late answer is recognised by its id and thrown away; the next question works.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlparse

import numpy as np
import zmq
from numpy.typing import NDArray

from cosmos_robot.contract import Contract
from cosmos_robot.errors import ContractError, CosmosRobotError, InputError, WireError, WorkerError
from cosmos_robot.serve import wire
from cosmos_robot.serve.bell import Bell
from cosmos_robot.serve.messages import (
    Cancel,
    ChunkReply,
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
    VideoReply,
    reply_from_wire,
    to_wire,
)
from cosmos_robot.types import ActionChunk, Observation

LONGEST_S: Final = 3600.0


class PolicyClient:
    """A served policy. Use as a context manager; ``act`` is that of ``Policy``, so evaluation and planning take it too.

    address: ``tcp://HOST:PORT``. timeout_s: patience for an answer, in seconds. token: the server's shared secret.
    session: what this client's questions are filed under. jpeg_quality: send pictures as JPEG, where the checkpoint's
    own pipeline holds one. Raises InputError for a bad address or timeout; WorkerError, naming the address, when nobody
    answers.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float = 10.0,
        token: str = "",
        session: str = "",
        jpeg_quality: int | None = None,
        max_bytes: int = wire.MAX_BYTES,
    ):
        self._address, self._timeout_s = _checked_address(address), _checked_timeout(timeout_s)
        self._token, self._session, self._jpeg, self._max_bytes = token, session, jpeg_quality, max_bytes
        self._ids = itertools.count()
        self._open: dict[str, tuple[Future[Reply], float]] = {}
        self._outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._bell = Bell()
        self._thread = threading.Thread(target=self._work, name="policy-client", daemon=True)
        self._thread.start()
        self._hello: HelloReply | None = None
        self._contract: Contract | None = None

    @property
    def contract(self) -> Contract:
        """The served checkpoint's contract, asked for once."""
        if self._contract is None:
            self._contract = Contract.model_validate(dict(self.hello().contract))
        return self._contract

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras whose pictures the server reads; no others are sent."""
        return tuple(dict.fromkeys(p.camera for p in self.contract.model.canvas.placements))

    def hello(self) -> HelloReply:
        """What the server says of itself; asked for once. Raises ContractError if pictures would be sent in a form that
        the checkpoint was not trained on."""
        if self._hello is None:
            reply = self._expect(self.call(Hello()), HelloReply)
            if self._jpeg is not None and not reply.jpeg:
                raise ContractError(
                    f"jpeg_quality={self._jpeg}, but the served checkpoint never saw a JPEG; send pictures as they are"
                )
            self._hello = reply
        return self._hello

    def act(
        self,
        observations: Sequence[Observation],
        seeds: Sequence[int],
        committed: Sequence[NDArray[np.float64]] | None = None,
    ) -> list[ActionChunk]:
        """One chunk for each observation, asked for all at once so that the server can batch them."""
        given = [None] * len(observations) if committed is None else list(committed)
        if not len(observations) == len(seeds) == len(given):
            raise InputError(f"act: {len(observations)} observations, {len(seeds)} seeds, {len(given)} committed")
        futures = [self.submit(o, s, c) for o, s, c in zip(observations, seeds, given, strict=True)]
        return [future.result() for future in futures]

    def submit(
        self,
        observation: Observation,
        seed: int,
        committed: NDArray[np.float64] | None = None,
        timeout_s: float | None = None,
        supersede: bool = False,
    ) -> Future[ActionChunk]:
        """Ask without waiting. The future raises what ``act`` would. The chunk's ``info["seconds"]`` says where time
        went: the server's parts, and ``wire`` for the rest of the round trip."""
        patience = self._timeout_s if timeout_s is None else _checked_timeout(timeout_s)
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
            raise InputError(f"seed: expected a whole number from 0 to 2**32 - 1, got {seed!r}")
        seen = self._only_read(observation)
        question, began = Infer(seen, int(seed), self._session, patience, committed, supersede), time.monotonic()
        return _mapped(self.call(question, patience), lambda reply: _timed(self._expect_now(reply, ChunkReply), began))

    def plan(self, observation: Observation, seed: int, deadline_s: float | None = None) -> ActionChunk:
        """One chunk from the server's planner; its report is in ``info``."""
        question = Plan(self._only_read(observation), seed, self._session, deadline_s)
        return self._expect(self.call(question), ChunkReply).chunk

    def imagine(self, observation: Observation, actions: NDArray[np.float64], seed: int) -> NDArray[np.uint8]:
        """The video (T, H, W, 3) that ``actions`` (T, D) would lead to."""
        question = Imagine(self._only_read(observation), actions, seed, self._session)
        return self._expect(self.call(question), VideoReply).frames

    def reset(self) -> None:
        """A new episode: nothing asked before this is answered any more, here or there."""
        with self._lock:
            forgotten, self._open = self._open, {}
        for future, _ in forgotten.values():
            _settle(future, Failure("cancelled", "the client was reset"))
        self._expect(self.call(Reset(self._session)), Done)

    def cancel(self, id: str) -> None:
        """Tell the server that an answer is not wanted."""
        self._expect(self.call(Cancel(id)), Done)

    def health(self) -> dict[str, Any]:
        """The server's state; answered while the model is busy."""
        return dict(self._expect(self.call(Health()), Facts).facts)

    def stats(self) -> dict[str, Any]:
        """The server's counts, rates and latencies."""
        return dict(self._expect(self.call(Stats()), Facts).facts)

    def call(self, request: Request, timeout_s: float | None = None) -> Future[Reply]:
        """Send any request; the future ends with the reply, a ``Failure`` among them, or raises WorkerError."""
        if self._closed:
            raise InputError("this client is closed; make a new one")
        id = str(next(self._ids))
        data = wire.encode(to_wire(request, id, self._jpeg, self._token), max_bytes=self._max_bytes)
        future: Future[Reply] = Future()
        patience = self._timeout_s if timeout_s is None else timeout_s
        with self._lock:
            self._open[id] = (future, time.monotonic() + patience)
        self._outbox.put(data)
        self._bell.ring()
        return future

    def close(self) -> None:
        """Let go of the connection at once; open questions fail. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._bell.ring()
        self._thread.join(5)
        self._bell.close()

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _only_read(self, observation: Observation) -> Observation:
        images = {name: observation.images[name] for name in self.cameras if name in observation.images}
        return replace(observation, images=images)

    def _expect[R](self, future: Future[Reply], kind: type[R]) -> R:
        return self._expect_now(future.result(), kind)

    def _expect_now[R](self, reply: Reply, kind: type[R]) -> R:
        if isinstance(reply, Failure):
            raise reply.error()
        if not isinstance(reply, kind):
            raise WireError(f"{self._address} answered with {reply.verb!r}, expected {kind.__name__}")
        return reply

    def _work(self) -> None:
        dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        for option, value in ((zmq.LINGER, 0), (zmq.MAXMSGSIZE, self._max_bytes), (zmq.RECONNECT_IVL_MAX, 2000)):
            dealer.setsockopt(option, value)
        dealer.connect(self._address)
        poller = zmq.Poller()
        poller.register(dealer, zmq.POLLIN)
        poller.register(self._bell.fileno(), zmq.POLLIN)
        while not self._closed:
            ready = dict(poller.poll(self._until_next_deadline_ms()))
            if self._bell.fileno() in ready:
                self._bell.quiet()
            self._send(dealer)
            if dealer in ready:
                self._read(dealer)
            self._give_up_late()
        with self._lock:
            left, self._open = self._open, {}
        for future, _ in left.values():
            _settle(future, Failure("closing", "the client was closed"))
        dealer.close(linger=0)

    def _send(self, dealer: zmq.Socket[bytes]) -> None:
        while not self._outbox.empty():
            try:
                dealer.send(self._outbox.get_nowait(), zmq.NOBLOCK, copy=False)
            except (zmq.Again, queue.Empty):
                return  # nobody there to read: the question fails by its deadline

    def _read(self, dealer: zmq.Socket[bytes]) -> None:
        while True:
            try:
                frame = dealer.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                id, reply = reply_from_wire(wire.decode(frame.buffer, self._max_bytes).value)
            except WireError:
                continue  # not for us to understand: the question it might answer fails by its deadline
            with self._lock:
                waiting = self._open.pop(id, None)
            if waiting is not None:  # None: late, or not ours
                _settle(waiting[0], reply)

    def _until_next_deadline_ms(self) -> int:
        with self._lock:
            nearest = min((deadline for _, deadline in self._open.values()), default=time.monotonic() + 1)
        return max(0, min(1000, int((nearest - time.monotonic()) * 1000) + 1))

    def _give_up_late(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [id for id, (_, deadline) in self._open.items() if deadline <= now]
            futures = [self._open.pop(id)[0] for id in late]
        for future in futures:
            if not future.done():
                future.set_exception(
                    WorkerError(
                        f"no answer from {self._address} within the timeout; is the server running there, is the port "
                        "open, and is the timeout long enough for its model?"
                    )
                )


def _timed(reply: ChunkReply, began: float) -> ActionChunk:
    wire_s = max(0.0, time.monotonic() - began - reply.seconds.get("total", 0.0))
    return replace(reply.chunk, info={**reply.chunk.info, "seconds": {**reply.seconds, "wire": wire_s}})


def _settle(future: Future[Reply], reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)


def _mapped(future: Future[Reply], change: Any) -> Future[ActionChunk]:
    out: Future[ActionChunk] = Future()

    def pass_on(done: Future[Reply]) -> None:
        try:
            result = change(done.result())
        except CosmosRobotError as error:
            out.set_exception(error)
        else:
            out.set_result(result)

    out.set_running_or_notify_cancel()
    future.add_done_callback(pass_on)
    return out


def _checked_address(address: str) -> str:
    parts = urlparse(address if isinstance(address, str) else "")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "tcp" or not parts.hostname or not port:
        raise InputError(f"address {address!r}: expected tcp://HOST:PORT, for instance tcp://127.0.0.1:5555")
    return address


def _checked_timeout(timeout_s: object) -> float:
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= LONGEST_S:
        raise InputError(f"timeout_s: expected seconds over 0 and up to {LONGEST_S:g}, got {timeout_s!r}")
    return float(timeout_s)
