"""Which command is due now: chunks on one time line, joined where the robot is.

A policy answers late, and its chunk begins at the moment it looked. The scheduler keeps the *robot's own* time, which
stands still whenever the robot does: after a hold, or before the first chunk, nothing of a new chunk has been used up,
so it starts where the robot waits; while the robot moves, a chunk that took five periods to come joins at its sixth
row. Every method takes the time as an argument; there is no clock, thread or network here.

Strategies, by what happens at a seam:

==========  ==========================================================================================================
sync        ask when the chunk's ``execute`` rows are used up, hold until the answer (what openpi's clients do)
latest      ask ahead, so that the answer is there in time; join it at once
blend       as latest, fading from the old chunk to the new over ``blend_rows``
ensemble    ask all the time; every row is the mean over all chunks that hold it, the oldest weighing most (ACT)
rtc         as blend, and the rows that will be used up meanwhile go along with the question, so that the new chunk
            begins with them (real-time chunking by clean rows)
==========  ==========================================================================================================
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cosmos_robot.contract import RobotSpec
from cosmos_robot.errors import InputError, UnknownNameError
from cosmos_robot.hardware.mixing import mix
from cosmos_robot.types import ActionChunk

Array = NDArray[np.float64]
Strategy = Literal["sync", "latest", "blend", "ensemble", "rtc"]
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)

LATENCIES_KEPT: Final = 20
_EPSILON: Final = 1e-6


@dataclass(frozen=True)
class Hold:
    """Nothing is due; reason says why."""

    reason: str


@dataclass(frozen=True)
class Due:
    """values (D,): the command due now. age_s: seconds since the observation it answers. row: of its chunk."""

    values: Array
    age_s: float
    row: int


@dataclass(frozen=True)
class Ticket:
    """A question on its way. committed: (k, D) rows that will be used up before the answer can join, or None."""

    number: int
    asked_at: float
    started: float
    committed: Array | None = None


@dataclass(frozen=True)
class Joined:
    """How an answer was taken up. dropped: rows already used up when it came. latency_s: how long it took."""

    dropped: int
    latency_s: float


@dataclass(frozen=True)
class _Segment:
    chunk: ActionChunk
    start: float
    """Robot time of row 0."""
    looked_at: float
    joined: float
    """Robot time from which it is used."""


@dataclass
class DelayEstimate:
    """How long answers take. The first answer after a reset is left out: warm-up is not the delay to plan for."""

    first_guess_s: float = 0.2
    _seen: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))
    _warm: bool = False

    def add(self, latency_s: float) -> None:
        """One more answer that took ``latency_s``."""
        if self._warm:
            self._seen.append(latency_s)
        self._warm = True

    @property
    def seconds(self) -> float:
        """The longest of the recent latencies: an answer that comes early can wait, a late one cannot be undone."""
        return max(self._seen, default=self.first_guess_s)


class Scheduler:
    """Chunks in, commands out. One per robot and episode; ``reset`` forgets everything but the delay.

    spec: the robot the chunks are for. execute: rows of a chunk to use before a newer one should take over, as the
    checkpoint's contract says. A chunk's rate may differ from the robot's for absolute commands, whose rows are then
    interpolated; for changes per step that is refused, since half a step is another command.
    """

    def __init__(
        self,
        spec: RobotSpec,
        strategy: Strategy,
        execute: int,
        *,
        blend_rows: int = 4,
        spare_rows: int = 1,
        decay: float = 0.01,
    ):
        """blend_rows: rows over which ``blend`` fades. spare_rows: rows asked ahead beyond the expected delay. decay:
        the exponent per chunk of ``ensemble`` (0.01 in the ACT paper). Raises InputError, UnknownNameError."""
        if strategy not in STRATEGIES:
            raise UnknownNameError("strategy", strategy, STRATEGIES)
        for name, value, least in (
            ("execute", execute, 1),
            ("blend_rows", blend_rows, 1),
            ("spare_rows", spare_rows, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"scheduler: {name} must be a whole number from {least}, got {value!r}")
        self.spec, self.strategy, self.execute = spec, strategy, execute
        self.blend_rows, self.spare_rows, self.decay = blend_rows, spare_rows, decay
        self.delay = DelayEstimate()
        self.reset()

    def reset(self) -> None:
        """Forget all chunks and questions: the next command comes from an observation made after this."""
        self._segments: list[_Segment] = []
        self._ticket: Ticket | None = None
        self._count = getattr(self, "_count", 0)
        self._held = 0.0
        self._last: float | None = None
        self._standing = True

    def wants(self, now: float) -> bool:
        """Whether a question should be sent at ``now`` (seconds)."""
        if self._ticket is not None:
            return False
        if not self._segments or self._standing or self.strategy == "ensemble":
            return True
        segment, at = self._segments[-1], self._robot_time(now)
        used = (at - segment.start) * segment.chunk.rate_hz
        if self.strategy == "sync":
            return used >= min(self.execute, len(segment.chunk)) - _EPSILON
        ahead = math.ceil(self.delay.seconds * segment.chunk.rate_hz - _EPSILON) + self.spare_rows
        return used + ahead >= min(self.execute, len(segment.chunk)) - _EPSILON

    def ask(self, now: float) -> Ticket:
        """Note that a question about an observation made at ``now`` is sent, and say what must go along with it."""
        if self._ticket is not None:
            raise InputError("scheduler: one question is already on its way; wait for it, or report it lost")
        self._count += 1
        at = self._robot_time(now)
        committed = self._committed(at) if self.strategy == "rtc" and not self._standing else None
        self._ticket = Ticket(self._count, now, at, committed)
        return self._ticket

    def lost(self, ticket: Ticket) -> None:
        """The answer to ``ticket`` will not come, or is not wanted any more."""
        if self._ticket is not None and self._ticket.number == ticket.number:
            self._ticket = None

    def offer(self, ticket: Ticket, chunk: ActionChunk, now: float) -> Joined | None:
        """Take up the answer to ``ticket``; None if the question was forgotten meanwhile (a reset, or reported lost).

        Raises InputError for a chunk of another width, or of another rate where rows are changes per step.
        """
        if self._ticket is None or self._ticket.number != ticket.number:
            return None
        self._ticket = None
        self._check(chunk)
        at = self._robot_time(now)
        self.delay.add(now - ticket.asked_at)
        segment = _Segment(chunk, ticket.started, ticket.asked_at, at)
        self._segments.append(segment)
        self._forget(at)
        return Joined(int((at - segment.start) * chunk.rate_hz + _EPSILON), now - ticket.asked_at)

    def row(self, now: float) -> Due | Hold:
        """The command due at ``now``, the scheduled time of a control tick; times must not go back."""
        at = self._advance(now)
        self._forget(at)
        usable = [s for s in self._segments if self._covers(s, at)]
        if not usable:
            self._standing = True
            return Hold("no chunk yet" if not self._segments else "the chunk is used up and the next one is not here")
        self._standing = False
        newest = usable[-1]
        if self.strategy == "ensemble":
            values = self._ensemble(usable, at)
        elif self.strategy in ("blend", "rtc") and len(usable) > 1:
            values = self._faded(usable[-2], newest, at)
        else:
            values = self._value(newest, at)
        row = int((at - newest.start) * newest.chunk.rate_hz + _EPSILON)
        return Due(values, now - newest.looked_at, row)

    def stood(self) -> None:
        """The command last given was not carried out: the robot stood still, and nothing of its chunk is used up."""
        self._standing = True

    def _robot_time(self, now: float) -> float:
        """``now`` less the time the robot has stood still, in seconds."""
        standing_since = now - self._last if self._standing and self._last is not None else 0.0
        return now - self._held - standing_since

    def _advance(self, now: float) -> float:
        if self._last is not None and now < self._last:
            raise InputError(f"scheduler: time went back from {self._last} to {now}; use a monotonic clock")
        at = self._robot_time(now)
        self._held, self._last = now - at, now
        return at

    def _check(self, chunk: ActionChunk) -> None:
        width = self.spec.action_width
        if chunk.values.shape[1] != width:
            raise InputError(f"scheduler: chunk of width {chunk.values.shape[1]}, the robot takes {width}")
        if self.spec.action_reference != "absolute" and not math.isclose(chunk.rate_hz, self.spec.rate_hz):
            raise InputError(
                f"scheduler: chunk at {chunk.rate_hz} Hz for a robot at {self.spec.rate_hz} Hz; rows that are changes "
                "per step cannot be played at another rate"
            )

    def _usable_rows(self, segment: _Segment) -> int:
        return min(self.execute, len(segment.chunk)) if self.strategy == "sync" else len(segment.chunk)

    def _covers(self, segment: _Segment, at: float) -> bool:
        place = (at - segment.start) * segment.chunk.rate_hz
        return -_EPSILON <= place < self._usable_rows(segment) - _EPSILON

    def _value(self, segment: _Segment, at: float) -> Array:
        place = (at - segment.start) * segment.chunk.rate_hz
        rows = segment.chunk.values
        low = min(int(place + _EPSILON), len(rows) - 1)
        share = place - low
        if share < _EPSILON or low + 1 == len(rows) or self.spec.action_reference != "absolute":
            return np.array(rows[low])
        return mix(self.spec, rows[low : low + 2], np.array([1 - share, share]))

    def _faded(self, old: _Segment, new: _Segment, at: float) -> Array:
        share = ((at - new.joined) * new.chunk.rate_hz + 1) / (self.blend_rows + 1)
        if share >= 1:
            return self._value(new, at)
        pair = np.stack([self._value(old, at), self._value(new, at)])
        return mix(self.spec, pair, np.array([1 - share, share]))

    def _ensemble(self, usable: list[_Segment], at: float) -> Array:
        weights = np.exp(-self.decay * np.arange(len(usable)))  # the oldest first, and heaviest
        return mix(self.spec, np.stack([self._value(s, at) for s in usable]), weights / weights.sum())

    def _committed(self, at: float) -> Array | None:
        """The rows due from ``at`` until an answer can be here: (k, D)."""
        segment = self._segments[-1]
        wanted = math.ceil(self.delay.seconds * segment.chunk.rate_hz - _EPSILON) + self.spare_rows
        first = int((at - segment.start) * segment.chunk.rate_hz + _EPSILON)
        rows = segment.chunk.values[first : first + wanted]
        return np.array(rows) if len(rows) else None

    def _forget(self, at: float) -> None:
        """Drop chunks that no row will come from again, but keep the newest: its end is what is reported."""
        older = [s for s in self._segments[:-1] if self._covers(s, at)]
        self._segments = (older if self.strategy == "ensemble" else older[-1:]) + self._segments[-1:]
