"""GR00T's ZMQ protocol over a service: REQ clients of N1.5, N1.6 and N1.7, answered in their own dialect.

Exactly one reply to every request, errors among them. The ``kill`` endpoint is refused: nobody stops a robot's policy
by a message.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cosmos_robot.contract import Contract
from cosmos_robot.errors import CosmosRobotError, InputError
from cosmos_robot.serve import wire
from cosmos_robot.serve.listener import Listener
from cosmos_robot.serve.messages import ChunkReply, Failure, Infer
from cosmos_robot.serve.server import check_exposure
from cosmos_robot.serve.service import Service
from cosmos_robot.serve.views import Pictures, read_gr00t
from cosmos_robot.types import ActionChunk

LOG = logging.getLogger(__name__)
MODALITY_MARKS: Final = {"gr00t": "__ModalityConfig_class__", "lebedov": "__ModalityConfig__"}


@dataclass(frozen=True)
class Gr00tSettings:
    """host, port, token, max_bytes: as for our own protocol. pictures: refuse or resize pictures of another size."""

    host: str = "127.0.0.1"
    port: int = 5556
    token: str = ""
    max_bytes: int = wire.MAX_BYTES
    pictures: Pictures = "exact"

    def __post_init__(self) -> None:
        check_exposure(self.host, self.port, self.token)


class Gr00tServer(Listener[Gr00tSettings]):
    """The GR00T side of a service: a ROUTER socket that REQ clients take for a REP one, so many may ask at once."""

    name = "gr00t"

    def __init__(self, service: Service, settings: Gr00tSettings):
        super().__init__(service, settings)
        self._seed = 0

    def _read(self) -> None:
        frames = self._socket.recv_multipart()
        self._receive(frames[:-1], frames[-1])

    def _receive(self, route: list[bytes], data: bytes) -> None:
        dialect: wire.Dialect | None = None
        try:
            request, dialect = wire.decode(data, self._settings.max_bytes)
            if not isinstance(request, dict):
                raise InputError(f"expected a map with an endpoint, got {type(request).__name__}")
            self._allow(request)
            endpoint = request.get("endpoint", "get_action")
            if endpoint == "get_action":
                self._infer(route, request, dialect)
            else:
                self._reply(route, self._plain(endpoint, route, dialect), dialect)
        except CosmosRobotError as error:
            self._reply(route, {"error": Failure.of(error).message}, dialect)
        except Exception as error:
            LOG.exception("a request failed")
            self._reply(route, {"error": Failure.of(error).message}, dialect)

    def _allow(self, request: dict[str, Any]) -> None:
        given = request.get("api_token", "")
        wanted = self._settings.token
        if wanted and not (isinstance(given, str) and hmac.compare_digest(given.encode(), wanted.encode())):
            raise InputError("the api_token is missing or wrong")

    def _plain(self, endpoint: object, route: list[bytes], dialect: wire.Dialect | None) -> Any:
        if endpoint == "ping":
            return {
                "status": "ok",
                "message": f"{self._service.contract.model.name} is {self._service.health()['state']}",
            }
        if endpoint == "reset":
            self._service.reset(f"gr00t/{route[0].hex()}")
            return {}
        if endpoint == "get_modality_config":
            return modality_config(self._service.contract, dialect or "gr00t")
        if endpoint == "kill":
            raise InputError("kill: this server is not stopped by a message; stop its process")
        raise InputError(f"endpoint {endpoint!r}: expected get_action, ping, reset or get_modality_config")

    def _infer(self, route: list[bytes], request: dict[str, Any], dialect: wire.Dialect | None) -> None:
        data = request.get("data")
        if not isinstance(data, Mapping):
            raise InputError(f"data: expected a map, got {type(data).__name__}")
        wrapped = isinstance(data.get("observation"), Mapping)
        observation = data["observation"] if wrapped else data
        seen = read_gr00t(self._service.contract, observation, self._settings.pictures)
        flat = not any(isinstance(value, Mapping) for value in observation.values())
        self._seed = (self._seed + 1) % 2**32
        future = self._service.submit(Infer(seen, self._seed, f"gr00t/{route[0].hex()}"))

        def answer(done: Any) -> None:
            reply = done.result()
            if isinstance(reply, ChunkReply):
                action = action_map(self._service.contract, reply.chunk, flat)
                self._reply(route, [action, {}] if wrapped else action, dialect)
            else:
                self._reply(route, {"error": reply.message}, dialect)

        future.add_done_callback(answer)

    def _reply(self, route: list[bytes], value: Any, dialect: wire.Dialect | None) -> None:
        self._put([*route, wire.encode(value, dialect or "gr00t", self._settings.max_bytes)])


def action_map(contract: Contract, chunk: ActionChunk, flat: bool) -> dict[str, Any]:
    """Action field to float32 (1, T, width); flat: under ``action.NAME``."""
    out, start = {}, 0
    for field in contract.robot.action:
        part = chunk.values[None, :, start : start + field.width].astype(np.float32)
        out[f"action.{field.name}" if flat else field.name] = part
        start += field.width
    return out


def modality_config(contract: Contract, dialect: wire.Dialect) -> dict[str, Any]:
    """Which frames and fields the model reads and writes, as GR00T's clients ask for it."""
    mark = MODALITY_MARKS.get(dialect, MODALITY_MARKS["gr00t"])
    robot, model = contract.robot, contract.model
    groups = {
        "video": ([0], [p.camera for p in model.canvas.placements]),
        "state": ([0], [f.name for f in robot.state]),
        "action": (list(range(model.chunk)), [f.name for f in robot.action]),
        "language": ([0], ["annotation.language.language_instruction"]),
    }
    return {
        name: {mark: True, "as_json": {"delta_indices": indices, "modality_keys": list(dict.fromkeys(keys))}}
        for name, (indices, keys) in groups.items()
    }
