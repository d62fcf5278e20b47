"""What client and server say to each other: typed, versioned, checked on both ends.

A message on the wire is one map: ``v`` (version), ``verb``, ``id``, and the fields of its class. Replies carry the id
of their request, so a late reply is never taken for another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.errors import (
    ContractError,
    CosmosRobotError,
    InputError,
    UnknownNameError,
    WireError,
    WorkerError,
)
from cosmos_robot.serve import fields
from cosmos_robot.types import ActionChunk, Observation

VERSION: Final = 1
Code = Literal[
    "bad_message",
    "bad_input",
    "contract",
    "unknown",
    "unsupported",
    "forbidden",
    "not_ready",
    "busy",
    "deadline",
    "cancelled",
    "closing",
    "internal",
]
_PATH: Final = re.compile(r"(?:[A-Za-z]:)?(?:[\\/][\w.@+-]+){2,}[\\/]?")


@dataclass(frozen=True)
class Infer:
    """Ask for one chunk. deadline_s: seconds from receipt after which the answer is useless, None for none.
    committed: (k, D) first rows of the chunk, given. supersede: drop this session's older waiting questions."""

    verb: ClassVar[str] = "infer"
    observation: Observation
    seed: int
    session: str = ""
    deadline_s: float | None = None
    committed: NDArray[np.float64] | None = None
    supersede: bool = False


@dataclass(frozen=True)
class Plan:
    """As ``Infer``, answered by the server's planner; its report comes along in the chunk's ``info``."""

    verb: ClassVar[str] = "plan"
    observation: Observation
    seed: int
    session: str = ""
    deadline_s: float | None = None


@dataclass(frozen=True)
class Imagine:
    """Ask for the video (T, H, W, 3) that ``actions`` (T, D), in robot units, would lead to."""

    verb: ClassVar[str] = "imagine"
    observation: Observation
    actions: NDArray[np.float64]
    seed: int
    session: str = ""
    deadline_s: float | None = None


@dataclass(frozen=True)
class Reset:
    """A new episode: the session's waiting questions are dropped. Acknowledged with ``Done``."""

    verb: ClassVar[str] = "reset"
    session: str = ""


@dataclass(frozen=True)
class Cancel:
    """The question with id ``target`` is not wanted any more. Acknowledged with ``Done``."""

    verb: ClassVar[str] = "cancel"
    target: str


@dataclass(frozen=True)
class Hello:
    """Ask what the server serves."""

    verb: ClassVar[str] = "hello"


@dataclass(frozen=True)
class Health:
    """Ask how the server is; answered without waiting for any model."""

    verb: ClassVar[str] = "health"


@dataclass(frozen=True)
class Stats:
    """Ask for counts, rates and latencies."""

    verb: ClassVar[str] = "stats"


@dataclass(frozen=True)
class HelloReply:
    """contract: as JSON. verbs: what may be asked. max_bytes: of one message. jpeg: whether pictures may come as JPEG,
    which only a checkpoint whose own pipeline holds a JPEG allows."""

    verb: ClassVar[str] = "hello_reply"
    contract: Mapping[str, Any]
    server: str
    verbs: tuple[str, ...]
    max_bytes: int
    jpeg: bool = False


@dataclass(frozen=True)
class ChunkReply:
    """A chunk, and where the time went: seconds by part (queue, encode, model, decode, total)."""

    verb: ClassVar[str] = "chunk"
    chunk: ActionChunk
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class VideoReply:
    """frames: (T, H, W, 3) uint8."""

    verb: ClassVar[str] = "video"
    frames: NDArray[np.uint8]
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """The answer to health and stats: plain maps, lists, numbers and text."""

    verb: ClassVar[str] = "facts"
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Done:
    """An acknowledgement."""

    verb: ClassVar[str] = "done"


@dataclass(frozen=True)
class Failure:
    """Why there is no answer. code: for programs; message: for people, without paths of the server's machine."""

    verb: ClassVar[str] = "failure"
    code: Code
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """What to tell a client about ``error``: what it did wrong in full, what went wrong here only by name."""
        codes: tuple[tuple[type[BaseException], Code], ...] = (
            (WireError, "bad_message"),
            (InputError, "bad_input"),
            (ContractError, "contract"),
            (UnknownNameError, "unknown"),
        )
        for kind, code in codes:
            if isinstance(error, kind):
                return cls(code, _PATH.sub("<path>", str(error)))
        return cls("internal", f"the server failed with {type(error).__name__}; its log says more")

    def error(self) -> CosmosRobotError:
        """The exception a client raises for it."""
        kinds: dict[str, type[CosmosRobotError]] = {
            "bad_message": WireError,
            "bad_input": InputError,
            "unknown": InputError,
            "unsupported": InputError,
            "contract": ContractError,
        }
        return kinds.get(self.code, WorkerError)(f"server: {self.message} [{self.code}]")


