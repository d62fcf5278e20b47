"""Round trips to a policy server whose model does nothing: ours against openpi's own, in turns, many clients at once.

Server and clients are processes of their own, as in life. A request holds DROID's three pictures of 360x640 and its
state; the reply a chunk of 32 rows. What is measured is the client's time from asking to having the chunk.
"""

from __future__ import annotations

import multiprocessing
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, Literal

import numpy as np

from cosmos_robot.errors import InputError, WorkerError
from cosmos_robot.types import ActionChunk, Observation

Side = Literal["ours", "peer"]
CONTRACT: Final = "cosmos3-nano-droid"
PATIENCE_S: Final = 120.0
WARM_UP: Final = 20


@dataclass(frozen=True)
class Load:
    """clients: how many ask at once. requests: of each client and turn. hz: how often each asks, at most; 0 for as
    fast as it can. turns: how often each side is measured."""

    clients: int = 4
    requests: int = 150
    hz: float = 15.0
    turns: int = 2

    def __post_init__(self) -> None:
        if min(self.clients, self.requests, self.turns) < 1 or self.hz < 0:
            raise InputError(f"expected clients, requests and turns from 1 and hz from 0, got {self}")


def serving_report(load: Load, progress: Callable[[str], None]) -> dict[str, Any]:
    """Milliseconds of all round trips (p50, p99), the peer's, and their ratio (peer over ours, medians)."""
    trips: dict[Side, list[float]] = {"ours": [], "peer": []}
    same = True
    for turn in range(load.turns):
        for side in ("ours", "peer"):
            progress(f"turn {turn + 1} of {load.turns}: {side}")
            seconds, shapes = _measure(side, load)
            trips[side] += seconds
            same &= shapes == {(32, 8)}
    ours, peer = ({f"p{q}_ms": float(np.percentile(trips[s], q) * 1e3) for q in (50, 99)} for s in ("ours", "peer"))
    return {
        "bench": "serve",
        **ours,
        "ratio": peer["p50_ms"] / ours["p50_ms"],
        "ratio_p99": peer["p99_ms"] / ours["p99_ms"],
        "peer": {"name": "openpi-server", **peer},
        "same_chunks": same,
        "round_trips": len(trips["ours"]),
        "load": vars(load),
        "machine": {"processor": platform.processor() or platform.machine(), "cores": multiprocessing.cpu_count()},
    }


def _measure(side: Side, load: Load) -> tuple[list[float], set[tuple[int, ...]]]:
    with _process(_serve, side) as server:
        address = _receive(server)
        asking = [_process(_ask, side, address, load, number) for number in range(load.clients)]
        pipes = [a.__enter__() for a in asking]
        try:
            for pipe in pipes:
                _receive(pipe)  # warm
            for pipe in pipes:
                pipe.send("go")
            results = [_receive(pipe) for pipe in pipes]
        finally:
            for a in asking:
                a.__exit__(None, None, None)
    return [s for seconds, _ in results for s in seconds], {shape for _, shape in results}


@contextmanager
def _process(work: Callable[..., None], *args: object) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=work, args=(far, *args), daemon=True)
    process.start()
    far.close()
    try:
        yield near
    finally:
        process.terminate()
        process.join(10)


def _receive(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE_S):
        raise WorkerError(f"a process of the benchmark said nothing for {PATIENCE_S:g} s; is the machine overloaded?")
    try:
        return pipe.recv()
    except EOFError as error:
        raise WorkerError("a process of the benchmark died; its message is above") from error


class _Nothing:
    """A policy that does nothing, for either server."""

    def __init__(self) -> None:
        from cosmos_robot.contract.library import load_contract

        self.contract = load_contract(CONTRACT)
        self._values = np.zeros((self.contract.model.chunk, self.contract.robot.action_width))

    def act(self, observations: Any, seeds: Any, committed: Any = None) -> list[ActionChunk]:
        return [ActionChunk(self._values, self.contract.robot.rate_hz, o.time) for o in observations]

    def infer(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"actions": self._values}


def _serve(pipe: Connection, side: Side) -> None:
    policy = _Nothing()
    if side == "ours":
        from cosmos_robot.serve.server import ServerSettings, ZmqServer
        from cosmos_robot.serve.service import Models, Service, take_short_turns

        take_short_turns()
        with Service(Models(policy)) as service, ZmqServer(service, ServerSettings(port=0)) as server:
            pipe.send(server.address)
            time.sleep(3600)
    else:
        from openpi_server.websocket_policy_server import WebsocketPolicyServer

        port = _free_port()
        pipe.send(port)
        WebsocketPolicyServer(policy, host="127.0.0.1", port=port, metadata={}).serve_forever()


def _ask(pipe: Connection, side: Side, address: Any, load: Load, number: int) -> None:
    ask = _asker(side, address)
    for _ in range(WARM_UP):
        shape = ask()
    pipe.send("warm")
    pipe.recv()
    # Robots do not tick in step: each client begins at its own part of the period.
    seconds, due = [], time.monotonic() + (number / load.clients / load.hz if load.hz else 0.0)
    for _ in range(load.requests):
        due = max(due + (1 / load.hz if load.hz else 0.0), time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        began = time.perf_counter()
        ask()
        seconds.append(time.perf_counter() - began)
    pipe.send((seconds, shape))


def _asker(side: Side, address: Any) -> Callable[[], tuple[int, ...]]:
    rng = np.random.default_rng(0)
    names = ("wrist_image_left", "exterior_image_1_left", "exterior_image_2_left")
    images = {name: rng.integers(0, 256, (360, 640, 3), np.uint8) for name in names}
    joints, gripper = np.zeros(7), np.zeros(1)
    if side == "ours":
        from cosmos_robot.serve.client import PolicyClient

        client = PolicyClient(address, timeout_s=30)
        state = {"joint_position": joints, "gripper_position": gripper}
        return lambda: client.act([Observation(images, state, "put the marker in the cup")], [0])[0].values.shape
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    end = time.monotonic() + 60
    while True:
        try:
            peer = WebsocketClientPolicy("127.0.0.1", address)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    request: dict[str, Any] = {f"observation/{name}": image for name, image in images.items()}
    request |= {"observation/joint_position": joints, "observation/gripper_position": gripper, "prompt": "put it in"}
    return lambda: np.shape(peer.infer(request)["actions"])


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