Request = Infer | Plan | Imagine | Reset | Cancel | Hello | Health | Stats
Reply = HelloReply | ChunkReply | VideoReply | Facts | Done | Failure
REQUESTS: Final = {kind.verb: kind for kind in get_args(Request)}
REPLIES: Final = {kind.verb: kind for kind in get_args(Reply)}


def to_wire(message: Request | Reply, id: str, jpeg_quality: int | None = None, token: str = "") -> dict[str, Any]:
    """``message`` as a map. jpeg_quality: send pictures as JPEG. token: the shared secret, if the server wants one."""
    out: dict[str, Any] = {"v": VERSION, "verb": message.verb, "id": id}
    if token:
        out["token"] = token
    for name, value in vars(message).items():
        if isinstance(value, Observation):
            value = _observation_to_wire(value, jpeg_quality)
        elif isinstance(value, ActionChunk):
            value = _chunk_to_wire(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        out[name] = value
    return out


def request_from_wire(data: Any) -> tuple[str, Request]:
    """Id and request. Raises WireError naming what is missing, unknown or of the wrong kind."""
    id, kind, given = _opened(data, REQUESTS)
    readers = {
        "observation": fields.observation,
        "seed": fields.whole("seed", 0, 2**32 - 1),
        "session": fields.text,
        "target": fields.text,
        "deadline_s": fields.optional(fields.seconds),
        "committed": fields.optional(fields.rows),
        "actions": fields.rows,
        "supersede": fields.truth,
    }
    return id, _built(kind, given, readers)


def reply_from_wire(data: Any) -> tuple[str, Reply]:
    """Id and reply. Raises WireError as ``request_from_wire`` does."""
    id, kind, given = _opened(data, REPLIES)
    readers = {
        "contract": fields.mapping,
        "facts": fields.mapping,
        "seconds": fields.mapping,
        "server": fields.text,
        "message": fields.text,
        "code": fields.text,
        "verbs": lambda name, value: tuple(fields.text(name, v) for v in fields.sequence(name, value)),
        "max_bytes": fields.whole("max_bytes", 1, 2**40),
        "jpeg": fields.truth,
        "chunk": fields.chunk,
        "frames": fields.frames,
    }
    return id, _built(kind, given, readers)


def _opened(data: Any, kinds: Mapping[str, Any]) -> tuple[str, Any, dict[str, Any]]:
    if not isinstance(data, dict):
        raise WireError(f"expected a map with v, verb and id, got {type(data).__name__}")
    given = dict(data)
    version, verb, id = given.pop("v", None), given.pop("verb", None), given.pop("id", None)
    given.pop("token", None)
    if version != VERSION:
        raise WireError(
            f"message of version {version!r}, expected {VERSION}; install the same cosmos-robot on both ends"
        )
    if not isinstance(id, str) or not 0 < len(id) <= 64:
        raise WireError(f"message id {id!r}: expected text of 1 to 64 characters")
    if not isinstance(verb, str) or verb not in kinds:
        raise WireError(f"unknown verb {verb!r}; known: {', '.join(kinds)}")
    return id, kinds[verb], given


def _built(kind: Any, given: dict[str, Any], readers: Mapping[str, Any]) -> Any:
    known = kind.__dataclass_fields__
    if extra := sorted(set(given) - set(known), key=str):
        raise WireError(f"{kind.verb}: unknown fields {extra}; known: {sorted(known)}")
    needed = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    if missing := [n for n in needed if n not in given]:
        raise WireError(f"{kind.verb}: missing {missing}")
    try:
        return kind(**{name: readers[name](name, value) for name, value in given.items()})
    except InputError as error:
        raise WireError(f"{kind.verb}: {error}") from error


def _observation_to_wire(observation: Observation, jpeg_quality: int | None) -> dict[str, Any]:
    images: dict[str, Any] = dict(observation.images)
    if jpeg_quality is not None:
        images = {name: {"jpeg": fields.to_jpeg(image, jpeg_quality)} for name, image in images.items()}
    return {
        "images": images,
        "state": dict(observation.state),
        "instruction": observation.instruction,
        "time": observation.time,
        "history": observation.history,
    }


def _chunk_to_wire(chunk: ActionChunk) -> dict[str, Any]:
    return {
        "values": chunk.values,
        "rate_hz": chunk.rate_hz,
        "start_time": chunk.start_time,
        "source": chunk.source,
        "info": dict(chunk.info),
    }
